"""What a run sets in its process."""

import resource
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from platform import libc_ver

import numpy as np
import pytest

from harness.environment import keep_freed_memory


def faults_of_a_loop(keep: bool, answer: Connection) -> None:
    """Page faults of twenty rounds that fill three arrays of 8 MB and free them."""
    if keep:
        keep_freed_memory()
    before = 0
    for number in range(25):
        if number == 5:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        arrays = [np.full(1_000_000, number, np.int64) for _ in range(3)]
        del arrays
    answer.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_memory_that_a_step_frees_is_there_for_the_next(processes: ForkServerContext) -> None:
    faults = {}
    for keep in (False, True):
        receives, sends = processes.Pipe(duplex=False)
        child = processes.Process(target=faults_of_a_loop, args=(keep, sends))
        child.start()
        faults[keep] = receives.recv()
        child.join()
    assert faults[False] > 10 * max(1, faults[True])
    assert faults[True] < 100
