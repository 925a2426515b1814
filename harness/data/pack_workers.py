"""Shards written by several processes, with progress; a death on either side leaves nothing hanging."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.data.order import permute
from harness.data.shard import write_shard
from harness.data.sources import Source
from harness.errors import DatasetError

Task = TypeVar("Task")
Result = TypeVar("Result")
PARENT_POLL_SECONDS = 0.2
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


def run_tasks(function: Callable[[Task], Result], tasks: list[Task], workers: int) -> Iterator[Result]:
    """function(task) of every task, in their order; in this process when there is one worker or one task."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=(os.getpid(),)) as pool:
        yield from pool.map(function, tasks)


def start_worker(parent: int) -> None:
    """End with the parent, however it ends: an orphan would keep its lock on the data set for ever."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C goes to the whole group: end without a traceback

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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
