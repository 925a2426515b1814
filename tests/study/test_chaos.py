"""Minutes of random SIGKILLs of runs, launcher, fork server and all at once: the table at the end is the same."""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import psutil
import pytest

from harness.run_folder import read_result, read_status
from tests.conftest import STUDY, TINY_DATA, harness, start_harness
from tests.study.conftest import assert_equal_tables, run_folders, tables

CHAOS_SECONDS = 240
RUNS = 20


@pytest.fixture
def chaos_study(tmp_path: Path) -> Path:
    path = tmp_path / "tinystudy.yaml"
    text = STUDY.format(data=", ".join(TINY_DATA[1:]), samples=12_800)
    path.write_text(text.replace("seed: [0, 1]", "seed: [0, 1, 2, 3, 4]"))
    return path


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def strike(process: "subprocess.Popen[str]", runs: Path, rng: random.Random) -> str:
    """Kill something that is alive; returns what, or nothing when it was quicker."""
    what = rng.choices(["run", "launcher", "server", "all"], [12, 2, 1, 1])[0]
    if what == "run":
        training = [f for f in run_folders(runs) if read_status(f)["state"] == "running" and not read_result(f)]
        return what if training and kill(int(read_status(rng.choice(training))["pid"])) else ""
    if process.poll() is not None:
        return ""
    if what == "all":
        os.killpg(process.pid, signal.SIGKILL)
        return what
    if what == "launcher":
        return what if kill(process.pid) else ""
    servers = [p.pid for p in psutil.Process(process.pid).children() if "forkserver" in " ".join(p.cmdline())]
    return what if servers and kill(servers[0]) else ""


@pytest.mark.slow
def test_the_table_after_minutes_of_kills_is_the_undisturbed_one(
    roots: Path, chaos_study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["run", str(chaos_study), "launcher.max_failures_per_run=1000"]
    rng = random.Random(0)
    strikes: Counter[str] = Counter()
    started, process = time.monotonic(), start_harness(*command)
    while time.monotonic() - started < CHAOS_SECONDS:
        time.sleep(rng.expovariate(1 / 2))
        try:
            strikes[strike(process, roots, rng)] += 1
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue
        if process.poll() is not None:
            process.communicate()
            if sum(read_result(folder) is not None for folder in run_folders(roots)) == RUNS:
                break
            process = start_harness(*command)
    process.wait()
    done = harness(*command)
    assert " 0 failed" in done.stdout
    print(strikes, {folder.name: read_status(folder)["attempt"] for folder in run_folders(roots)})
    assert strikes["run"] >= 10
    assert strikes["launcher"] + strikes["all"] >= 2
    disturbed = tables(chaos_study, tmp_path / "disturbed")
    assert (disturbed["runs"]["state"] == "finished").sum() == RUNS
    monkeypatch.setenv("HARNESS_RUNS", str(tmp_path / "undisturbed"))
    harness(*command)
    reference: dict[str, pd.DataFrame] = tables(chaos_study, tmp_path / "reference")
    assert_equal_tables(disturbed, reference)
    for folder in run_folders(roots):
        twin = tmp_path / "undisturbed" / folder.parent.name / folder.name
        assert (folder / "metrics.jsonl").read_bytes() == (twin / "metrics.jsonl").read_bytes()
