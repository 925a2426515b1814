"""A run that is stopped, killed or damaged ends as an undisturbed one, bit for bit."""

import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.data.manifest import Dataset
from harness.errors import ConfigError, HarnessError
from harness.train import checkpoint
from harness.train.loop import Progress, StoppedError, TrainJob, best_path, last_path, train
from tests.train.conftest import tiny_job

Job = Callable[..., TrainJob]


def outcome(job: TrainJob, progress: Progress) -> tuple[Any, ...]:
    """All that two equal runs share."""
    return (
        checkpoint.parameters_sha256(job.model),
        (job.folder / "metrics.jsonl").read_bytes(),
        best_path(job.folder).read_bytes(),
        (progress.samples_seen, progress.best, progress.final),
    )


def run(job: TrainJob) -> tuple[Any, ...]:
    return outcome(job, train(job))


def stop_after(job: TrainJob, steps: int) -> None:
    """Send a real SIGTERM to this process when so many steps are taken."""
    taken = 0

    def count(*_: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == steps:
            os.kill(os.getpid(), signal.SIGTERM)

    job.model.register_forward_pre_hook(lambda *_: count() if job.model.training else None)


@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket"])
def test_a_run_stopped_at_odd_steps_ends_as_an_undisturbed_one(job: Job, model: str) -> None:
    """Dropout, stochastic depth, crops, flips and averaging included; rows of an interval are cut by a stop."""
    whole = run(job("whole", model=model))
    for steps in (3, 1, 8):
        part = job("parts", model=model)
        stop_after(part, steps)
        with pytest.raises(StoppedError, match="of 480 images"):
            train(part)
    assert run(job("parts", model=model)) == whole
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    rows = [json.loads(line) for line in whole[1].splitlines()]
    assert len({(row["samples_seen"], row["split"]) for row in rows}) == len(rows) == 16 + 2 * 4


def test_decoding_workers_change_nothing(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.cache.CACHE_LIMIT_BYTES", 0)
    whole = run(job("whole"))
    part = job("parts", settings={"workers": 2})
    stop_after(part, 7)
    with pytest.raises(StoppedError):
        train(part)
    assert run(job("parts", settings={"workers": 1})) == whole


@pytest.mark.parametrize("optimizer, momentum", [("adam", 0.9), ("sgd", 0.0)])
def test_every_optimiser_resumes(job: Job, optimizer: str, momentum: float) -> None:
    changes = {"optimizer": optimizer, "beta1": momentum, "schedule": "rsqrt", "timescale": "200", "cooldown": "20%"}
    whole = run(job("whole", **changes))
    part = job("parts", **changes)
    stop_after(part, 5)
    with pytest.raises(StoppedError):
        train(part)
    assert run(job("parts", **changes)) == whole


def test_a_finished_run_is_not_trained_again(job: Job) -> None:
    first = run(job())
    again = job()
    stop_after(again, 1)  # a step would raise
    assert run(again) == first


def test_a_checkpoint_is_made_when_time_is_up(job: Job) -> None:
    """With 0 s after every step: and none of it shows in what comes out."""
    often, seldom = job("often", settings={"checkpoint_seconds": 0.0}), job("seldom")
    saved: list[int] = []
    often.heartbeat = lambda **report: saved.append(report["samples_seen"])
    assert run(often) == run(seldom)
    assert saved == list(range(30, 481, 30))


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_newest_checkpoint_falls_back_and_says_so(
    job: Job, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    whole = run(job("damaged"))
    path = last_path(job("damaged").folder)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 1  # a single bit in a tensor: only a digest sees it
    path.write_bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    assert run(job("damaged")) == whole
    said = capsys.readouterr().err
    assert f"{path}: not a readable checkpoint" in said
    assert "going on from" in said
    assert "previous.safetensors" in said


def test_without_a_whole_checkpoint_a_run_refuses_by_name(job: Job) -> None:
    train(job())
    path = last_path(job().folder)
    for generation in (path, checkpoint.previous_path(path)):
        generation.write_bytes(b"garbage")
    with pytest.raises(HarnessError, match=r"last\.safetensors: not a readable checkpoint"):
        train(job())


def test_a_full_disk_is_an_error_that_leaves_the_last_good_checkpoint(job: Job) -> None:
    """A limit on the size of files stands for the full disk: the write fails after some bytes, as there."""
    whole = run(job("whole"))
    part = job("full")
    stop_after(part, 7)
    with pytest.raises(StoppedError):
        train(part)
    path = last_path(part.folder)
    good = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="last good checkpoint") as failure:
            train(job("full"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(path.parent) in str(failure.value)
    assert path.read_bytes() == good
    checkpoint.load(path)
    assert run(job("full")) == whole
    assert not list(path.parent.glob("*.tmp"))


def test_a_damaged_best_is_found_before_training_goes_on(job: Job) -> None:
    """Its weights cannot be had again from the last checkpoint: the run starts from scratch, and ends the same."""
    whole = run(job("whole"))
    part = job("part")
    stop_after(part, 10)
    with pytest.raises(StoppedError):
        train(part)
    best_path(part.folder).write_bytes(b"garbage")
    assert run(job("part")) == whole


def test_an_unknown_stop_signal_is_named(job: Job) -> None:
    with pytest.raises(ConfigError, match="SIGNONE"):
        train(job(settings={"stop_signals": ["SIGNONE"]}))


def train_in_child(data: str, folder: str, changes: dict[str, Any]) -> None:
    """The body of a process to be killed."""
    job = tiny_job(Path(data), Path(folder), settings={"checkpoint_seconds": 0.02}, **changes)
    digest = run(job)[0]
    (Path(folder) / "done").write_text(digest)


def kill_until_done(
    processes: ForkServerContext, dataset: Dataset, folder: Path, kills: int, chance: random.Random, **changes: Any
) -> int:
    """SIGKILL children at random moments, so many times at most; the last one is left to finish. Returns the kills."""
    killed = 0
    while not (folder / "done").exists():
        child = processes.Process(target=train_in_child, args=(str(dataset.folder), str(folder), changes))
        child.start()
        assert child.pid
        if killed < kills:
            child.join(chance.uniform(0.05, 1.2))
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    return killed


def test_sigkill_at_random_moments(job: Job, tiny: Dataset, processes: ForkServerContext) -> None:
    whole = run(job("whole"))
    folder = job("killed").folder
    assert kill_until_done(processes, tiny, folder, kills=4, chance=random.Random(1)) >= 1
    assert run(tiny_job(tiny, folder)) == whole


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket", "hybrid_pocket"])
def test_a_hundred_sigkills_of_a_pocket_run(
    job: Job, tiny: Dataset, processes: ForkServerContext, tmp_path: Path, model: str
) -> None:
    """Of each family; runs are started again until a hundred kills have hit one."""
    changes = {"model": model, "samples_seen": "3000", "evaluations": 10}
    whole = run(job("whole", **changes))
    chance, kills, number = random.Random(model), 0, 0
    deadline = time.monotonic() + 1800
    while kills < 100 and time.monotonic() < deadline:
        folder = tmp_path / f"killed-{number}"
        kills += kill_until_done(processes, tiny, folder, 100 - kills, chance, **changes)
        assert run(tiny_job(tiny, folder, **changes)) == whole
        number += 1
    assert kills == 100


@pytest.mark.slow
def test_bf16_resumes_too(job: Job) -> None:
    def make(name: str) -> TrainJob:
        made = job(name)
        made.precision = "bf16"
        return made

    whole = run(make("whole"))
    part = make("parts")
    stop_after(part, 7)
    with pytest.raises(StoppedError):
        train(part)
    assert run(make("parts")) == whole
    assert not torch.is_autocast_enabled("cpu")
