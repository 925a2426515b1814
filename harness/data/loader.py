"""Batches in exact order. The sequence depends on (window, seed, samples seen) alone, not on workers or restarts.

Two ways to the pixels, the same sequence: splits whose decoded pixels fit under a limit come from the shared cache
(harness.data.cache); larger ones are read from the shards, one pread a sample, and decoded by worker processes.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from harness.data.augment import Augmentation, cut_batch
from harness.data.block_order import BlockOrder, blocks_of, check_order
from harness.data.cache import open_pixels
from harness.data.decoders import Part, decode_batches
from harness.data.manifest import Dataset
from harness.data.order import batch as order_batch
from harness.data.pixels import Pixels
from harness.data.prefetch import check_room, prefetched
from harness.data.remote import RemoteShard
from harness.data.rows import Rows
from harness.data.subset import Window
from harness.errors import ConfigError, DatasetError

ORDER_AHEAD_SAMPLES = 65_536  # computed at once: a permutation of 128 numbers is all overhead
EPOCHS_AHEAD = 16  # at most: of a tiny subset, each epoch is a permutation of its own


class Batch(NamedTuple):
    """A rank's rows of a global batch; with one rank, all of them.

    uint8 images (B, C, H, W), int64 labels (B,), mask (B,) False where padded, ids (B,) = positions in the split.
    """

    images: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    ids: torch.Tensor


class Labels:
    """Labels of a split by position, each checked to be a class before it is handed out.

    Those of a large split are checked batch by batch: opening it stays instant.
    """

    def __init__(self, dataset: Dataset, split: str) -> None:
        self.dataset, self.split = dataset, split
        self.rows = dataset.rows(split)
        self.column = None if isinstance(self.rows, Rows) else np.asarray(self.rows)["label"]
        if self.column is not None:
            self.check(np.arange(len(self.column)), self.column)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """int64 labels at `positions`. Raises DatasetError naming shard and key of one that is not a class."""
        labels = self.rows[positions]["label"] if self.column is None else self.column[positions]
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
    order: str = "global",
    rank: int = 0,
    ranks: int = 1,
    augmentation: Augmentation | None = None,
) -> Iterator[Batch]:
    """Endless batches of a training window: batch b holds positions [bB, (b + 1)B) of its order.

    Args:
        batch_size: B, of the global batch, over all ranks.
        start_samples_seen: where to begin, over all ranks; nothing before it is read.
        workers: decoding processes for splits over the cache limit; they change no sample.
        order: 'global', or 'block' (harness.data.block_order), which needs a few shards at a time.
        rank: rank r of R takes rows [rB/R, (r + 1)B/R) of every batch: all ranks together see what one rank would.
        augmentation: crops and flips, drawn anew at each visit of an image, the same for all ranks and restarts.
    Raises ConfigError for a batch that does not divide over the ranks (means over unequal parts would not be the mean),
    an order that there is not, and remote shards that the order needs more of than their cache holds.
    """
    check_order(order)
    if batch_size % ranks:
        raise ConfigError(f"batch_size={batch_size} does not divide over {ranks} ranks")
    share = rank_rows(batch_size, rank, ranks)
    blocks = blocks_of(order, window, dataset.splits["train"].shards, seed)
    pixels = open_pixels(dataset, "train", image_size, channels, augmentation)
    batches = window_batches(window, seed, batch_size, start_samples_seen, blocks)
    if isinstance(pixels, Pixels):
        check_room(dataset, "train", window, blocks)
        shards = [shard for shard in dataset.shards("train") if isinstance(shard, RemoteShard)]
        if blocks is not None and len(shards) == len(dataset.splits["train"].shards):
            batches = prefetched(batches, shards, blocks, start_samples_seen, batch_size)
    rows = batch_size // ranks
    visits = itertools.count(start_samples_seen + share.start, batch_size)
    parts = (Part(batch[share], rows, visit) for batch, visit in zip(batches, visits, strict=False))
    if augmentation is not None and isinstance(pixels, np.ndarray):
        return read_augmented(Labels(dataset, "train"), pixels, parts, augmentation, image_size)
    return read(dataset, "train", pixels, parts, workers, rows)


def window_batches(
    window: Window, seed: int, batch_size: int, start: int, blocks: BlockOrder | None
) -> Iterator[np.ndarray]:
    """Positions in the split of every global batch from `start` samples on, without end."""
    batches = max(1, min(ORDER_AHEAD_SAMPLES, EPOCHS_AHEAD * window.size) // batch_size)
    count = batches * batch_size
    while True:
        ahead = order_batch(seed, start, count, window.size) if blocks is None else blocks.batch(start, count)
        yield from window.split_positions(ahead).reshape(batches, batch_size)
        start += count


def eval_batches(
    dataset: Dataset,
    split: str,
    *,
    image_size: int,
    channels: int,
    batch_size: int,
    positions: np.ndarray | None = None,
    workers: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> Iterator[Batch]:
    """Every sample of a split, or of `positions`, once over all ranks; what is short is padded and masked.

    Args:
        batch_size: B, of the global batch: rank r of R takes rows [rb, (r + 1)b) of each, b = B/R rounded up. Every
            rank gets equally many batches of b rows, whatever the split's size: none waits for another in a collective.
    Raises DatasetError for a split that the set does not have.
    """
    if split not in dataset.splits:
        raise DatasetError(f"{dataset.folder}: no {split} split; it has {', '.join(dataset.splits)}")
    chosen = np.arange(dataset.splits[split].samples) if positions is None else positions
    share = rank_rows(batch_size, rank, ranks)
    batches = (chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size))
    parts = (one_row_at_least(batch, share) for batch in batches)
    pixels = open_pixels(dataset, split, image_size, channels)
    return read(dataset, split, pixels, parts, workers, share.stop - share.start)


def rank_rows(batch_size: int, rank: int, ranks: int) -> slice:
    """A rank's rows of a global batch. Raises ConfigError for a rank that there is not."""
    if not 0 <= rank < ranks:
        raise ConfigError(f"rank {rank} of {ranks}: ranks are numbered from 0")
    rows = -(-batch_size // ranks)
    return slice(rank * rows, (rank + 1) * rows)


def one_row_at_least(batch: np.ndarray, share: slice) -> Part:
    """A rank's positions of a batch; where it has none, the batch's first stands in."""
    rows = batch[share]
    return Part(rows, len(rows), 0) if len(rows) else Part(batch[:1], 0, 0)


def read_augmented(
    labels: Labels, stored: np.ndarray, parts: Iterator[Part], augmentation: Augmentation, image_size: int
) -> Iterator[Batch]:
    """Whole batches of augmented pictures from the cache of stored ones."""
    for part in parts:
        images = cut_batch(stored, part.positions, part.visit, augmentation, image_size)
        yield assemble(torch.from_numpy(images), labels, part.positions, np.ones(part.real, bool))


def read(
    dataset: Dataset,
    split: str,
    pixels: np.ndarray | Pixels,
    parts: Iterator[Part],
    workers: int,
    batch_size: int,
) -> Iterator[Batch]:
    """Batches of the given parts, in their order; short ones are padded."""
    labels = Labels(dataset, split)
    if isinstance(pixels, np.ndarray):
        for part in parts:
            padded, mask = pad(part, batch_size)
            yield assemble(torch.from_numpy(pixels.take(padded, axis=0)), labels, padded, mask)
        return
    for part, images in decode_batches(pixels, parts, batch_size, workers):
        padded, mask = pad(part, batch_size)
        if len(images) < batch_size:
            images = np.concatenate(
                [images, np.broadcast_to(images[:1], (batch_size - len(images), *images.shape[1:]))]
            )
        yield assemble(torch.from_numpy(images), labels, padded, mask)


def pad(part: Part, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of full length, filled up with the first, and the mask of those that count."""
    positions, mask = part.positions, np.arange(batch_size) < part.real
    return np.concatenate([positions, np.full(batch_size - len(positions), positions[0])]), mask


def assemble(images: torch.Tensor, labels: Labels, positions: np.ndarray, mask: np.ndarray) -> Batch:
    """A batch from its parts."""
    return Batch(images, torch.from_numpy(labels[positions]), torch.from_numpy(mask), torch.from_numpy(positions))


def distinct_origins(dataset: Dataset, window: Window) -> int:
    """Distinct originals (outlines, photographs) behind a training subset."""
    rows = window.split_positions(np.arange(window.size))
    return len(np.unique(dataset.index("train")["origin"][rows]))
