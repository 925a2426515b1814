"""Exact evaluation: every sample once, padding masked, so accuracy is correct / N whatever the batch size or ranks."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import nn

from harness.data.loader import Batch
from harness.train.distributed import ALONE, Ranks
from harness.train.step import classification_loss

LARGEST_BATCH, LARGEST_BATCH_PIXELS = 500, 500 * 128**2


class Score(NamedTuple):
    """Top-1 as a fraction, mean loss in nats (the recipe's, without smoothing), and over how many images.

    mean_per_class: top-1 of each class that has images, averaged. An image of several labels is right when the first
    choice is one of them, and counts for its first label.
    """

    top1: float
    loss: float
    samples: int
    mean_per_class: float


def eval_batch_size(image_size: int) -> int:
    """Images at once: 500 up to 128 pixels, 163 at 224, 55 at 384, so that memory is what a training step is used to.

    Of the image size alone, so that last bits are the same on every machine and number of ranks.
    """
    return min(LARGEST_BATCH, max(1, LARGEST_BATCH_PIXELS // image_size**2))


def to_input(images: torch.Tensor, device: torch.device) -> torch.Tensor:
    """uint8 (B, C, H, W) in any memory to float32 in [-1, 1] on `device` (the authors' value range)."""
    return images.to(device, non_blocking=True).float().div_(127.5).sub_(1.0)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    device: torch.device,
    precision: str,
    loss: str = "softmax",
    ranks: Ranks = ALONE,
) -> Score:
    """Score of `model` in evaluation mode over `batches` of all ranks; the model is left in the mode it was in."""
    was_training = model.training
    model.eval()
    correct, samples, loss_sum = 0, 0, 0.0
    by_class = torch.zeros(2, 1, dtype=torch.float64)  # right, all; of each class
    for batch in batches:
        labels, mask = batch.labels.to(device), batch.mask.to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(to_input(batch.images, device))
        losses = classification_loss(logits, labels, loss)
        choice = logits.argmax(1)
        several = labels.ndim == 2
        right = (labels.gather(1, choice[:, None])[:, 0] > 0 if several else choice == labels) & mask
        correct += int(right.sum())
        loss_sum += float(losses[mask].double().sum())
        samples += int(mask.sum())
        classes = labels.argmax(1) if several else labels
        counts = [torch.bincount(classes[rows], minlength=logits.shape[1]) for rows in (right, mask)]
        by_class = by_class + torch.stack(counts).double().cpu()
    model.train(was_training)
    totals = ranks.sum(torch.cat([torch.tensor([correct, samples, loss_sum], dtype=torch.float64), by_class.flatten()]))
    correct_all, samples_all, loss_all = totals[:3].tolist()
    right_of, all_of = totals[3:].reshape(2, -1)
    mean_per_class = float((right_of / all_of)[all_of > 0].mean())
    return Score(correct_all / samples_all, loss_all / samples_all, int(samples_all), mean_per_class)
