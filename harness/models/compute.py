"""MACs and FLOPs of a model, counted from the real module on torch's meta device: nothing is allocated.

One multiply-accumulate (MAC) is 2 FLOPs. A training step is forward and backward as executed: the first layer
needs no input gradient, so a step is a little under 3 forwards. Matrix products and convolutions count;
normalisation, activations and weight standardisation do not.

The meta device matters: on a CPU, torch's FlopCounterMode scores fused attention as zero (pytorch #195460),
and on CUDA fused kernels recompute scores in the backward pass, which is then counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.models.build import build_model
from harness.models.padding import WITHOUT_PADDING

CONVENTIONS = ("executed", "paper")


@dataclass(frozen=True)
class Cost:
    """What one image costs. Shares are of the forward MACs."""

    parameters: int  # trainable, head included
    forward_macs_per_image: int
    training_flops_per_image: int  # forward and backward, 2 a MAC
    attention_share: float  # query-key and attention-value products, the only batched matrix products
    head_share: float  # the classifier, with the hidden layer of the paper's pre-training head
    convention: str  # executed | paper


def count(cfg: ModelConfig, num_classes: int, channels: int, convention: str = "executed") -> Cost:
    """Count `cfg` with a head of `num_classes` (0 = none) on images of `channels` x image_size x image_size.

    Args:
        convention: 'executed' counts what runs; 'paper' leaves out multiplications with the zero padding of
            convolutions, as XLA's cost analysis does: it fits the paper's Table 6 best (ResNets: 3-4 % less).

    Raises:
        ConfigError: `cfg` cannot be built, or the convention is unknown.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention={convention!r} is unknown; use one of {', '.join(CONVENTIONS)}.")
    model = build_model(cfg, num_classes, channels, device="meta", attention="unfused")
    images = torch.zeros(1, channels, cfg.image_size, cfg.image_size, device="meta")
    return count_module(model, images, convention)


def count_module(model: nn.Module, images: Tensor, convention: str = "executed") -> Cost:
    """As `count`, of a module on the meta device and a batch of `images` (B, C, H, W) there."""
    model.train()
    batch = len(images)
    counter = FlopCounterMode(
        display=False, custom_mapping=WITHOUT_PADDING if convention == "paper" else None
    )
    with counter:
        output = model(images)
        forward = counter.get_total_flops()
        forward_counts = counter.get_flop_counts()
        attention = forward_counts["Global"].get(torch.ops.aten.bmm, 0)
        head = _head_flops(model, forward_counts)
        output.sum().backward()
    return Cost(
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        forward_macs_per_image=forward // 2 // batch,
        training_flops_per_image=counter.get_total_flops() // batch,
        attention_share=attention / forward,
        head_share=head / forward,
        convention=convention,
    )


def _head_flops(model: nn.Module, counts: Mapping[str, Mapping[Any, int]]) -> int:
    """Forward FLOPs of the classifier; some of timm's models have two (distillation)."""
    classifier = model.get_classifier()  # type: ignore[operator]
    heads = classifier if isinstance(classifier, tuple | list) else (classifier,)
    names = [name for name, module in model.named_modules() if any(module is head for head in heads)]
    return sum(sum(counts.get(f"{type(model).__name__}.{name}", {}).values()) for name in names)
