"""Shards written by several processes, with progress; a death on either side leaves nothing hanging."""

import sys
from collections.abc import Iterable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.data.order import permute
from harness.data.shard import write_shard
from harness.data.sources import Source
from harness.data.workers import run_tasks
from harness.errors import DatasetError

PLAIN_LINES = 10  # of progress where there is no terminal


@dataclass(frozen=True)
class ShardTask:
    """One shard to write: positions start … stop - 1 of the split's permutation `key`."""

    split: str
    number: int
    start: int
    stop: int
    key: int

    @property
    def file(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


# The source is opened once; forked workers share its pages.
_job: tuple[Source, Path, Path] | None = None


def write_shards(
    tasks: list[ShardTask], source: Source, folder: Path, records: Path, workers: int, progress: bool
) -> None:
    """Write shards in parallel, showing how many images are done. Raises DatasetError when a worker is killed."""
    global _job
    _job = (source, folder, records)
    if tasks:
        source.warm()
    try:
        show(run_tasks(write_one, tasks, workers), sum(task.stop - task.start for task in tasks), progress)
    except BrokenProcessPool as error:
        raise DatasetError(
            f"{folder}: a packing process was killed (out of memory?); the same command goes on from there, and "
            "--workers 1 needs the least memory"
        ) from error
    finally:
        _job = None


def write_one(task: ShardTask) -> int:
    """Write one shard; returns how many images it took."""
    assert _job is not None
    source, folder, records = _job
    split = source.splits[task.split]
    indices = permute(np.arange(task.start, task.stop), split.samples, task.key)
    write_shard(folder, records, task.file, split, indices)
    return task.stop - task.start


def show(counts: Iterable[int], total: int, progress: bool) -> None:
    """Consume `counts` of finished images: a bar on a terminal, else a line at every tenth."""
    if progress and not sys.stdout.isatty():
        done, shown = 0, 0
        for count in counts:
            done += count
            if done * PLAIN_LINES // total > shown:
                shown = done * PLAIN_LINES // total
                print(f"packing: {done:,} of {total:,} images", flush=True)
        return
    columns = (TextColumn("packing"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeRemainingColumn())
    with Progress(*columns, disable=not progress) as bar:
        task = bar.add_task("packing", total=total)
        for count in counts:
            bar.advance(task, count)
