"""FLOPs of convolutions without the multiplications by their zero padding, for FlopCounterMode."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

_Shape = Sequence[int]


def _taps_inside(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many (output, kernel position) pairs along one axis read a real pixel."""
    outputs = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return sum(0 <= o * stride + k * dilation - padding < size for o in range(outputs) for k in range(kernel))


def convolution_flops(
    images: _Shape, weight: _Shape, stride: _Shape, padding: _Shape, dilation: _Shape
) -> int:
    """FLOPs (2 a MAC) of convolving (B, C, H, W) with (O, C / groups, h, w), padding products left out."""
    taps = 1
    for size, kernel, s, p, d in zip(images[2:], weight[2:], stride, padding, dilation, strict=True):
        taps *= _taps_inside(size, kernel, s, p, d)
    return 2 * images[0] * weight[0] * weight[1] * taps


def _forward(images: _Shape, weight: _Shape, _bias: Any, *options: Any, **_: Any) -> int:
    """`options` as in aten::convolution: stride, padding, dilation, transposed, output_padding, groups."""
    stride, padding, dilation, transposed, *_rest = options
    assert not transposed, "transposed convolutions have no such count"
    return convolution_flops(images, weight, stride, padding, dilation)


def _backward(_gradient: _Shape, images: _Shape, weight: _Shape, *options: Any, **_: Any) -> int:
    """As in aten::convolution_backward: bias sizes, then the options of `_forward`, then the output mask.

    Gradients with respect to images and weight cost one convolution each; the mask says which are wanted.
    """
    _bias, stride, padding, dilation, transposed, _output_padding, _groups, mask = options
    assert not transposed, "transposed convolutions have no such count"
    return (mask[0] + mask[1]) * convolution_flops(images, weight, stride, padding, dilation)


WITHOUT_PADDING: dict[Any, Callable[..., int]] = {
    torch.ops.aten.convolution: _forward,
    torch.ops.aten.convolution_backward: _backward,
}
