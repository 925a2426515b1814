"""Counting MACs and FLOPs of the real module on torch's meta device: nothing is allocated.

A training step is forward and backward as executed: the first layer needs no input gradient, so a step is a
little under 3 forwards. Matrix products and convolutions count; normalisation, activations and weight
standardisation do not.

The meta device matters: on a CPU, torch's FlopCounterMode scores fused attention as zero (pytorch #195460),
and on CUDA fused kernels recompute scores in the backward pass, which is then counted.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.models.build import build_model
from harness.models.compute import Cost
from harness.models.convolutions import ConvolutionFlops
from harness.models.memory import activation_bytes, fewest_images
from harness.models.meta_shapes import ShapesOnly
from harness.models.precision import attention_path


def count_afresh(cfg: ModelConfig, num_classes: int, channels: int) -> dict[str, Cost]:
    """As `harness.models.compute.count`, without the cache: the cost by convention, both from one step."""
    with attention_path("fused"):  # whatever the process does otherwise
        model = build_model(cfg, num_classes, channels, device="meta")
    images = fewest_images(cfg, channels)
    try:
        return count_module(model, images)
    except (AssertionError, RuntimeError, ValueError) as error:
        if not cfg.timm and not isinstance(error, ValueError):
            raise
        raise ConfigError(
            f"{cfg.name}: a step on images of {channels} x {cfg.image_size} x {cfg.image_size} fails: {error}"
        ) from error


def count_module(model: nn.Module, images: Tensor) -> dict[str, Cost]:
    """Count one training step of a module on the meta device with `images` (B, C, H, W) there, by convention.

    Gradient checkpointing is switched off: recomputation is no progress and is not counted.
    """
    if hasattr(model, "set_grad_checkpointing"):
        model.set_grad_checkpointing(False)  # type: ignore[operator]
    model.train()
    convolutions = ConvolutionFlops()
    with FlopCounterMode(display=False, custom_mapping=convolutions.mapping()) as counter, ShapesOnly():
        output = model(images)
        forward, forward_padding = counter.get_total_flops(), convolutions.padding
        forward_counts = counter.get_flop_counts()
        output.sum().backward()
    total = counter.get_total_flops()
    with ShapesOnly():
        kept = activation_bytes(model, images)
    executed = Cost(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        forward_macs_per_image=forward // 2 // len(images),
        training_flops_per_image=total // len(images),
        attention_share=forward_counts["Global"].get(torch.ops.aten.bmm, 0) / forward,
        head_share=_head_flops(model, forward_counts) / forward,
        activation_bytes_per_image=kept // len(images),
        convention="executed",
    )
    share = forward / (forward - forward_padding)
    paper = replace(
        executed,
        forward_macs_per_image=(forward - forward_padding) // 2 // len(images),
        training_flops_per_image=(total - convolutions.padding) // len(images),
        attention_share=executed.attention_share * share,
        head_share=executed.head_share * share,
        convention="paper",
    )
    return {cost.convention: cost for cost in (executed, paper)}


def _head_flops(model: nn.Module, counts: Mapping[str, Mapping[Any, int]]) -> int:
    """Forward FLOPs of the classifier; some of timm's models have two (distillation)."""
    classifier = model.get_classifier()  # type: ignore[operator]
    heads = classifier if isinstance(classifier, tuple | list) else (classifier,)
    names = [name for name, module in model.named_modules() if any(module is head for head in heads)]
    return sum(sum(counts.get(f"{type(model).__name__}.{name}", {}).values()) for name in names)
