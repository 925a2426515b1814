"""Frozen features: the pre-logits representation of a network, or the raw pixels as a baseline."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from harness.data.loader import eval_batches
from harness.data.manifest import Dataset
from harness.models.build import pre_logits
from harness.train.evaluate import EVAL_BATCH_SIZE, to_input


class Features(NamedTuple):
    """features (N, D) float32 and labels (N,) int64, in the split's packed order."""

    features: np.ndarray
    labels: np.ndarray


@torch.no_grad()
def extract(
    model: nn.Module | None,
    dataset: Dataset,
    split: str,
    *,
    image_size: int,
    channels: int,
    device: torch.device,
    precision: str = "fp32",
) -> Features:
    """Features of every image of `split`, each once; model None gives the pixels themselves."""
    if model is not None:
        model.to(device).eval()
    features, labels = [], []
    for batch in eval_batches(dataset, split, image_size=image_size, channels=channels, batch_size=EVAL_BATCH_SIZE):
        images = to_input(batch.images, device)
        if model is None:
            output = images.flatten(1)
        else:
            with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
                output = pre_logits(model, images)
        features.append(output[batch.mask.to(device)].float().cpu().numpy())
        labels.append(batch.labels[batch.mask].numpy())
    return Features(np.concatenate(features), np.concatenate(labels))
