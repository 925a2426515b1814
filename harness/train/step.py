"""One optimiser step."""

import torch
from torch import nn
from torch.nn import functional as F

from harness.config import RecipeConfig


def training_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: torch.Tensor,
    labels: torch.Tensor,
    recipe: RecipeConfig,
    precision: str,
) -> torch.Tensor:
    """One optimiser step on one batch; returns the mean loss (0-d tensor on the device).

    Args:
        images: (B, C, H, W) float32 in [-1, 1] on the model's device.
        labels: (B,) int64 on the model's device.
        precision: fp32 | bf16 (autocast).
    """
    with torch.autocast(images.device.type, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(images)
    loss = classification_loss(logits, labels, recipe.loss, recipe.label_smoothing).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if recipe.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
    optimizer.step()
    return loss.detach()


def classification_loss(logits: torch.Tensor, labels: torch.Tensor, kind: str, smoothing: float = 0.0) -> torch.Tensor:
    """Loss of each image, (B,) float32 in nats.

    Args:
        kind: 'softmax' cross-entropy, or 'sigmoid': binary cross-entropy of every class, summed over classes, as the
            authors pre-train (google-research/vision_transformer issue 34; arXiv 2106.04560 §3.3).
        smoothing: of the target distribution, softmax only.
    """
    if kind == "sigmoid":
        targets = F.one_hot(labels, logits.shape[1]).float()
        return F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").sum(1)
    return F.cross_entropy(logits.float(), labels, label_smoothing=smoothing, reduction="none")
