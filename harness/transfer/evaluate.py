"""Few-shot transfer of one run: rows of the `transfer` table, baselines beside the trained network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from harness.config import TransferConfig
from harness.data.manifest import Dataset
from harness.errors import DatasetError
from harness.transfer.features import Features, extract
from harness.transfer.fewshot import fewshot_top1


def fewshot_rows(
    cfg: TransferConfig,
    target: Dataset,
    trained: nn.Module,
    untrained: Callable[[], nn.Module],
    *,
    image_size: int,
    channels: int,
    device: torch.device,
    precision: str,
) -> list[dict[str, Any]]:
    """Top-1 for every kind of features, number of shots and support seed.

    Args:
        untrained: builds the same network as it was before training, for the baseline.
    Raises DatasetError when the target has no training or test split.
    """
    for split in ("train", "test"):
        if split not in target.splits:
            raise DatasetError(f"transfer target {target.name} has no {split} split ({target.folder})")

    def both_splits(model: nn.Module | None) -> tuple[Features, Features]:
        options: dict[str, Any] = {
            "image_size": image_size,
            "channels": channels,
            "device": device,
            "precision": precision,
        }
        return extract(model, target, "train", **options), extract(model, target, "test", **options)

    kinds = {"pretrained": both_splits(trained)}
    if cfg.baselines:
        kinds["untrained"] = both_splits(untrained())
        kinds["raw_pixels"] = both_splits(None)
    return [
        {
            "target": target.name,
            "protocol": "fewshot_linear",
            "features": kind,
            "shots": shots,
            "support_seed": seed,
            "metric": "top1",
            "value": fewshot_top1(*train_features, *test_features, shots=shots, seed=seed, l2=cfg.l2, bias=cfg.bias),
        }
        for kind, (train_features, test_features) in kinds.items()
        for shots in cfg.shots
        for seed in cfg.support_seeds
    ]
