"""What training keeps in memory: tensors saved for the backward pass, measured on the meta device."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode


class _FlashAttention(torch.autograd.Function):
    """Keeps what a fused kernel keeps: inputs, output and one number a query, not the attention matrix."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1]))
        return output

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError("only the forward pass is measured")


class _FusedAttention(TorchFunctionMode):
    """On the meta device torch would run scaled_dot_product_attention as separate products."""

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return _FlashAttention.apply(*args[:3])
        return func(*args, **(kwargs or {}))


def saved_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes of the tensors that a forward pass of `images` keeps for its backward pass, weights left out."""
    weights = {p.untyped_storage()._cdata for p in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = tensor  # held, so that no later storage takes the same address
        return tensor

    model.train()
    with _FusedAttention(), saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(images)
    del output
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
