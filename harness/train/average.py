"""Polyak averaging: a running mean of the weights along training, which is evaluated in their place.

The paper averages with a factor of 0.9999 when it fine-tunes on ImageNet (arXiv 2010.11929 §4.1). Early on the factor
is (1 + n) / (10 + n) after n steps, as TensorFlow's ExponentialMovingAverage does, so that short runs forget their
initial weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Average:
    """The mean of a network's floating-point tensors, in float32 as they are."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.live = {name: tensor for name, tensor in model.state_dict().items() if tensor.is_floating_point()}
        self.mean = {name: tensor.clone() for name, tensor in self.live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step 1, 2, …"""
        weight = 1 - min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.mean.values()), list(self.live.values()), weight)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and their mean."""
        for name, live in self.live.items():
            weights = live.clone()
            live.copy_(self.mean[name])
            self.mean[name].copy_(weights)


@contextmanager
def averaged(average: Average | None) -> Iterator[None]:
    """The network has its averaged weights inside; without an average, its own."""
    if average is None:
        yield
        return
    average.swap()
    try:
        yield
    finally:
        average.swap()
