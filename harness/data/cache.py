"""Decoded pixels of a small split: built once, memory-mapped by every run on the machine. Needs no torch."""

import fcntl
import os
import sys
from pathlib import Path

import numpy as np

from harness.data.manifest import Dataset
from harness.data.pixels import Pixels
from harness.paths import cache_root

CACHE_LIMIT_BYTES = 4 * 2**30
CACHE_VERSION = 2  # of the rules in harness.data.images


def open_pixels(dataset: Dataset, split: str, image_size: int, channels: int) -> np.ndarray | Pixels:
    """The cache, uint8 (N, C, H, W) memory-mapped and built first if need be; Pixels for a split over the limit.

    Where the disk has no room for a cache, Pixels too, with a warning: slower, and the same samples.
    """
    if dataset.splits[split].samples * channels * image_size**2 > CACHE_LIMIT_BYTES:
        return Pixels(dataset, split, image_size, channels)
    path = cache_path(dataset, split, image_size, channels)
    try:
        if not path.exists():
            build_cache(dataset, split, image_size, channels, path)
        return np.asarray(np.load(path, mmap_mode="r"))
    except OSError as error:
        print(f"warning: no cache of decoded images ({error}); decoding again each time", file=sys.stderr)
        return Pixels(dataset, split, image_size, channels)


def cache_path(dataset: Dataset, split: str, image_size: int, channels: int) -> Path:
    """Below the data set, or in the user's cache where the data set is read-only and nobody has built one there."""
    name = f"{split}-{image_size}px-{channels}ch-v{CACHE_VERSION}-{dataset.digest[:12]}.npy"
    path = dataset.folder / "cache" / name
    if path.exists() or os.access(path.parent if path.parent.exists() else dataset.folder, os.W_OK):
        return path
    return cache_root() / "pixels" / name


def build_cache(dataset: Dataset, split: str, image_size: int, channels: int, path: Path) -> None:
    """Decode a split once; of two processes that want it one builds, the other waits."""
    pixels = Pixels(dataset, split, image_size, channels)  # raises for a set that is not there any more
    # A removed set must not come back as an empty folder
    path.parent.mkdir(parents=dataset.folder not in path.parents, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        temporary = path.with_suffix(".tmp")
        shape = (len(pixels), channels, image_size, image_size)
        cache = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        with open(temporary, "r+b") as file:
            # A sparse file on a full disk would kill the process with SIGBUS while it is being filled
            os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
            for position in range(len(pixels)):
                cache[position] = pixels[position]
            cache.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
