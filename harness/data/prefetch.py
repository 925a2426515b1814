"""Shards of the next group fetched while those of this one are read, by processes of their own."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import numpy as np

from harness.data.block_order import BlockOrder
from harness.data.manifest import Dataset
from harness.data.remote import RemoteShard, limit_bytes
from harness.data.subset import Window
from harness.data.workers import worker_pool
from harness.errors import ConfigError, DatasetError, HarnessError

FETCHING = 4  # downloads at once


def check_room(dataset: Dataset, split: str, window: Window, blocks: BlockOrder | None) -> None:
    """Raises ConfigError where the cache is too small for an order: shards would be downloaded again and again."""
    remote = [shard for shard in dataset.shards(split) if isinstance(shard, RemoteShard)]
    if not remote:
        return
    limit = limit_bytes()
    if blocks is None:
        needed = int(sum(shard.size for shard in remote) * window.size / window.total)
        advice = "order=block reads a few shards at a time; or raise"
    else:
        needed = blocks.most_shards() * max(shard.size for shard in remote)
        advice = "raise"
    if needed > limit:
        raise ConfigError(
            f"{dataset.folder}: this order needs {needed:,} bytes of its remote shards at hand, the cache holds "
            f"{limit:,}: {advice} HARNESS_CACHE_BYTES"
        )


def prefetched(
    batches: Iterator[np.ndarray], shards: list[RemoteShard], blocks: BlockOrder, start: int, batch_size: int
) -> Iterator[np.ndarray]:
    """`batches` as they are, of which the first begins at global position `start`; the shards of the group after the
    one being read are downloaded meanwhile.

    Raises DatasetError when a downloading process is killed. What a download itself fails with is raised by the reader
    that needs the shard.
    """
    until = start
    try:
        with worker_pool(FETCHING) as pool:
            for number, batch in enumerate(batches):
                position = start + number * batch_size
                if position >= until:
                    until = want_next(pool, shards, blocks, position)
                yield batch
    except BrokenProcessPool as error:
        raise DatasetError("a downloading process was killed (out of memory?); the same command goes on") from error


def want_next(pool: ProcessPoolExecutor, shards: list[RemoteShard], blocks: BlockOrder, position: int) -> int:
    """Ask for the shards of the group at `position` and of the one after it; returns where that one begins."""
    epoch, group = blocks.group_at(position)
    until = epoch * blocks.window.size + group.start + group.size
    for shard in [*group.shards, *blocks.group_at(until)[1].shards]:
        pool.submit(fetch, shards[shard])
    return until


def fetch(shard: RemoteShard) -> None:
    """Download a shard, in a worker, if it is not there; who reads it will meet the same error and raise it."""
    try:
        shard.local()
    except (HarnessError, OSError):
        return
