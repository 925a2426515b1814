"""Frozen features: the pre-logits representation of a network, or the raw pixels as a baseline.

Extracted once per (network, data set, preprocessing) and kept by digest below the user's cache
($HARNESS_CACHE/features, which may be deleted at any time). Ranks share the work: each sample is taken by one of them.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from harness.config import ModelConfig, stated
from harness.data.cache import CACHE_VERSION as PIXEL_RULES
from harness.data.loader import Labels, eval_batches
from harness.data.manifest import Dataset
from harness.errors import DatasetError, HarnessError
from harness.models.build import pre_logits
from harness.paths import cache_root
from harness.train import checkpoint
from harness.train.distributed import ALONE, Ranks
from harness.train.evaluate import eval_batch_size, to_input

CACHE_FORMAT = 1


class Features(NamedTuple):
    """features (N, D) float32 and labels (N,) int64, in the split's packed order."""

    features: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Setting:
    """Preprocessing and machine: what features depend on besides network and images."""

    image_size: int
    channels: int
    device: torch.device
    precision: str = "fp32"  # or bf16
    attention: str = "fused"  # as the network was built
    workers: int = 0
    ranks: Ranks = ALONE


def cached_features(model: nn.Module, config: ModelConfig, dataset: Dataset, split: str, setting: Setting) -> Features:
    """`extract`, from the cache where these features were extracted before; a damaged file is made again."""
    path = cache_path(model, config, dataset, split, setting)
    found = load_cached(path) if setting.ranks.first else None
    if setting.ranks.any(found is not None):
        shape = setting.ranks.sum(torch.tensor(found.shape if found is not None else (0, 0)))
        values = torch.from_numpy(found) if found is not None else torch.zeros(*shape.tolist())
        whole = setting.ranks.sum(values).numpy()
        check_finite(whole, config.name, dataset, split)  # the first versions kept any
        return Features(whole, labels_of(dataset, split))
    features = extract(model, dataset, split, setting)
    check_finite(features.features, config.name, dataset, split)
    if setting.ranks.first:
        try:
            checkpoint.save(path, {"features": torch.from_numpy(features.features)}, {})
        except OSError as error:
            print(f"warning: features are not kept ({error})", flush=True)
    return features


def cache_path(model: nn.Module, config: ModelConfig, dataset: Dataset, split: str, setting: Setting) -> Path:
    """A name that changes whenever the features would."""
    identity = {
        "format": CACHE_FORMAT,
        "network": stated(config),  # two networks may have equal tensors and differ in heads or activation
        "parameters": checkpoint.parameters_sha256(model),
        "images": dataset.digest,
        "split": split,
        "pixel_rules": PIXEL_RULES,
        "torch": torch.__version__,
        "image_size": setting.image_size,
        "channels": setting.channels,
        "device": setting.device.type,
        "precision": setting.precision,
        "attention": setting.attention,
    }
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return cache_root() / "features" / f"{dataset.name}-{split}-{digest[:32]}.safetensors"


def load_cached(path: Path) -> np.ndarray | None:
    """(N, D) features, or None where there are none or the file is damaged."""
    if not path.exists():
        return None
    try:
        tensors = checkpoint.load(path, "extracted again")[0]
    except HarnessError as error:
        print(f"warning: {error}", flush=True)
        return None
    if "features" not in tensors:
        print(f"warning: {path}: no features in it; extracted again", flush=True)
        return None
    return tensors["features"].numpy()


def extract(model: nn.Module | None, dataset: Dataset, split: str, setting: Setting) -> Features:
    """Features of every image of `split`; None in place of a network gives the pixels.

    Raises DatasetError for a split that the set does not have.
    """
    if model is None:
        found = outputs(lambda images: images.flatten(1), dataset, split, setting)
    else:
        network = model.to(setting.device).eval()
        found = outputs(lambda images: pre_logits(network, images), dataset, split, setting)
    return Features(found, labels_of(dataset, split))


@torch.no_grad()
def outputs(call: Callable[[torch.Tensor], torch.Tensor], dataset: Dataset, split: str, setting: Setting) -> np.ndarray:
    """`call` of every image of `split`, each once over all ranks: (N, D) float32 in packed order, whole on each rank.

    Args:
        call: images (B, C, H, W) float32 in [-1, 1] to (B, D), under the setting's precision.
    """
    device, ranks = setting.device, setting.ranks
    batches = eval_batches(
        dataset,
        split,
        image_size=setting.image_size,
        channels=setting.channels,
        batch_size=eval_batch_size(setting.image_size),
        workers=setting.workers,
        rank=ranks.rank,
        ranks=ranks.count,
    )
    found: np.ndarray | None = None
    taken = torch.zeros((), dtype=torch.int64)
    for batch in batches:
        with torch.autocast(device.type, torch.bfloat16, enabled=setting.precision == "bf16"):
            output = call(to_input(batch.images, device))
        if found is None:
            found = np.zeros((dataset.splits[split].samples, output.shape[1]), np.float32)
        real = int(batch.mask.sum())  # padding, if any, is at the end
        found[batch.ids[:real].numpy()] = output[:real].float().cpu().numpy()
        taken += real
    if found is None:
        raise DatasetError(f"{dataset.folder}: no image in {split}")
    total = int(ranks.sum(taken))
    assert total == len(found), f"{total} of {len(found)} images were taken"
    if ranks.count > 1:
        ranks.sum(torch.from_numpy(found))  # in place: the others have zeros where one rank has a sample's row
    return found


def check_finite(found: np.ndarray, network: str, dataset: Dataset, split: str) -> None:
    """Raise HarnessError for a network's outputs (N, D) with NaN or infinity, of which a classifier would be chance."""
    bad = int((~np.isfinite(found).all(1)).sum())
    if bad:
        raise HarnessError(
            f"{network}: what it makes of {bad:,} of {len(found):,} images of {dataset.name}'s {split} split is not "
            "finite. Its weights are too large, or its checkpoint is damaged or another network's: see model= and "
            "checkpoint=; with precision=bf16, try fp32"
        )


def labels_of(dataset: Dataset, split: str) -> np.ndarray:
    """(N,) int64 labels of a split, checked to be classes."""
    return Labels(dataset, split)[np.arange(dataset.splits[split].samples)]
