"""Batches decoded by worker processes, in order, a few ahead. Needs no torch.

torch's DataLoader would do, but for what happens when a worker dies: it raises from a signal handler, wherever the main
thread is just then. Here that is an error of the batch that is missing. Workers write into memory that they share with
their parent, so that pixels cross no pipe, and end with it, however it ends.
"""

import mmap
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np

from harness.data.augment import random_numbers
from harness.data.pixels import Pixels
from harness.data.workers import worker_pool
from harness.errors import DatasetError

AHEAD = 2  # batches a worker, done or in work

KEPT = 4  # batches whose memory is used again
UNUSED = 3  # references to an array that only the list holds: the list's, the loop's, the call's

_batches: list[np.ndarray] = []

# In a worker: where to read, and where to write.
_job: tuple[Pixels, np.ndarray] | None = None


class Part(NamedTuple):
    """What to decode for a batch."""

    positions: np.ndarray  # in the split
    real: int  # how many of them count; the others stand in
    visit: int  # place of the first in the run's order: what augmentation is drawn from


def decode_batches(
    pixels: Pixels, parts: Iterator[Part], batch_size: int, workers: int
) -> Iterator[tuple[Part, np.ndarray]]:
    """Each part with its uint8 images (len(positions), C, H, W), of at most `batch_size` positions, in order.

    Raises DatasetError for an image that cannot be decoded and when a worker dies.
    """
    if workers <= 0:
        for part in parts:
            images = batch_memory(image_shape(pixels, len(part.positions)))
            decode_part(pixels, part, images)
            yield part, channels_first(pixels, images)
        return
    slots = AHEAD * workers
    shape = image_shape(pixels, slots, batch_size)
    shared = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
    waiting: deque[tuple[int, Part, Future[None]]] = deque()
    try:
        with worker_pool(workers, start_decoder, pixels, shared) as pool:
            for number, part in enumerate(parts):
                if len(waiting) == slots:
                    yield finished(waiting, pixels, shared)
                slot = number % slots
                waiting.append((slot, part, pool.submit(decode_into, slot, part)))
            while waiting:
                yield finished(waiting, pixels, shared)
    except BrokenProcessPool as error:
        raise DatasetError(
            f"{pixels.dataset.folder}: a decoding process was killed (out of memory?); fewer workers need less"
        ) from error


def batch_memory(shape: tuple[int, ...]) -> np.ndarray:
    """uint8 memory that no batch uses any more, or new: the system hands out new memory page by page, which takes a
    tenth of the time that filling it with photographs does. Whoever holds a batch, a view or a tensor of it, keeps it.
    """
    for memory in _batches:
        if memory.shape == shape and sys.getrefcount(memory) == UNUSED:
            return memory
    _batches.append(np.empty(shape, np.uint8))
    del _batches[:-KEPT]
    return _batches[-1]


def image_shape(pixels: Pixels, *leading: int) -> tuple[int, ...]:
    """(..., C, H, W), or (..., H, W, C) as augmentation writes."""
    size, channels = pixels.image_size, pixels.channels
    return (*leading, *((channels, size, size) if pixels.augmentation is None else (size, size, channels)))


def channels_first(pixels: Pixels, images: np.ndarray) -> np.ndarray:
    """(N, C, H, W), whatever the memory holds."""
    return images if pixels.augmentation is None else images.transpose(0, 3, 1, 2)


def finished(
    waiting: deque[tuple[int, Part, "Future[None]"]], pixels: Pixels, shared: np.ndarray
) -> tuple[Part, np.ndarray]:
    """The oldest batch, copied out of its slot, which is then free."""
    slot, part, future = waiting.popleft()
    future.result()
    images = batch_memory(image_shape(pixels, len(part.positions)))
    images[:] = shared[slot, : len(part.positions)]
    return part, channels_first(pixels, images)


def start_decoder(pixels: Pixels, shared: np.ndarray) -> None:
    """Remember, in a worker, what was inherited."""
    global _job
    _job = (pixels, shared)


def decode_into(slot: int, part: Part) -> None:
    """Decode a batch, in a worker, into its slot."""
    assert _job is not None
    pixels, shared = _job
    decode_part(pixels, part, shared[slot])


def decode_part(pixels: Pixels, part: Part, images: np.ndarray) -> None:
    """Decode a batch into the first rows of `images`."""
    if pixels.augmentation is None:
        for number, position in enumerate(part.positions.tolist()):
            images[number] = pixels[position]
        return
    numbers = random_numbers(pixels.augmentation.seed, part.visit + np.arange(len(part.positions)))
    for number, position in enumerate(part.positions.tolist()):
        pixels.cut(position, numbers[number], images[number])
