"""Batches in exact order. The sequence depends on (window, seed, samples seen) alone, not on workers or restarts.

Two ways to the pixels, the same sequence: splits whose decoded pixels fit under a limit are decoded once into a
memory-mapped cache that all runs on the machine share; larger ones are read from the shards (one pread a sample) and
decoded by worker processes.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from harness.data.images import BadImageError, decode
from harness.data.manifest import Dataset
from harness.data.order import batch as order_batch
from harness.data.shard import member_key
from harness.data.subset import Window
from harness.errors import DatasetError

CACHE_LIMIT_BYTES = 4 * 2**30
CACHE_VERSION = 1  # of the rules in harness.data.images
CACHE_BLOCK_SAMPLES = 1000
ORDER_AHEAD_BATCHES = 128


class Batch(NamedTuple):
    """uint8 images (B, C, H, W), int64 labels (B,), mask (B,) False where padded, ids (B,) = positions in the split."""

    images: torch.Tensor
    labels: torch.Tensor
    mask: torch.Tensor
    ids: torch.Tensor


class Pixels:
    """Decoded samples of a split by position, straight from the shards."""

    def __init__(self, dataset: Dataset, split: str, image_size: int, channels: int) -> None:
        self.dataset, self.split, self.image_size, self.channels = dataset, split, image_size, channels
        self.index = dataset.index(split)
        self.files = [dataset.folder / shard["file"] for shard in dataset.splits[split].shards]
        self._open: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> np.ndarray:
        """uint8 (C, H, W). Raises DatasetError naming shard and key."""
        row = self.index[position]
        shard = int(row["shard"])
        if shard not in self._open:
            self._open[shard] = os.open(self.files[shard], os.O_RDONLY)
        data = os.pread(self._open[shard], int(row["size"]), int(row["offset"]))
        try:
            return decode(data, self.image_size, self.channels)
        except BadImageError as error:
            key = member_key(self.files[shard], int(row["offset"]))
            raise DatasetError(f"{self.files[shard]}: sample {key}: {error}; run `harness data check`") from error


class PaddedBatches(torch.utils.data.Dataset[tuple[np.ndarray, np.ndarray, np.ndarray]]):
    """A batch of positions to (images, padded positions, mask), decoded where it is asked for."""

    def __init__(self, pixels: Pixels, batch_size: int) -> None:
        self.pixels, self.batch_size = pixels, batch_size

    def __getitem__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        padded, mask = pad(positions, self.batch_size)
        return np.stack([self.pixels[position] for position in padded]), padded, mask


def cache_path(dataset: Dataset, split: str, image_size: int, channels: int) -> Path:
    """Where the decoded pixels of a split lie."""
    name = f"{split}-{image_size}px-{channels}ch-v{CACHE_VERSION}-{dataset.digest[:12]}.npy"
    return dataset.folder / "cache" / name


def open_pixels(dataset: Dataset, split: str, image_size: int, channels: int) -> np.ndarray | Pixels:
    """The cache, uint8 (N, C, H, W) memory-mapped and built first if need be; Pixels for a split over the limit."""
    if dataset.splits[split].samples * channels * image_size**2 > CACHE_LIMIT_BYTES:
        return Pixels(dataset, split, image_size, channels)
    path = cache_path(dataset, split, image_size, channels)
    if not path.exists():
        build_cache(dataset, split, image_size, channels, path)
    return np.load(path, mmap_mode="r")


def build_cache(dataset: Dataset, split: str, image_size: int, channels: int, path: Path) -> None:
    """Decode a split once; of two processes that want it one builds, the other waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        pixels = Pixels(dataset, split, image_size, channels)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        shape = (len(pixels), channels, image_size, image_size)
        cache = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        for start in range(0, len(pixels), CACHE_BLOCK_SAMPLES):
            for position in range(start, min(start + CACHE_BLOCK_SAMPLES, len(pixels))):
                cache[position] = pixels[position]
        cache.flush()
        temporary.replace(path)


def labels_of(dataset: Dataset, split: str) -> np.ndarray:
    """int64 labels of a split. Raises DatasetError naming shard and key of one that is not a class."""
    index = dataset.index(split)
    labels = index["label"].astype(np.int64)
    wrong = np.flatnonzero((labels < 0) | (labels >= dataset.num_classes))
    if wrong.size:
        row = index[wrong[0]]
        file = dataset.folder / dataset.splits[split].shards[int(row["shard"])]["file"]
        raise DatasetError(
            f"{file}: sample {member_key(file, int(row['offset']))} has label {labels[wrong[0]]}, "
            f"the set has {dataset.num_classes} classes"
        )
    return labels


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
    pixels = open_pixels(dataset, split, image_size, channels)
    labels = labels_of(dataset, split)
    if isinstance(pixels, np.ndarray):
        for chosen in positions:
            padded, mask = pad(chosen, batch_size)
            yield assemble(torch.from_numpy(pixels[padded]), labels, padded, mask)
        return
    reader = PaddedBatches(pixels, batch_size)
    # batch_size=None: one item of the sampler, a whole batch of positions, is one item of the dataset
    loader: DataLoader[Any] = DataLoader(reader, batch_size=None, sampler=positions, num_workers=workers)
    for images, padded, mask in loader:
        yield assemble(images, labels, padded.numpy(), mask.numpy())


def pad(positions: np.ndarray, batch_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of full length and the mask of the real ones."""
    mask = np.arange(batch_size) < len(positions)
    return np.concatenate([positions, np.full(batch_size - len(positions), positions[0])]), mask


def assemble(images: torch.Tensor, labels: np.ndarray, positions: np.ndarray, mask: np.ndarray) -> Batch:
    """A batch from its parts."""
    return Batch(images, torch.from_numpy(labels[positions]), torch.from_numpy(mask), torch.from_numpy(positions))


def distinct_origins(dataset: Dataset, window: Window) -> int:
    """Distinct originals (outlines, photographs) behind a training subset."""
    rows = window.split_positions(np.arange(window.size))
    return len(np.unique(dataset.index("train")["origin"][rows]))
