"""Normalisation, activations and biases on the meta device by their output shapes alone.

torch derives these from Python decompositions, four fifths of the time of counting a ResNet; FLOP counters
leave them out anyway.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


def _like(x: Tensor) -> Tensor:
    """`empty_like` by an operation that is native on the meta device."""
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


def _group_norm(x: Tensor, _weight: Any, _bias: Any, batch: int, _c: int, _hw: int, groups: int, _eps: float) -> Any:
    return _like(x), x.new_empty(batch, groups), x.new_empty(batch, groups)


def _group_norm_backward(
    _gradient: Tensor,
    x: Tensor,
    _mean: Any,
    _rstd: Any,
    weight: Any,
    _n: int,
    _c: int,
    _hw: int,
    _groups: int,
    mask: Any,
) -> Any:
    return _gradients(mask, x, weight, weight)


def _layer_norm(x: Tensor, shape: list[int], _weight: Any, _bias: Any, _eps: float) -> Any:
    statistics = [*x.shape[: -len(shape)], *([1] * len(shape))]
    return _like(x), x.new_empty(statistics), x.new_empty(statistics)


def _layer_norm_backward(
    _gradient: Tensor, x: Tensor, _shape: Any, _mean: Any, _rstd: Any, weight: Any, bias: Any, mask: Any
) -> Any:
    return _gradients(mask, x, weight, bias)


def _batch_norm(x: Tensor, *_: Any) -> Any:
    return _like(x), x.new_empty(x.shape[1]), x.new_empty(x.shape[1])


def _batch_norm_backward(_gradient: Tensor, x: Tensor, weight: Any, *options: Any) -> Any:
    channels = x.new_empty(x.shape[1]) if weight is None else weight
    return _gradients(options[-1], x, channels, channels)


def _gradients(mask: list[bool], *like: Any) -> tuple[Tensor | None, ...]:
    return tuple(_like(t) if wanted and t is not None else None for wanted, t in zip(mask, like, strict=True))


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return _like(x)


def _addmm(_bias: Tensor, left: Tensor, right: Tensor, **_: Any) -> Tensor:
    """Counted as the product alone, which it is for a FLOP counter."""
    return torch.mm(left, right)


_SHAPES: dict[Any, Callable[..., Any]] = {
    _aten.native_group_norm.default: _group_norm,
    _aten.native_group_norm_backward.default: _group_norm_backward,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.native_batch_norm.default: _batch_norm,
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.gelu.default: _same,
    _aten.gelu_backward.default: _same,
    _aten.threshold_backward.default: _same,
    _aten._softmax.default: _same,
    _aten._safe_softmax.default: _same,
    _aten.mul.Scalar: _same,
    _aten.addmm.default: _addmm,
    _aten._softmax_backward_data.default: _same,
}


class ShapesOnly(TorchDispatchMode):
    """Inside it, those operations give tensors of the right shape at once; for the meta device only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _SHAPES.get(func, func)(*args, **(kwargs or {}))
