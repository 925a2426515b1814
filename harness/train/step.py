"""One optimiser step."""

import contextlib
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from harness.config import RecipeConfig


class Step(NamedTuple):
    """0-d tensors on the device: mean loss of this rank's images, global gradient norm before clipping."""

    loss: torch.Tensor
    gradient_norm: torch.Tensor


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    recipe: RecipeConfig,
    precision: str,
    micro_batch: int | None = None,
) -> Step:
    """One optimiser step on one batch, in parts of `micro_batch` images whose gradients are summed.

    Args:
        model: the network, or a DistributedDataParallel around it: gradients are averaged with the last part.
        images: (B, C, H, W) float32 in [-1, 1] on the model's device.
        labels: (B,) int64, or (B, classes) of 0 and 1 for images of several labels, on the model's device.
        precision: fp32 | bf16 (autocast).
        micro_batch: images at once; None = all.
    """
    optimizer.zero_grad(set_to_none=True)
    count = len(images)
    size = micro_batch or count
    loss_sum: torch.Tensor | None = None
    for start in range(0, count, size):
        part, targets = images[start : start + size], labels[start : start + size]
        apart = start + size < count and isinstance(model, nn.parallel.DistributedDataParallel)
        with model.no_sync() if apart else contextlib.nullcontext():  # type: ignore[operator]
            loss = part_loss(model, part, targets, recipe, precision)
            if len(part) < count:
                loss = loss * (len(part) / count)  # parts of a mean over the whole batch
            loss.backward()
        loss_sum = loss.detach() if loss_sum is None else loss_sum + loss.detach()
    assert loss_sum is not None
    parameters = list(model.parameters())  # walking through the network's modules is a fiftieth of a small step
    norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if recipe.clip_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, recipe.clip_norm, norm)
    optimizer.step()
    return Step(loss_sum, norm)


def part_loss(
    model: nn.Module, images: torch.Tensor, labels: torch.Tensor, recipe: RecipeConfig, precision: str
) -> torch.Tensor:
    """Mean loss of some images, with its graph."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(images)
    return classification_loss(logits, labels, recipe.loss, recipe.label_smoothing).mean()


def classification_loss(logits: torch.Tensor, labels: torch.Tensor, kind: str, smoothing: float = 0.0) -> torch.Tensor:
    """Loss of each image, (B,) float32 in nats.

    Args:
        labels: (B,) int64, or (B, classes) of 0 and 1 for images of several labels; softmax then has the labels'
            shares as its target.
        kind: 'softmax' cross-entropy, or 'sigmoid': binary cross-entropy of every class, summed over classes, as the
            authors pre-train (google-research/vision_transformer issue 34; arXiv 2106.04560 §3.3).
        smoothing: of the target distribution, softmax only.
    """
    if kind == "sigmoid":
        targets = (labels if labels.ndim == 2 else F.one_hot(labels, logits.shape[1])).float()
        return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").sum(1)
    if labels.ndim == 2:
        labels = labels.float() / labels.sum(1, keepdim=True).clamp(min=1)
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing, reduction="none")
