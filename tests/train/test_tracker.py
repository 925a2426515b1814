"""The mirror at wandb: complete by wandb's own reader, also after a stop, and never in the way of training."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.compose import compose
from harness.config import TrackerConfig
from harness.data.manifest import Dataset
from harness.errors import ConfigError
from harness.run_folder import read_metrics
from harness.train import tracker
from harness.train.loop import StoppedError, TrainJob, train
from harness.train.tracker import mode_of, start_tracker
from tests.conftest import TINY_DATA, harness
from tests.train.conftest import stop_after, tiny_job

Job = Callable[..., TrainJob]
RUN_ID = "tiny-0a1b2c3d"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def train_mirrored(job: TrainJob, *overrides: str) -> None:
    with start_tracker(compose(["tracker=wandb", *overrides]), RUN_ID, job.folder) as job.mirror:
        train(job)


def run_files(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)


def read_back(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """Run id and logged steps, without wandb's own fields, as `wandb leet inspect` reads them."""
    words = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(path)]
    records = [json.loads(line) for line in subprocess.check_output(words, text=True).splitlines()]
    (run_id,) = {record["run"]["run_id"] for record in records if record["type"] == "run"}
    items = [record["history"]["item"] for record in records if record["type"] == "history"]
    return run_id, [{key: value for key, value in item.items() if key[0] != "_"} for item in items]


def as_logged(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl as wandb should have it: one step for all rows of the same samples seen."""
    steps: dict[int, dict[str, Any]] = {}
    for row in read_metrics(folder):
        step = steps.setdefault(row["samples_seen"], {"samples_seen": row["samples_seen"]})
        step |= {f"{row['split']}/{key}": value for key, value in row.items() if key not in ("samples_seen", "split")}
    return list(steps.values())


def test_the_offline_file_holds_metrics_jsonl_also_after_a_stop(job: Job) -> None:
    """Two attempts, two files of one run id; the newer one has the rows of both."""
    part = job()
    stop_after(part, 7)
    with pytest.raises(StoppedError):
        train_mirrored(part)
    train_mirrored(job())
    files = run_files(part.folder)
    whole = as_logged(part.folder)
    assert len(files) == 2
    assert len(whole) == 16
    assert read_back(files[1]) == (RUN_ID, whole)
    assert read_back(files[0]) == (RUN_ID, whole[:7])


def test_sync_replays_metrics_jsonl_of_a_run_and_of_a_folder_of_runs(roots: Path) -> None:
    words = ["recipe.samples_seen=480", "recipe.batch_size=30", "recipe.evaluations=4", "subset=100"]
    harness("train", *TINY_DATA, *words)
    (folder,) = [path.parent for path in roots.glob("*/*/config.yaml")]
    assert not run_files(folder)
    done = harness("sync", str(folder))
    assert f"{folder.name}: 24 rows to a file below {folder / 'wandb'} (no key" in done.stdout
    assert read_back(run_files(folder)[0]) == (folder.name, as_logged(folder))
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text("nothing: here\n")
    assert harness("sync", folder.parent.name, check=False).returncode == 2
    (folder / "config.yaml").write_text(config)
    assert "no run's folder" in harness("sync", "nowhere", check=False).stderr


def test_a_dead_network_is_a_warning_and_the_file_is_written_offline(
    job: Job, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A key and a server where nobody listens: training ends as without a tracker."""
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(tracker, "INIT_SECONDS", 1.0)
    assert mode_of(TrackerConfig(name="wandb")) == "online"
    plain, mirrored = job("plain"), job("mirrored")
    train(plain)
    train_mirrored(mirrored)
    assert (mirrored.folder / "metrics.jsonl").read_bytes() == (plain.folder / "metrics.jsonl").read_bytes()
    said = capfd.readouterr().err
    assert "warning: wandb: " in said
    assert "written offline" in said
    assert "0" * 40 not in said
    assert read_back(run_files(mirrored.folder)[-1]) == (RUN_ID, as_logged(plain.folder))


def train_with_a_frozen_service(data: str, folder: str) -> None:
    """The body of a process in which wandb's service stops answering after the first rows."""
    tracker.CLOSE_SECONDS = 1.0
    for name in [name for name in os.environ if name.startswith("WANDB_SERVICE")]:
        del os.environ[name]  # of the tests' own process: this one is to have a service of its own
    job = tiny_job(Path(data), Path(folder))
    with start_tracker(compose(["tracker=wandb"]), RUN_ID, job.folder) as mirror:

        def freeze(rows: tracker.Rows) -> None:
            mirror(rows)
            while not run_files(job.folder):
                time.sleep(0.01)
            (service,) = [p.pid for p in psutil.Process().children(recursive=True) if "wandb-core" in p.cmdline()[0]]
            (job.folder / "frozen").write_text(str(service))
            os.kill(service, signal.SIGSTOP)

        job.mirror = freeze
        train(job)


def test_a_service_that_hangs_never_stops_training(
    job: Job, tiny: Dataset, processes: ForkServerContext, tmp_path: Path
) -> None:
    """As a full disk or a network that swallows everything makes it: the run ends by itself, all its rows written."""
    plain = job("plain")
    train(plain)
    folder = tmp_path / "frozen-run"
    child = processes.Process(target=train_with_a_frozen_service, args=(str(tiny.folder), str(folder)))
    child.start()
    child.join(60)
    ended = child.exitcode
    os.kill(int((folder / "frozen").read_text()), signal.SIGKILL)
    child.join(10)
    assert ended == 0
    assert (folder / "metrics.jsonl").read_bytes() == (plain.folder / "metrics.jsonl").read_bytes()


def test_unknown_trackers_and_modes_are_named(tmp_path: Path) -> None:
    config = compose(["tracker=wandb", "tracker.name=wandbb"])
    with pytest.raises(ConfigError, match="wandb"), start_tracker(config, RUN_ID, tmp_path):
        pass
    with pytest.raises(ConfigError, match="auto, online or offline"):
        mode_of(TrackerConfig(name="wandb", mode="of"))


def test_a_key_of_wandb_login_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrackerConfig(name="wandb")
    assert mode_of(config) == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai\n  login user\n  password x\n")
    assert mode_of(config) == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mode_of(config) == "offline"
