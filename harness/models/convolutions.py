"""FLOPs of convolutions for FlopCounterMode, with and without the products with their zero padding.

torch's own formulas are replaced for two reasons: they cannot leave padding out, and they count the weight gradient
of a grouped convolution as if it had one group (torch 2.14: a step of ConvNeXt, which is depthwise, comes out three
times too expensive).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_Shape = Sequence[int]


def _taps_inside(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many (output, kernel position) pairs along one axis read a real pixel."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return sum(0 <= o * stride + k * dilation - padding < size for o in range(outputs) for k in range(kernel))


def _taps(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """All (output, kernel position) pairs along one axis."""
    return ((size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1) * kernel


def convolution_flops(images: _Shape, weight: _Shape, options: Sequence[Any], padded: bool = True) -> int:
    """FLOPs (2 a MAC) of convolving images (B, C, *size) with weight (O, C / groups, *kernel).

    Args:
        images: shape of the input.
        weight: shape of the weight.
        options: stride, padding, dilation, transposed, … as in aten::convolution.
        padded: False leaves out the products with zero padding (transposed convolutions have none).
    """
    stride, padding, dilation, transposed, *_ = options
    taps = 1
    for size, kernel, s, p, d in zip(images[2:], weight[2:], stride, padding, dilation, strict=True):
        if transposed:
            taps *= size * kernel  # every input pixel meets the whole kernel
        else:
            taps *= (_taps if padded else _taps_inside)(size, kernel, s, p, d)
    return 2 * images[0] * weight[0] * weight[1] * taps


class ConvolutionFlops:
    """Formulas for `custom_mapping` of FlopCounterMode; adds up in `padding` what padding had in what it counted."""

    def __init__(self) -> None:
        self.padding = 0

    def mapping(self) -> dict[Any, Callable[..., int]]:
        """Formulas by operation; padding is counted."""
        return {
            torch.ops.aten.convolution: self._forward,
            torch.ops.aten.convolution_backward: self._backward,
        }

    def _forward(self, images: _Shape, weight: _Shape, _bias: Any, *options: Any, **_: Any) -> int:
        return self._count(1, images, weight, options)

    def _backward(self, _gradient: _Shape, images: _Shape, weight: _Shape, _bias: Any, *options: Any, **_: Any) -> int:
        """A gradient, with respect to images or weight, costs one convolution; the mask says which are wanted."""
        *convolution, mask = options
        return self._count(mask[0] + mask[1], images, weight, convolution)

    def _count(self, times: int, images: _Shape, weight: _Shape, options: Sequence[Any]) -> int:
        flops = times * convolution_flops(images, weight, options)
        self.padding += flops - times * convolution_flops(images, weight, options, padded=False)
        return flops
