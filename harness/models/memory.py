"""What training keeps in memory: tensors saved for the backward pass, measured on the meta device."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from harness.config import ModelConfig
from harness.models.build import build_model
from harness.models.meta_shapes import ShapesOnly
from harness.models.precision import attention_path


def activation_bytes(model: nn.Module, images: Tensor) -> int:
    """Bytes that a forward pass of `images` (B, C, H, W) keeps for its backward pass, with fused attention.

    Weights are left out, and what is computed from weights alone: standardised ones are kept once a batch.
    """
    model.train()
    kept = _Kept(model)
    with kept, saved_tensors_hooks(kept.keep, lambda tensor: tensor):
        output = model(images)
    del output
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.tensors.values())


def step_bytes(cfg: ModelConfig, num_classes: int, channels: int, attention: str) -> Callable[[int], float]:
    """The least memory, in bytes, of a training step with one moment (SGD) of so many images in fp32.

    attention: the path that is used. Unfused keeps a matrix of tokens squared a layer, head and image, and makes as
    much again in the backward pass, which is not counted (measured: 1.8 to 2.2 times the estimate).
    """
    with attention_path(attention):
        model = build_model(cfg, num_classes, channels, device="meta")
    images = fewest_images(cfg, channels)
    with ShapesOnly():
        kept = activation_bytes(model, images) / len(images)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return lambda count: 12.0 * parameters + kept * count


def fewest_images(cfg: ModelConfig, channels: int) -> Tensor:
    """The smallest batch (B, C, H, W) that a training step of `cfg` takes, on the meta device."""
    batch = 2 if cfg.timm else 1  # batch norm over one pixel needs two
    return torch.empty(batch, channels, cfg.image_size, cfg.image_size, device="meta")


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


class _Kept(TorchFunctionMode):
    """Collects saved tensors by storage."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.weights = {_storage(parameter) for parameter in model.parameters()}
        self.tensors: dict[int, Tensor] = {}
        self.made: list[Tensor] = []  # from weights alone
        self.standardising = False

    def keep(self, tensor: Tensor) -> Tensor:
        if not self.standardising and _storage(tensor) not in self.weights:
            self.tensors[_storage(tensor)] = tensor  # held, so that no later storage takes the same address
        return tensor

    def __torch_function__(self, func: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:  # separate products on the meta device
            return _FlashAttention.apply(*args[:3])
        inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if inputs and all(_storage(tensor) in self.weights for tensor in inputs):
            self.standardising = True
            result = func(*args, **kwargs)
            self.standardising = False
            if isinstance(result, Tensor):
                self.weights.add(_storage(result))
                self.made.append(result)  # held, so that no later storage takes the same address
            return result
        return func(*args, **kwargs)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
