"""Batches in exact order. The sequence depends on (window, seed, samples seen) alone, not on workers or restarts.

Two ways to the pixels, the same sequence: splits whose decoded pixels fit under a limit come from the shared cache
(harness.data.cache); larger ones are read from the shards, one pread a sample, and decoded by worker processes.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from harness.data.cache import open_pixels
from harness.data.decoders import decode_batches
from harness.data.manifest import Dataset
from harness.data.order import batch as order_batch
from harness.data.pixels import Pixels
from harness.data.subset import Window
from harness.errors import DatasetError

ORDER_AHEAD_BATCHES = 128
CHECKED_AT_ONCE = 20_000_000  # labels of larger splits are checked batch by batch: opening stays instant


class Batch(NamedTuple):
    """uint8 images (B, C, H, W), int64 labels (B,), mask (B,) False where padded, ids (B,) = positions in the split."""

    images: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    ids: torch.Tensor


class Labels:
    """Labels of a split by position, each checked to be a class before it is handed out."""

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.dataset, self.split = dataset, split
        self.column = np.asarray(dataset.index(split))["label"]
        if len(self.column) <= CHECKED_AT_ONCE:
            self.check(np.arange(len(self.column)), self.column)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """int64 labels at `positions`. Raises DatasetError naming shard and key of one that is not a class."""
        labels = self.column[positions]
        self.check(positions, labels)
        return labels.astype(np.int64)

    def check(self, positions: np.ndarray, labels: np.ndarray) -> None:
        wrong = (labels < 0) | (labels >= self.dataset.num_classes)
        if wrong.any():
            first = int(np.flatnonzero(wrong)[0])
            name = Pixels(self.dataset, self.split, 1, 1).name(int(positions[first]))
            raise DatasetError(f"{name} has label {labels[first]}, the set has {self.dataset.num_classes} classes")


def train_batches(
    dataset: Dataset,
    window: Window,
    *,
    seed: int,
    batch_size: int,
    start_samples_seen: int,
    image_size: int,
    channels: int,
    workers: int = 0,
) -> Iterator[Batch]:
    """Endless batches of a training window: batch b holds positions [bB, (b + 1)B) of its order.

    Args:
        start_samples_seen: where to begin; nothing before it is read.
        workers: decoding processes for splits over the cache limit; they change no sample.
    """

    def positions() -> Iterator[np.ndarray]:
        start = start_samples_seen
        while True:  # the order of many batches at once: a permutation of 128 numbers is all overhead
            ahead = window.split_positions(order_batch(seed, start, batch_size * ORDER_AHEAD_BATCHES, window.size))
            yield from ahead.reshape(ORDER_AHEAD_BATCHES, batch_size)
            start += batch_size * ORDER_AHEAD_BATCHES

    return read(dataset, "train", positions(), image_size, channels, workers, batch_size)


def eval_batches(
    dataset: Dataset,
    split: str,
    *,
    image_size: int,
    channels: int,
    batch_size: int,
    positions: np.ndarray | None = None,
    workers: int = 0,
) -> Iterator[Batch]:
    """Every sample of a split, or of `positions`, once; the last batch is padded and masked.

    Raises DatasetError for a split that the set does not have.
    """
    if split not in dataset.splits:
        raise DatasetError(f"{dataset.folder}: no {split} split; it has {', '.join(dataset.splits)}")
    chosen = np.arange(dataset.splits[split].samples) if positions is None else positions
    parts = (chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size))
    return read(dataset, split, parts, image_size, channels, workers, batch_size)


def read(
    dataset: Dataset,
    split: str,
    positions: Iterator[np.ndarray],
    image_size: int,
    channels: int,
    workers: int,
    batch_size: int,
) -> Iterator[Batch]:
    """Batches at the given positions, in their order; shorter ones are padded with their first sample."""
    labels = Labels(dataset, split)
    pixels = open_pixels(dataset, split, image_size, channels)
    if isinstance(pixels, np.ndarray):
        for chosen in positions:
            padded, mask = pad(chosen, batch_size)
            yield assemble(torch.from_numpy(pixels.take(padded, axis=0)), labels, padded, mask)
        return
    for chosen, images in decode_batches(pixels, positions, batch_size, workers):
        padded, mask = pad(chosen, batch_size)
        if len(chosen) < batch_size:
            images = np.concatenate(
                [images, np.broadcast_to(images[:1], (batch_size - len(chosen), *images.shape[1:]))]
            )
        yield assemble(torch.from_numpy(images), labels, padded, mask)


def pad(positions: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of full length and the mask of the real ones."""
    mask = np.arange(batch_size) < len(positions)
    return np.concatenate([positions, np.full(batch_size - len(positions), positions[0])]), mask


def assemble(images: torch.Tensor, labels: Labels, positions: np.ndarray, mask: np.ndarray) -> Batch:
    """A batch from its parts."""
    return Batch(images, torch.from_numpy(labels[positions]), torch.from_numpy(mask), torch.from_numpy(positions))


def distinct_origins(dataset: Dataset, window: Window) -> int:
    """Distinct originals (outlines, photographs) behind a training subset."""
    rows = window.split_positions(np.arange(window.size))
    return len(np.unique(dataset.index("train")["origin"][rows]))
