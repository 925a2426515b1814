"""Metrics of transfer: top-1 and top-5, mean per-class accuracy, ImageNet-ReaL, and the paper's average of five."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import mean

import numpy as np

from harness.data.manifest import Dataset
from harness.data.pixels import Pixels
from harness.errors import ConfigError, DatasetError
from harness.results_schema import AVERAGE_5

METRICS = ("top1", "top5", "mean_per_class", "real")
REAL_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")


def top_k(scores: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Share of rows of (M, K) scores whose label's score is among the k best; with fewer classes than k it is 1."""
    k = min(k, scores.shape[1])
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    return float((best == labels[:, None]).any(1).mean())


def top1(scores: np.ndarray, labels: np.ndarray) -> float:
    """Share of rows of (M, K) scores whose first best column is the label."""
    return float((scores.argmax(1) == labels).mean())


def mean_per_class(scores: np.ndarray, labels: np.ndarray) -> float:
    """Top-1 of each class that has images, averaged: the metric of Pets and Flowers-102."""
    right = scores.argmax(1) == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def real_accuracy(scores: np.ndarray, real_labels: list[list[int]]) -> float:
    """ImageNet-ReaL (arXiv 2006.07159): right when the choice is one of an image's labels; those without are left out.

    Args:
        scores: (M, 1000). real_labels: of the same M images.
    """
    choices = scores.argmax(1).tolist()
    right = [choice in labels for choice, labels in zip(choices, real_labels, strict=True) if labels]
    if not right:
        raise DatasetError("ImageNet-ReaL: no image has a label")
    return float(np.mean(right))


def read_real(path: Path, target: Dataset, split: str = "test") -> list[list[int]]:
    """Labels of each image of a packed split from real.json: a list in the order of ILSVRC2012_val_00000001, 2, …

    Raises DatasetError for a file that is no such list or labels more classes than the target has, and for images whose
    key has no number of it.
    """
    try:
        listed = json.loads(path.expanduser().read_text())
        if not all(isinstance(labels, list) and all(type(label) is int for label in labels) for labels in listed):
            raise ValueError("not a list of lists of class numbers")
        outside = {label for labels in listed for label in labels if not 0 <= label < target.num_classes}
        if outside:  # never chosen: the score would be too low
            raise ValueError(f"class {min(outside)} is none of the {target.num_classes:,} of {target.name}, from 0 on")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DatasetError(f"transfer.real_labels={path}: {error}") from error
    pixels = Pixels(target, split, 1, 1)
    found = []
    for position in range(target.splits[split].samples):
        match = REAL_NUMBER.search(pixels.name(position))
        number = int(match.group(1)) if match else 0
        if not 1 <= number <= len(listed):
            raise DatasetError(f"{pixels.name(position)}: not one of the {len(listed):,} images that {path} labels")
        found.append(listed[number - 1])
    return found


def measure(
    names: list[str], scores: np.ndarray, labels: np.ndarray, real: list[list[int]] | None
) -> list[tuple[str, float]]:
    """(metric, value) of (M, K) scores, K classes in the order of the labels' numbers."""
    values = {
        "top1": lambda: top1(scores, labels),
        "top5": lambda: top_k(scores, labels, 5),
        "mean_per_class": lambda: mean_per_class(scores, labels),
        "real": lambda: real_accuracy(scores, real or []),
    }
    return [(name, values[name]()) for name in names]


def check_metrics(names: list[str], real_labels: str | None) -> None:
    """Raise ConfigError for a metric that there is not, lacks its file, or is there twice (it would count twice)."""
    for name in names:
        if name not in METRICS:
            raise ConfigError(f"transfer.metrics: {name} is none of {', '.join(METRICS)}")
        if names.count(name) > 1:
            raise ConfigError(f"transfer.metrics: {name} is there twice")
    if ("real" in names) != (real_labels is not None):
        raise ConfigError(
            "transfer.metrics=[real] needs transfer.real_labels=FILE (real.json), and the other way round"
        )


def average_5(values: Mapping[tuple[str, str], float]) -> float | None:
    """Unweighted mean over the five targets of Table 6 (arXiv 2010.11929), None while one is missing. ReaL is apart.

    Args:
        values: by (target, metric); each target's metric of the paper counts, no other.
    """
    found = [values.get(key) for key in AVERAGE_5.items()]
    return mean(value for value in found if value is not None) if None not in found else None
