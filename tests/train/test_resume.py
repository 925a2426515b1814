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

from harness.data import cache
from harness.data.manifest import Dataset
from harness.errors import ConfigError, HarnessError
from harness.experiment import execute_logged
from harness.results_schema import RUNS
from harness.run_folder import read_result, read_status, write_atomic
from harness.submission import EXIT_REQUEUE
from harness.train import checkpoint
from harness.train.loop import Progress, StoppedError, TrainJob, best_path, last_path, train
from tests.conftest import TINY_DATA, harness
from tests.train.conftest import stop_after, tiny_job

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


def test_stop_signals_are_the_users_choice(job: Job) -> None:
    part = job(settings={"stop_signals": ["SIGUSR2"]})
    stop_after(part, 4, signal.SIGUSR2)
    with pytest.raises(StoppedError, match="told to stop at 120 of 480 images"):
        train(part)
    assert checkpoint.load(last_path(part.folder))[1]["samples_seen"] == 120


def test_a_stopped_process_asks_to_be_started_again(roots: Path, processes: ForkServerContext) -> None:
    """SIGTERM to a whole run: exit code 85, status waiting; started again it ends as an undisturbed one."""
    words = ["subset=300", "recipe.samples_seen=8k", "recipe.batch_size=64", "recipe.evaluations=4", *TINY_DATA]
    words += ["transfer.baselines=false", "transfer.support_seeds=[0]"]
    harness("train", *words, "study=undisturbed")
    whole = next(roots.glob("undisturbed@tiny/*/config.yaml")).parent
    folder = roots / "stopped@tiny" / whole.name
    write_atomic(folder / "config.yaml", (whole / "config.yaml").read_bytes())
    environment = {name: os.environ[name] for name in ("HARNESS_DATA", "HARNESS_RUNS")}
    child = processes.Process(target=execute_logged, args=(str(folder), environment))
    child.start()
    assert child.pid
    deadline = time.monotonic() + 60
    while not read_status(folder).get("samples_seen") and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGTERM)
    child.join()
    assert child.exitcode == EXIT_REQUEUE == 85
    status = read_status(folder)
    assert (status["state"], status["reason"]) == ("waiting", "interrupted")
    assert "told to stop at" in status["error"]
    kill_runs(processes, folder, environment, 0, random.Random(0))
    assert equal_parts(folder) == equal_parts(whole)
    assert read_result(folder)["attempt"] == 2  # type: ignore[index]


def train_in_child(data: str, folder: str, workers: int) -> None:
    """The body of a process to be killed; with workers, images are decoded by processes and not kept."""
    if workers:
        cache.CACHE_LIMIT_BYTES = 0
    job = tiny_job(Path(data), Path(folder), settings={"checkpoint_seconds": 0.02, "workers": workers})
    digest = run(job)[0]
    (Path(folder) / "done").write_text(digest)


@pytest.mark.parametrize("workers", [0, 2])
def test_sigkill_at_random_moments(job: Job, tiny: Dataset, processes: ForkServerContext, workers: int) -> None:
    """Crops and flips are drawn again as they were, whoever decodes; processes that decode end with their parent."""
    whole = run(job("whole"))
    folder, chance, killed = job("killed").folder, random.Random(workers), 0
    while not (folder / "done").exists():
        child = processes.Process(target=train_in_child, args=(str(tiny.folder), str(folder), workers))
        child.start()
        assert child.pid
        if killed < 4:
            child.join(chance.uniform(0.3, 1.2))
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
    assert killed >= 1
    assert (folder / "done").read_text() == whole[0]
    assert run(tiny_job(tiny, folder)) == whole


def equal_parts(folder: Path) -> tuple[Any, ...]:
    """What two runs of one configuration share, whatever happened to them: columns that may differ are left out."""
    result = read_result(folder)
    assert result is not None
    fixed = {name: value for name, value in result.items() if not (name in RUNS and RUNS[name].volatile)}
    transfer = [path.read_bytes() for path in sorted((folder / "transfer").glob("*.json"))]
    return fixed, (folder / "metrics.jsonl").read_bytes(), best_path(folder).read_bytes(), transfer


def kill_runs(
    processes: ForkServerContext, folder: Path, environment: dict[str, str], kills: int, chance: random.Random
) -> int:
    """Execute a submitted run until it is finished, killed at random moments, so many times at most."""
    killed = 0
    while True:
        child = processes.Process(target=execute_logged, args=(str(folder), environment))
        child.start()
        assert child.pid
        if killed < kills:
            child.join(chance.uniform(0.1, 3.0))
            if child.exitcode is None:
                os.kill(child.pid, signal.SIGKILL)
                killed += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL), (folder / "log.txt").read_text()[-2000:]
        if child.exitcode == 0:
            return killed


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket", "hybrid_pocket"])
def test_a_hundred_sigkills_of_a_pocket_run(roots: Path, processes: ForkServerContext, model: str) -> None:
    """Whole runs from data to result.json, crops, flips and averaging included; of each family a hundred kills.

    A run is killed until it is finished, then a copy of it begins anew, until a hundred kills have hit one.
    """
    words = [f"model={model}", "subset=300", "recipe.samples_seen=24k", "recipe.batch_size=64", "recipe.evaluations=8"]
    words += ["recipe.train_eval_samples=100", "recipe.random_resized_crop=true", "recipe.flip=true"]
    words += ["recipe.stochastic_depth=0.1", "recipe.polyak=0.99", "loop.checkpoint_seconds=0.3", *TINY_DATA]
    environment = {name: os.environ[name] for name in ("HARNESS_DATA", "HARNESS_RUNS")}
    harness("train", *words, "study=undisturbed")
    whole = next(roots.glob("undisturbed@tiny/*/config.yaml")).parent
    chance, kills, number = random.Random(model), 0, 0
    while kills < 100:
        folder = roots / f"killed{number}@tiny" / whole.name
        write_atomic(folder / "config.yaml", (whole / "config.yaml").read_bytes())
        kills += kill_runs(processes, folder, environment, 100 - kills, chance)
        assert equal_parts(folder) == equal_parts(whole)
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
