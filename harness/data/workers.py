"""A pool of forked processes that never hangs and never outlives what it works for."""

import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
POLL_SECONDS = 0.1


@contextmanager
def worker_pool(
    workers: int, prepare: Callable[..., None] | None = None, *inherited: Any
) -> Iterator[ProcessPoolExecutor]:
    """`workers` processes, forked at the first task; prepare(*inherited) runs once in each, its arguments unpickled.

    Leaving by an exception (Ctrl-C, a failed task, a closed generator) ends them in the middle of their work. Tasks are
    not cancelled for that: Python's executor prints a traceback when a worker dies while its tasks are cancelled.
    """
    stop = mmap.mmap(-1, 1)  # shared with the workers
    context = multiprocessing.get_context("fork")
    arguments = (os.getpid(), stop, prepare, inherited)
    pool = ProcessPoolExecutor(workers, context, initializer=start_worker, initargs=arguments)
    try:
        yield pool
    except BaseException:
        stop[0] = 1
        raise
    finally:
        pool.shutdown(wait=True)


def start_worker(parent: int, stop: mmap.mmap, prepare: Callable[..., None] | None, inherited: tuple[Any, ...]) -> None:
    """End when told to, and with the parent, however it ends: an orphan would keep the lock on a data set for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides

    def watch() -> None:
        while os.getppid() == parent and not stop[0]:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    if prepare is not None:
        prepare(*inherited)


def run_tasks(function: Callable[[Task], Result], tasks: list[Task], workers: int) -> Iterator[Result]:
    """function(task) of every task, in their order; in this process when there is one worker or one task.

    Raises BrokenProcessPool when a worker is killed.
    """
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from map(function, tasks)
        return
    with worker_pool(workers) as pool:
        futures = deque(pool.submit(function, task) for task in tasks)
        while futures:
            yield futures.popleft().result()
