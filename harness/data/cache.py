"""Decoded pixels of a small split: built once, memory-mapped by every run on the machine. Needs no torch."""

import fcntl
import os
import sys
import time
from pathlib import Path

import numpy as np

from harness.data.augment import Augmentation
from harness.data.manifest import Dataset
from harness.data.pixels import Pixels
from harness.paths import cache_root

CACHE_LIMIT_BYTES = 4 * 2**30
SAY_SECONDS = 10.0
CACHE_VERSION = 2  # of the rules in harness.data.images


def open_pixels(
    dataset: Dataset, split: str, image_size: int, channels: int, augmentation: Augmentation | None = None
) -> np.ndarray | Pixels:
    """The cache, uint8 (N, C, H, W) memory-mapped and built first if need be; Pixels for a split over the limit.

    With augmentation, which cuts the pictures as they are stored, the cache holds those; Pixels where they differ in
    size. Where the disk has no room for a cache, Pixels too, with a warning: slower, and the same samples.
    """
    pixels = Pixels(dataset, split, image_size, channels, augmentation)
    height, width = (image_size, image_size) if augmentation is None else pixels.stored_size(0)
    path = cache_path(dataset, split, f"{image_size}px" if augmentation is None else "stored", channels)
    if len(pixels) * channels * height * width > CACHE_LIMIT_BYTES or path.with_suffix(".differ").exists():
        return pixels
    try:
        if not path.exists():
            build_cache(pixels, (height, width), path)
        return np.asarray(np.load(path, mmap_mode="r"))
    except SizesDifferError:
        path.with_suffix(".differ").touch()
    except OSError as error:
        print(f"warning: no cache of decoded images ({error}); decoding again each time", file=sys.stderr)
    return pixels


class SizesDifferError(Exception):
    """The stored pictures of a split have no one size."""


def cache_path(dataset: Dataset, split: str, what: str, channels: int) -> Path:
    """Below the data set, or in the user's cache where the data set is read-only and nobody has built one there."""
    name = f"{split}-{what}-{channels}ch-v{CACHE_VERSION}-{dataset.digest[:12]}.npy"
    path = dataset.folder / "cache" / name
    if path.exists() or os.access(path.parent if path.parent.exists() else dataset.folder, os.W_OK):
        return path
    return cache_root() / "pixels" / name


def build_cache(pixels: Pixels, size: tuple[int, int], path: Path) -> None:
    """Decode a split once; of two processes that want it one builds, the other waits.

    Raises SizesDifferError where a stored picture is not of `size`, (height, width).
    """
    # A removed set must not come back as an empty folder
    path.parent.mkdir(parents=pixels.dataset.folder not in path.parents, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return
        temporary = path.with_suffix(".tmp")
        shape = (len(pixels), pixels.channels, *size)
        cache = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        with open(temporary, "r+b") as file:
            # A sparse file on a full disk would kill the process with SIGBUS while it is being filled
            os.posix_fallocate(file.fileno(), 0, temporary.stat().st_size)
            said = time.monotonic()
            for position in range(len(pixels)):
                if time.monotonic() - said > SAY_SECONDS:
                    said = time.monotonic()
                    print(f"decoding, once: {position:,} of {len(pixels):,} images into {path}", flush=True)
                image = pixels[position] if pixels.augmentation is None else pixels.stored(position)
                if image.shape[1:] != size:
                    temporary.unlink()
                    raise SizesDifferError
                cache[position] = image
            cache.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
