"""What ends a run early, what it says meanwhile, and how it is laid out on its machine."""

import io
import json
import os
import re
import resource
import subprocess
import sys
import tarfile
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from harness.config import LoopConfig
from harness.data.manifest import Dataset
from harness.data.order import order
from harness.errors import ConfigError
from harness.run_folder import read_metrics, read_result, read_status
from harness.train import checkpoint
from harness.train.distributed import ALONE
from harness.train.divergence import DivergedError, FiniteWatch
from harness.train.early_stop import is_better, out_of_patience
from harness.train.loop import StoppedError, TrainJob, best_path, evaluate_split, train
from harness.train.prepare import OutOfMemoryError, lay_out, micro_batch_size, trial
from harness.train.progress_line import ProgressLine, line
from harness.train.step import Step
from tests.conftest import ROOT, TINY_DATA, harness
from tests.train.conftest import RECIPE, stop_after, tiny_job

Job = Callable[..., TrainJob]


@pytest.mark.parametrize("best_by", ["top1", "loss", "mean_per_class"])
def test_the_best_evaluation_along_the_horizon_is_kept(job: Job, best_by: str) -> None:
    """The rate is absurd at the end of no schedule: the last evaluation is not the best one by any measure."""
    taken = job(best_by=best_by, evaluations=8, schedule="constant", learning_rate=0.02)
    progress = train(taken)
    rows = [row for row in read_metrics(taken.folder) if row["split"] == "val"]
    choose = min if best_by == "loss" else max
    best = choose(rows, key=lambda row: row[best_by])
    assert progress.best is not None
    assert progress.best["samples_seen"] == best["samples_seen"]
    tensors, state = checkpoint.load(best_path(taken.folder))
    assert state == progress.best
    assert set(tensors) == {f"model/{name}" for name in taken.model.state_dict()}


def test_a_lower_loss_is_better_and_the_earliest_of_equals_stays() -> None:
    low, high = ({"val_top1": 0.5, "val_loss": loss, "val_mean_per_class": 0.1} for loss in (1.0, 2.0))
    assert is_better(low, high, "loss")
    assert not is_better(high, low, "loss")
    assert not is_better(low, dict(low), "loss")
    assert not is_better(low, high, "top1")
    assert not out_of_patience(10**6, 0)
    assert [out_of_patience(count, 2) for count in (0, 1, 2)] == [False, False, True]


def test_patience_counts_on_after_a_restart(job: Job) -> None:
    """No rate, no progress: the first evaluation stays the best, and the third after it is the last."""
    changes = {"learning_rate": 0.0, "evaluations": 16, "polyak": 0.0}

    def impatient(name: str) -> TrainJob:
        made = job(name, **changes)
        made.patience = 3
        return made

    whole = impatient("whole")
    assert train(whole).samples_seen == 4 * 30
    part = impatient("part")
    stop_after(part, 3)
    with pytest.raises(StoppedError):
        train(part)
    assert train(impatient("part")).samples_seen == 4 * 30
    assert read_metrics(part.folder) == read_metrics(whole.folder)


def test_overfitting_is_a_number(job: Job) -> None:
    """The training sample is the first 50 images of the window, in evaluation mode: evaluated again it is the same."""
    taken = job(polyak=0.0)
    progress = train(taken)
    assert progress.final is not None
    assert progress.final["train_eval_samples"] == 50
    again = evaluate_split(taken, "train", taken.window.split_positions(np.arange(50)))
    assert (again.top1, again.loss) == (progress.final["train_top1"], progress.final["train_loss"])


def images_in(shard: Path) -> list[str]:
    """Keys in the order of the tar, by Python's own reader."""
    with tarfile.open(shard) as tar:
        return [Path(name).stem for name in tar.getnames() if name.endswith(".png")]


@pytest.mark.parametrize("bad_step", [1, 10])
def test_divergence_names_the_step_its_rate_and_its_samples(job: Job, tiny: Dataset, bad_step: int) -> None:
    """A weight that is not a number from one step on; the keys are those of that step's batch, by the order itself."""
    taken = job()
    steps = [0]

    def spoil(module: nn.Module, *_: Any) -> None:
        steps[0] += module.training
        if steps[0] == bad_step and module.training:
            with torch.no_grad():
                next(module.parameters()).fill_(float("nan"))

    taken.model.register_forward_pre_hook(spoil)
    with pytest.raises(DivergedError, match=rf"loss is nan .* at step {bad_step} \(learning rate") as failure:
        train(taken)
    report = json.loads((taken.folder / "diverged.json").read_text())
    assert (report["step"], report["samples_seen"]) == (bad_step, (bad_step - 1) * 30)
    stored = [name for shard in tiny.shards("train") for name in images_in(Path(str(shard)))]
    places = (divmod(place, 100) for place in range((bad_step - 1) * 30, bad_step * 30))
    window_places = np.array([order(0, epoch, position, 100) for epoch, position in places])
    keys = [stored[position] for position in taken.window.split_positions(window_places)]
    assert report["sample_keys"] == keys
    assert keys[0] in str(failure.value)
    assert all(row["samples_seen"] < bad_step * 30 for row in read_metrics(taken.folder))


@pytest.mark.parametrize("bad", [(600, 700), (513,), (512, 513), (1300,)])
def test_the_first_bad_step_is_the_one_that_is_told(bad: tuple[int, ...]) -> None:
    """Whatever the number of steps between two looks at the device."""
    watch = FiniteWatch()
    for step in range(1, 1301):
        loss = float("nan") if step in bad else 1.0
        watch.note(step, Step(torch.tensor(loss), torch.tensor(2.0)))
    with pytest.raises(DivergedError, match=f"norm 2 at step {bad[0]} "):
        watch.check(lambda step: f"step {step}", lambda flag: flag)


def test_a_gradient_alone_that_is_not_finite_is_divergence_too(job: Job) -> None:
    taken = job()
    next(taken.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(DivergedError, match=r"gradient's norm (inf|nan) at step 1 "):
        train(taken)


def train_in_little_memory(data: str, folder: str) -> None:
    """The body of a process whose memory ends a little above what it has."""
    job = tiny_job(Path(data), Path(folder), batch_size=3000, samples_seen="9000", train_eval_samples=10)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + 120 * 2**20,) * 2)
    try:
        train(job)
    except OutOfMemoryError as error:
        (Path(folder) / "said").write_text(str(error))


def test_out_of_memory_names_the_micro_batch_and_what_to_set(
    tiny: Dataset, processes: ForkServerContext, tmp_path: Path
) -> None:
    child = processes.Process(target=train_in_little_memory, args=(str(tiny.folder), str(tmp_path)))
    child.start()
    child.join(60)
    said = (tmp_path / "said").read_text()
    assert "out of memory at step 1 with a micro-batch of 3000 images" in said
    assert "set loop.micro_batch=1500 (the batch stays what it is)" in said


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_the_probe_halves_until_it_fits_and_always_divides(share: int, room: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= room

    size = micro_batch_size(share, None, 0, ALONE, fits)
    assert share % size == 0
    assert size <= room or size == 1
    assert tried == sorted(set(tried), reverse=True)
    assert tried[:1] == [share][: share > 1]


def test_what_is_configured_or_was_used_before_comes_before_the_probe() -> None:
    def never(size: int) -> bool:
        raise AssertionError

    assert micro_batch_size(96, 40, 0, ALONE, never) == 32
    assert micro_batch_size(96, None, 24, ALONE, never) == 24
    assert micro_batch_size(96, None, 0, ALONE, None) == 96
    assert micro_batch_size(96, 500, 0, ALONE, None) == 96


def test_a_trial_leaves_gradients_and_running_statistics_as_they_were() -> None:
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 3))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert trial(model, RECIPE, "fp32", (1, 2, 2), torch.device("cpu"))(5)
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket", "hybrid_pocket"])
def test_activation_checkpointing_changes_no_bit_and_channels_last_little(job: Job, model: str) -> None:
    changes: dict[str, Any] = {"model": model, "samples_seen": "120", "evaluations": 1}
    found = []
    for name, settings in (
        ("plain", {}),
        ("again", {"activation_checkpointing": True}),
        ("last", {"channels_last": True}),
    ):
        taken = job(name, settings=settings, **changes)
        train(taken)
        found.append(taken)
    assert checkpoint.parameters_sha256(found[0].model) == checkpoint.parameters_sha256(found[1].model)
    for rows in zip(read_metrics(found[0].folder), read_metrics(found[2].folder), strict=True):
        assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=1e-3)
    kernels = [p for p in found[2].model.parameters() if p.ndim == 4 and p.shape[1] > 1 and p.shape[2] > 1]
    assert all(kernel.is_contiguous(memory_format=torch.channels_last) for kernel in kernels)


def test_a_network_without_activation_checkpointing_is_named() -> None:
    with pytest.raises(ConfigError, match="activation_checkpointing"):
        lay_out(nn.Linear(1, 1), LoopConfig(activation_checkpointing=True))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket"])
def test_a_compiled_network_learns_what_the_plain_one_does(job: Job, model: str) -> None:
    changes: dict[str, Any] = {"model": model, "dropout": 0.0, "stochastic_depth": 0.0}
    plain, fast = job("plain", **changes), job("fast", settings={"compile": True}, **changes)
    train(plain)
    train(fast)
    for rows in zip(read_metrics(plain.folder), read_metrics(fast.folder), strict=True):
        assert rows[1]["loss"] == pytest.approx(rows[0]["loss"], rel=1e-3)


REPORT = {
    "samples_seen": 51_200,
    "horizon_samples": 256_000,
    "images_per_second": 8912.4,
    "eta_seconds": 23.0,
    "loss": 1.2341,
    "val_top1": 0.567,
    "flops_per_second": 1.7e10,
    "share_of_peak": 0.21,
}
LINE = (
    "51,200 of 256,000 images · 0:23 left · 8,912 images/s · loss 1.234 · val top-1 56.7 % · 17 GFLOP/s (21 % of peak)"
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_progress_line() -> None:
    assert line(REPORT) == LINE
    nothing_yet = dict.fromkeys(REPORT) | {"samples_seen": 0, "horizon_samples": 256_000}
    assert line(nothing_yet) == "0 of 256,000 images"
    plain = io.StringIO()
    shown = ProgressLine(plain)
    for samples in (1, 2, 256_000):  # the first, none within ten seconds, the last
        shown.show(REPORT | {"samples_seen": samples})
    assert [text.split()[0] for text in plain.getvalue().splitlines()] == ["1", "256,000"]
    terminal = Terminal()
    live = ProgressLine(terminal)
    for samples in (1, 2, 256_000):
        live.show(REPORT | {"samples_seen": samples})
    assert terminal.getvalue().count("\r\x1b[2K") == 3
    assert terminal.getvalue().count("\n") == 1
    live.close()
    assert terminal.getvalue().count("\n") == 1
    live.show(REPORT)
    live.close()
    assert terminal.getvalue().count("\n") == 2


def test_two_ranks_under_torchrun_are_one_run(roots: Path) -> None:
    """The command that the launcher starts on a machine of several devices: one result, speeds and seconds of both."""
    words = ["recipe.samples_seen=480", "recipe.batch_size=30", "recipe.evaluations=4", "subset=100"]
    words += ["transfer.baselines=false", "transfer.support_seeds=[0]"]
    harness("train", *TINY_DATA, *words, "study=alone")
    alone = next(roots.glob("alone@*/*/result.json")).parent
    folder = roots / "together@tiny" / alone.name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_bytes((alone / "config.yaml").read_bytes())
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*torchrun, "-m", "harness.experiment", str(folder)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert read_status(folder)["state"] == "finished"
    result, expected = read_result(folder), read_result(alone)
    assert result is not None
    assert expected is not None
    assert (result["device_count"], expected["device_count"]) == (2, 1)
    assert result["val_loss_final"] == pytest.approx(expected["val_loss_final"], rel=1e-3)
    assert [row["samples_seen"] for row in read_metrics(folder)] == [row["samples_seen"] for row in read_metrics(alone)]
    seconds = result["samples_seen"] * 2 / result["images_per_second"]
    assert result["device_seconds_train"] == pytest.approx(seconds)
    lines = [text for text in done.stdout.splitlines() if re.search(r"480 of 480 images", text)]
    assert len(lines) == 1  # the first rank alone shows progress
