"""Batches in exact order. The sequence depends on (window, seed, samples seen) alone, not on workers or restarts.

Two ways to the pixels, the same sequence: splits whose decoded pixels fit under a limit come from the shared cache
(harness.data.cache); larger ones are read from the shards, one pread a sample, and decoded by worker processes.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from harness.data.cache import open_pixels
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


class PaddedBatches(torch.utils.data.Dataset[Any]):
    """A batch of positions to (images, padded positions, mask), decoded where it is asked for.

    An error is returned, not raised: it crosses the border of the process as itself.
    """

    def __init__(self, pixels: Pixels, batch_size: int) -> None:
        self.pixels, self.batch_size = pixels, batch_size

    def __getitem__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | DatasetError:
        padded, mask = pad(positions, self.batch_size)
        try:
            return np.stack([self.pixels[position] for position in padded]), padded, mask
        except DatasetError as error:
            return error


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
            yield assemble(torch.from_numpy(pixels[padded]), labels, padded, mask)
        return
    for item in decoded(PaddedBatches(pixels, batch_size), positions, workers):
        if isinstance(item, DatasetError):
            raise item
        images, padded, mask = item
        yield assemble(torch.as_tensor(images), labels, np.asarray(padded), np.asarray(mask))


def decoded(reader: PaddedBatches, positions: Iterator[np.ndarray], workers: int) -> Iterator[Any]:
    """Items of `reader` in the order of `positions`, made here or in worker processes.

    Raises DatasetError when a worker dies, which is an error and never a hang.
    """
    if workers == 0:
        yield from (reader[chosen] for chosen in positions)
        return
    # batch_size=None: one item of the sampler, a whole batch of positions, is one item of the dataset
    loader: DataLoader[Any] = DataLoader(
        reader, batch_size=None, sampler=positions, num_workers=workers, multiprocessing_context="fork"
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DatasetError(
            f"{reader.pixels.dataset.folder}: {error}; out of memory? Fewer workers need less"
        ) from error


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
