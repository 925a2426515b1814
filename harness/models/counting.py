"""Counting MACs and FLOPs of the real module on torch's meta device: nothing is allocated.

A training step is forward and backward as executed: the first layer needs no input gradient, so a step is a
little under 3 forwards. Matrix products and convolutions count; normalisation, activations and weight
standardisation do not.

The meta device matters: on a CPU, torch's FlopCounterMode scores fused attention as zero (pytorch #195460),
and on CUDA fused kernels recompute scores in the backward pass, which is then counted.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.models.build import build_model
from harness.models.compute import Cost
from harness.models.convolutions import formulas
from harness.models.memory import saved_bytes
from harness.models.meta_shapes import ShapesOnly
from harness.models.precision import attention_path


def count_executed(cfg: ModelConfig, num_classes: int, channels: int, convention: str) -> Cost:
    """As `harness.models.compute.count`, without the cache."""
    with attention_path("fused"):  # whatever the process does otherwise
        model = build_model(cfg, num_classes, channels, device="meta")
    images = torch.empty(1, channels, cfg.image_size, cfg.image_size, device="meta")
    try:
        return count_module(model, images, convention)
    except (AssertionError, RuntimeError) as error:
        if not cfg.timm:
            raise
        raise ConfigError(
            f"model.name={cfg.name}: a step on images of {channels} x {cfg.image_size} x {cfg.image_size} fails: "
            f"{error}"
        ) from error


def count_module(model: nn.Module, images: Tensor, convention: str = "executed") -> Cost:
    """Count one training step of a module on the meta device with `images` (B, C, H, W) there.

    Gradient checkpointing is off while counting: recomputation is no progress.
    """
    if getattr(model, "grad_checkpointing", False):
        model.set_grad_checkpointing(False)  # type: ignore[operator]
        try:
            return count_module(model, images, convention)
        finally:
            model.set_grad_checkpointing(True)  # type: ignore[operator]
    model.train()
    batch = len(images)
    counter = FlopCounterMode(display=False, custom_mapping=formulas(convention))
    with counter, ShapesOnly():
        output = model(images)
        forward = counter.get_total_flops()
        forward_counts = counter.get_flop_counts()
        attention = forward_counts["Global"].get(torch.ops.aten.bmm, 0)
        head = _head_flops(model, forward_counts)
        output.sum().backward()
    with ShapesOnly():
        # The difference of two batches, since standardised weights are kept once a batch.
        kept = saved_bytes(model, torch.cat([images, images])) - saved_bytes(model, images)
    return Cost(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        forward_macs_per_image=forward // 2 // batch,
        training_flops_per_image=counter.get_total_flops() // batch,
        attention_share=attention / forward,
        head_share=head / forward,
        activation_bytes_per_image=kept // batch,
        convention=convention,
    )


def _head_flops(model: nn.Module, counts: Mapping[str, Mapping[Any, int]]) -> int:
    """Forward FLOPs of the classifier; some of timm's models have two (distillation)."""
    classifier = model.get_classifier()  # type: ignore[operator]
    heads = classifier if isinstance(classifier, tuple | list) else (classifier,)
    names = [name for name, module in model.named_modules() if any(module is head for head in heads)]
    return sum(sum(counts.get(f"{type(model).__name__}.{name}", {}).values()) for name in names)
