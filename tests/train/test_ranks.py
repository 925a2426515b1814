"""Several ranks over gloo: what one rank would see, one decision for all, and no hang when one dies."""

import json
import os
import signal
import socket
import sys
import time
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest

from harness.data.manifest import Dataset
from harness.run_folder import read_metrics
from harness.train import checkpoint
from harness.train.distributed import LostRankError, joined
from harness.train.loop import StoppedError, last_path, train
from tests.train.conftest import tiny_job

PLAIN = {"dropout": 0.0, "stochastic_depth": 0.0}  # these draw other numbers on other ranks
STOPPED, LOST = 85, 3


def rank_body(rank: int, ranks: int, port: int, data: str, folder: str, options: dict[str, Any]) -> None:
    """One rank of a run; what it does at `act_at` steps is up to `act`. Its exit code says how it ended."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    act, act_at, timeout = options.pop("act", None), options.pop("act_at", 0), options.pop("timeout", 60.0)
    patience = options.pop("patience", 0)
    try:
        with joined(timeout, "cpu") as group:
            job = tiny_job(Path(data), Path(folder), ranks=group, **options)
            job.patience = patience
            if act and rank == ranks - 1:
                taken = [0]

                def count(*_: Any) -> None:
                    taken[0] += job.model.training
                    if taken[0] == act_at:
                        taken[0] += 1
                        os.kill(os.getpid(), act)

                job.model.register_forward_pre_hook(count)
            progress = train(job)
            (Path(folder) / f"rank{rank}.json").write_text(
                json.dumps({"sha256": checkpoint.parameters_sha256(job.model), "final": progress.final})
            )
    except StoppedError:
        sys.exit(STOPPED)
    except LostRankError as error:
        (Path(folder) / f"rank{rank}.lost").write_text(str(error))
        sys.exit(LOST)


def start(context: ForkServerContext, ranks: int, dataset: Dataset, folder: Path, **options: Any) -> list[Any]:
    folder.mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children: list[ForkServerProcess] = []
    for rank in range(ranks):
        arguments = (rank, ranks, port, str(dataset.folder), str(folder), dict(PLAIN) | options)
        child = context.Process(target=rank_body, args=arguments)
        child.start()
        children.append(child)
    return children


def join(children: list[Any], seconds: float = 120.0) -> list[int | None]:
    """Exit codes; a child that is still there after so many seconds is a hang."""
    deadline = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, deadline - time.monotonic()))
    codes = [child.exitcode for child in children]
    for child in children:
        if child.exitcode is None:
            child.kill()
    return codes


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_together_end_where_one_rank_ends(
    tiny: Dataset, processes: ForkServerContext, tmp_path: Path, ranks: int
) -> None:
    """The same samples in the same order: losses agree to float tolerance, and all ranks hold equal networks.

    A stop signal to the last rank alone, then the rest by another number of ranks (one): the same losses still.
    """
    alone = tiny_job(tiny, tmp_path / "alone", **PLAIN)
    train(alone)
    together = tmp_path / "together"
    assert join(start(processes, ranks, tiny, together)) == [0] * ranks
    found = [json.loads((together / f"rank{rank}.json").read_text()) for rank in range(ranks)]
    assert len({item["sha256"] for item in found}) == 1
    assert all(item["final"] == found[0]["final"] for item in found)
    assert_close(together, alone.folder)

    stopped = tmp_path / "stopped"
    assert join(start(processes, ranks, tiny, stopped, act=signal.SIGTERM, act_at=6)) == [STOPPED] * ranks
    assert checkpoint.load(last_path(stopped))[1]["samples_seen"] == 6 * 30
    train(tiny_job(tiny, stopped, **PLAIN))
    assert_close(stopped, alone.folder)


def assert_close(folder: Path, other: Path) -> None:
    """Rows of the same samples, step losses to float tolerance; evaluations of 200 images to two of them."""
    rows, others = read_metrics(folder), read_metrics(other)
    assert [(row["samples_seen"], row["split"]) for row in rows] == [
        (row["samples_seen"], row["split"]) for row in others
    ]
    for row, expected in zip(rows, others, strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=2e-4)
        assert row.get("learning_rate") == expected.get("learning_rate")
        assert row.get("top1", 0) == pytest.approx(expected.get("top1", 0), abs=0.021)


def test_ranks_lose_patience_together(tiny: Dataset, processes: ForkServerContext, tmp_path: Path) -> None:
    """No rate, no progress: the first evaluation stays the best, and every rank ends at the third after it."""
    options = {"learning_rate": 0.0, "evaluations": 16, "polyak": 0.0, "patience": 3}
    assert join(start(processes, 2, tiny, tmp_path, **options)) == [0, 0]
    finals = [json.loads((tmp_path / f"rank{rank}.json").read_text())["final"] for rank in range(2)]
    assert finals[0] == finals[1]
    assert finals[0]["samples_seen"] == 4 * 30


@pytest.mark.parametrize("act, timeout", [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 4.0)])
def test_a_dead_or_silent_rank_ends_the_others(
    tiny: Dataset, processes: ForkServerContext, tmp_path: Path, act: int, timeout: float
) -> None:
    """Killed: at once. Silent: after the timeout that was set. The checkpoint before it is whole."""
    settings = {"checkpoint_seconds": 0.0}
    children = start(processes, 2, tiny, tmp_path, act=act, act_at=5, timeout=timeout, settings=settings)
    assert join(children[:1], 60) == [LOST]
    children[1].kill()
    children[1].join()
    assert "another rank died or was silent" in (tmp_path / "rank0.lost").read_text()
    assert checkpoint.load(last_path(tmp_path))[1]["samples_seen"] == 4 * 30
