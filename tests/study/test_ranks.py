"""Runs of several processes through torchrun under the launcher: told to stop, killed, finished."""

import os
import signal
import time
from pathlib import Path

import pytest

from harness.run_folder import read_result, read_status
from tests.conftest import harness, start_harness
from tests.study.conftest import run_folders

WORDS = ["model=vit_pocket", "subset=100", "seed=0", "launcher.processes=2", "recipe.samples_seen=8k"]


def midway(runs: Path, attempt: int) -> Path:
    """The folder of a run that trains, at that attempt, and has got a checkpoint."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for folder in run_folders(runs):
            status = read_status(folder)
            if status["state"] == "running" and status.get("attempt") == attempt and status.get("samples_seen"):
                return folder
        time.sleep(0.01)
    raise AssertionError("no run got midway")


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.slow
def test_ranks_told_to_stop_go_on_and_a_killed_rank_fails_its_run(roots: Path, study_file: Path) -> None:
    words = ["run", str(study_file), *WORDS]
    process = start_harness(*words)
    folder = midway(roots, attempt=1)
    first = int(read_status(folder)["pid"])
    os.kill(first, signal.SIGTERM)  # one rank is told; all stop at the same step, and the launcher starts them again
    midway(roots, attempt=2)
    assert read_status(folder)["failures"] == 0
    pid = int(read_status(folder)["pid"])
    ranks = children(parent(pid))
    assert len(ranks) == 2
    os.kill(next(rank for rank in ranks if rank != pid), signal.SIGKILL)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 1, output
    assert "0 runs finished now, 0 before, 1 failed" in output
    assert read_status(folder)["state"] == "failed"
    assert "1 runs finished now, 0 before, 0 failed" in harness(*words).stdout
    result = read_result(folder)
    assert result is not None
    assert result["device_count"] == 2
    assert result["samples_seen"] == 8_000
