"""Exact evaluation: every sample once, padding masked, so accuracy is correct / N whatever the batch size."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from harness.data.loader import Batch
from harness.train.step import classification_loss

EVAL_BATCH_SIZE = 500


class Score(NamedTuple):
    """Top-1 as a fraction, mean loss in nats (the recipe's, without smoothing), and over how many images."""

    top1: float
    loss: float
    samples: int


def to_input(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """uint8 (B, C, H, W) in any memory to float32 in [-1, 1] on `device` (the authors' value range)."""
    return images.to(device, non_blocking=True).float().div_(127.5).sub_(1.0)


@torch.no_grad()
def evaluate(
    model: nn.Module, batches: Iterable[Batch], device: torch.device, precision: str, loss: str = "softmax"
) -> Score:
    """Score of `model` in evaluation mode over `batches`; the model is left in the mode it was in."""
    was_training = model.training
    model.eval()
    correct, samples, loss_sum = 0, 0, 0.0
    for batch in batches:
        labels, mask = batch.labels.to(device), batch.mask.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(to_input(batch.images, device))
        losses = classification_loss(logits, labels, loss)
        correct += int(((logits.argmax(1) == labels) & mask).sum())
        loss_sum += float(losses[mask].double().sum())
        samples += int(mask.sum())
    model.train(was_training)
    return Score(correct / samples, loss_sum / samples, samples)
