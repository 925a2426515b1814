"""Studies on a real Slurm: nothing is simulated, jobs are killed, preempted and requeued, the controller restarts."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from harness.run_folder import read_metrics, read_result, read_status, write_atomic
from tests.conftest import harness
from tests.slurm.box import Box, call, require_slurm, slurm_box
from tests.study.conftest import assert_equal_tables, run_folders, tables

WORDS = ["launcher=slurm", "launcher.partition=low"]
PATIENCE_SECONDS = 240


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    require_slurm()
    with slurm_box(tmp_path / "box", 16_900 + 10 * (os.getpid() % 100)) as running:
        yield running


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen; queue: {call('squeue', '-r')}"
        time.sleep(0.01)


def queue_is_empty() -> bool:
    return not call("squeue", "-h", "-r", "-o", "%i").split()


def is_midway(folder: Path) -> bool:
    status = read_status(folder)
    has_checkpoint = (folder / "checkpoints" / "last.safetensors").exists()
    early = 2 * int(status.get("samples_seen") or 0) <= int(status.get("horizon_samples") or 0)
    return status["state"] == "running" and has_checkpoint and early and read_result(folder) is None


def test_killed_preempted_failed_and_a_restarted_controller(
    box: Box, roots: Path, study_file: Path, tmp_path: Path, undisturbed: dict[str, pd.DataFrame]
) -> None:
    """Four runs through sbatch. Each disturbance hits a run of its own; the second command does exactly the rest."""
    study_file.write_text(study_file.read_text().replace('["100", "50%"]', '["100"]'))
    command = ["run", str(study_file), *WORDS]
    broken = prepare_a_damaged_checkpoint(roots, study_file)
    submitted = harness(*command).stdout
    assert "4 runs submitted now" in submitted
    again = harness(*command).stdout
    assert "0 runs submitted now, 4 queued or running before" in again

    preempted, pid = freeze_midway(roots, {broken})
    rows_before = preempt(preempted, pid)
    box.stop("slurmctld")
    box.start_controller()
    box.wait_until_up()
    killed, pid = freeze_midway(roots, {preempted, broken})
    os.kill(pid, signal.SIGKILL)
    until(lambda: read_status(killed)["state"] == "failed", "the killed run's state")
    assert read_status(killed)["reason"] == "killed"
    assert read_status(killed)["error"] == "killed by SIGKILL"
    until(queue_is_empty, "the end of all jobs")

    assert read_status(broken)["reason"] == "error"
    assert "not a readable checkpoint" in read_status(broken)["error"]
    assert int(read_status(preempted)["attempt"]) == 2
    assert int(read_status(preempted)["failures"]) == 0
    assert read_metrics(preempted)[: len(rows_before)] == rows_before
    status = harness("status", str(study_file), "data=tiny").stdout
    assert "2 finished, 0 running, 0 waiting, 2 failed" in status
    halfway = tables(study_file, tmp_path / "halfway")["runs"].set_index("run_id")
    assert halfway["state"].value_counts().to_dict() == {"finished": 2, "failed": 2}
    assert set(halfway.index[halfway["state"] == "failed"]) == {killed.name, broken.name}

    (broken / "checkpoints" / "last.safetensors").unlink()
    finished_before = {folder: (folder / "result.json").stat().st_mtime_ns for folder in finished(roots)}
    rest = harness(*command).stdout
    assert "2 runs submitted now, 0 queued or running before, 2 finished" in rest
    until(queue_is_empty, "the end of the second round")
    of_100 = {name: only_100(table) for name, table in undisturbed.items()}
    assert_equal_tables(tables(study_file, tmp_path / "out"), of_100)
    for folder, modified in finished_before.items():
        assert (folder / "result.json").stat().st_mtime_ns == modified
    assert "0 runs submitted now, 0 queued or running before, 4 finished" in harness(*command).stdout


@pytest.fixture
def two_nodes(tmp_path: Path) -> Iterator[Box]:
    require_slurm()
    with slurm_box(tmp_path / "box", 16_900 + 10 * (os.getpid() % 100), node_count=2) as running:
        yield running


@pytest.mark.slow
def test_a_run_on_two_nodes_and_its_transfer_in_a_job_after_it(two_nodes: Box, roots: Path, study_file: Path) -> None:
    words = ["launcher=slurm", "launcher.nodes=2", "launcher.transfer_apart=true", "launcher.partition=low"]
    command = ["run", str(study_file), *words, "model=vit_pocket", "subset=100", "seed=0"]
    submitted = harness(*command).stdout
    assert "1 runs submitted now" in submitted
    waiting = call("squeue", "-h", "-r", "-o", "%E").split()  # what each job waits for
    assert sum(text.startswith("aftercorr:") for text in waiting) == 1
    until(queue_is_empty, "the end of both jobs")
    (folder,) = run_folders(roots)
    outputs = "\n".join(path.read_text() for path in (folder.parent / "slurm").glob("*.out"))
    result = read_result(folder)
    assert result is not None, outputs + (folder / "log.txt").read_text()
    assert result["device_count"] == 2
    assert len(list((folder / "transfer").glob("*.json"))) == 1
    assert read_status(folder)["attempt"] == 2  # one a job
    assert "0 runs submitted now, 0 queued or running before, 1 finished" in harness(*command).stdout


def only_100(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of runs on 100 images."""
    return table[table["run_id"].str.contains("-100-")].reset_index(drop=True)


def prepare_a_damaged_checkpoint(roots: Path, study_file: Path) -> Path:
    """The folder of a run that will fail each time: its checkpoint is no checkpoint."""
    lines = harness("run", str(study_file), "--dry-run").stdout.splitlines()
    run_id = next(word for line in lines for word in line.split() if word.startswith("resnet_pocket-100-s1"))
    folder = roots / "tinystudy@tiny" / run_id
    write_atomic(folder / "checkpoints" / "last.safetensors", "garbage")
    return folder


def finished(roots: Path) -> list[Path]:
    return [folder for folder in run_folders(roots) if read_result(folder)]


def freeze_midway(roots: Path, others: set[Path]) -> tuple[Path, int]:
    """Freeze a run that is training and has a checkpoint, so that what follows hits it there; its folder and pid."""
    found: list[tuple[Path, int]] = []

    def look() -> bool:
        for folder in run_folders(roots):
            if folder in others or not is_midway(folder):
                continue
            pid = int(read_status(folder)["pid"])
            try:
                os.kill(pid, signal.SIGSTOP)
            except ProcessLookupError:
                continue
            if is_midway(folder):
                found.append((folder, pid))
                return True
            os.kill(pid, signal.SIGCONT)
        return False

    until(look, "a run with a checkpoint")
    return found[0]


def preempt(target: Path, pid: int) -> list[dict[str, object]]:
    """Let a job of the high partition take both cores while the run is frozen; returns the rows it had then."""
    rows = read_metrics(target)
    subprocess.run(
        ["sbatch", "--partition=high", "--ntasks=2", "--mem=100M", "--time=5", "--output=/dev/null", "--wrap=sleep 1"],
        check=True,
        capture_output=True,
    )
    until(lambda: has_pending(pid, signal.SIGTERM), "the warning of preemption")
    os.kill(pid, signal.SIGCONT)
    until(lambda: read_status(target).get("reason") == "interrupted" or read_result(target), "the checkpoint")
    assert read_result(target) is None
    return rows


def has_pending(pid: int, number: int) -> bool:
    """Whether a signal waits for a stopped process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd"))]
    return any(mask >> (number - 1) & 1 for mask in masks)
