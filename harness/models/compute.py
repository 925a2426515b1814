"""Compute accounting: parameters, MACs and FLOPs of a network, counted from the real module on the meta device.

Conventions. A MAC is one multiply-accumulate; FLOPs = 2 x MACs. Training FLOPs are what forward and backward execute
(the first layer has no gradient with respect to the image, so a little under 3 x forward). Counted: convolutions and
matrix products, attention's among them. Not counted: norms, weight standardisation, activations, softmax, optimiser.
The meta device is used since on a CPU the counter scores fused attention as nothing (pytorch issue 195460), and so
that no memory is allocated, whatever the size of the network.
"""

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.config import ModelConfig
from harness.models.build import build_model


@dataclass(frozen=True)
class Cost:
    """What one image costs."""

    parameters: int
    forward_macs_per_image: int
    training_flops_per_image: int


def count(cfg: ModelConfig, num_classes: int, channels: int) -> Cost:
    """Count `cfg` with a head of `num_classes` on images of `channels`."""
    model = build_model(cfg, num_classes, channels, device="meta").train()
    images = torch.zeros(1, channels, cfg.image_size, cfg.image_size, device="meta")
    with FlopCounterMode(display=False) as counter:
        logits = model(images)
        forward_flops = counter.get_total_flops()
        logits.sum().backward()
    return Cost(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        forward_macs_per_image=forward_flops // 2,
        training_flops_per_image=counter.get_total_flops(),
    )
