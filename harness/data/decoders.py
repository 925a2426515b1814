"""Batches decoded by worker processes, in order, a few ahead. Needs no torch.

torch's DataLoader would do, but for what happens when a worker dies: it raises from a signal handler, wherever the main
thread is just then. Here that is an error of the batch that is missing. Workers write into memory that they share with
their parent, so that pixels cross no pipe, and end with it, however it ends.
"""

import mmap
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from harness.data.pack_workers import start_worker
from harness.data.pixels import Pixels
from harness.errors import DatasetError

AHEAD = 2  # batches a worker, done or in work

# In a worker: where to read, and where to write.
_job: tuple[Pixels, np.ndarray] | None = None


def decode_batches(
    pixels: Pixels, batches: Iterator[np.ndarray], batch_size: int, workers: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(positions, uint8 images (len(positions), C, H, W)) of each batch of at most `batch_size` positions, in order.

    Raises DatasetError for an image that cannot be decoded and when a worker dies.
    """
    if workers <= 0:
        for positions in batches:
            yield positions, np.stack([pixels[position] for position in positions.tolist()])
        return
    slots = AHEAD * workers
    shape = (slots, batch_size, pixels.channels, pixels.image_size, pixels.image_size)
    shared = np.frombuffer(mmap.mmap(-1, int(np.prod(shape))), np.uint8).reshape(shape)
    waiting: deque[tuple[int, np.ndarray, Future[None]]] = deque()
    # Forked: arguments are inherited, not sent
    context = multiprocessing.get_context("fork")
    pool = ProcessPoolExecutor(workers, context, initializer=start_decoder, initargs=(os.getpid(), pixels, shared))
    try:
        for number, positions in enumerate(batches):
            if len(waiting) == slots:
                yield finished(waiting, shared)
            slot = number % slots
            waiting.append((slot, positions, pool.submit(decode_into, slot, positions)))
        while waiting:
            yield finished(waiting, shared)
    except BrokenProcessPool as error:
        raise DatasetError(
            f"{pixels.dataset.folder}: a decoding process was killed (out of memory?); fewer workers need less"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def finished(
    waiting: deque[tuple[int, np.ndarray, "Future[None]"]], shared: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The oldest batch, copied out of its slot, which is then free."""
    slot, positions, future = waiting.popleft()
    future.result()
    return positions, shared[slot, : len(positions)].copy()


def start_decoder(parent: int, pixels: Pixels, shared: np.ndarray) -> None:
    """Remember, in a worker, what was inherited."""
    global _job
    start_worker(parent)
    _job = (pixels, shared)


def decode_into(slot: int, positions: np.ndarray) -> None:
    """Decode a batch, in a worker, into its slot."""
    assert _job is not None
    pixels, shared = _job
    for number, position in enumerate(positions.tolist()):
        shared[slot, number] = pixels[position]
