"""The flags of `harness run`, retry limits, what is kept, and what another machine's folders count for."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from harness.run_folder import read_json, read_result, read_status, write_atomic, write_json, write_status
from harness.study.todo import What, examine
from tests.conftest import harness, start_harness
from tests.study.conftest import run_folders

TINY = ["recipe.samples_seen=320", "recipe.evaluations=1"]  # ten steps


def words(study: Path, *more: str) -> list[str]:
    return ["run", str(study), "model=vit_pocket", "subset=100", *TINY, *more]


def test_a_dry_run_says_what_would_be_done_and_starts_nothing(roots: Path, study_file: Path) -> None:
    shown = harness(*words(study_file, "--dry-run")).stdout
    assert shown.count("not started yet") == 2
    assert "2 start; nothing was started" in shown
    assert not roots.exists()
    harness(*words(study_file, "seed=0"))
    lost, done = "", run_folders(roots)[0]
    for cell in json.loads(harness("plan", str(study_file), *TINY, "--json").stdout):
        if cell["run_id"].startswith("vit_pocket-100-s1"):
            lost = cell["run_id"]
    write_status(roots / "tinystudy@tiny" / lost, "running", attempt=1, pid=1, host="elsewhere")
    status = read_json(roots / "tinystudy@tiny" / lost / "status.json")
    assert status is not None
    write_json(roots / "tinystudy@tiny" / lost / "status.json", status | {"heartbeat": time.time() - 500})
    shown = harness(*words(study_file, "--dry-run")).stdout
    assert f"{done.name}" in shown
    assert "result.json is there" in shown
    assert "lost at attempt 1" in shown
    assert "1 finished, 1 resume; nothing was started" in shown


def break_run(roots: Path, study: Path) -> Path:
    """Make the run of seed 0 fail each time: its checkpoint is none."""
    rows = json.loads(harness("plan", str(study), "model=vit_pocket", "subset=100", "seed=0", *TINY, "--json").stdout)
    folder = roots / "tinystudy@tiny" / rows[0]["run_id"]
    write_atomic(folder / "checkpoints" / "last.safetensors", "garbage")
    return folder


def test_failed_runs_are_tried_again_up_to_the_limit_then_only_on_demand(roots: Path, study_file: Path) -> None:
    broken = break_run(roots, study_file)
    limit = "launcher.max_failures_per_run=2"
    first = harness(*words(study_file, limit), check=False)
    assert first.returncode == 1
    assert "1 runs finished now, 0 before, 1 failed" in first.stdout
    assert "last.safetensors: not a readable checkpoint" in first.stdout
    assert read_status(broken)["failures"] == 1
    harness(*words(study_file, limit), check=False)
    assert read_status(broken)["failures"] == 2
    third = harness(*words(study_file, limit), check=False)
    assert third.returncode == 1
    assert "failed 2 times and is not tried again" in third.stdout
    assert read_status(broken)["attempt"] == 2
    (broken / "checkpoints" / "last.safetensors").unlink()
    asked = harness(*words(study_file, limit, "--only", "failed"))
    assert "1 runs finished now" in asked.stdout
    assert read_result(broken) is not None


def test_no_more_runs_start_after_max_failures(roots: Path, study_file: Path) -> None:
    break_run(roots, study_file)
    done = harness(*words(study_file, "launcher.slots=1", "--max-failures", "1"), check=False)
    assert done.returncode == 1
    assert "1 runs were not started: --max-failures was reached" in done.stdout
    assert len(run_folders(roots)) == 1


def test_a_rerun_starts_from_scratch_and_sets_the_old_folder_aside(roots: Path, study_file: Path) -> None:
    one = words(study_file, "seed=0")
    harness(*one)
    folder = run_folders(roots)[0]
    before = (folder / "result.json").read_bytes()
    shown = harness(*one, "--rerun").stdout
    assert "1 runs finished now, 0 before" in shown
    old = roots / "tinystudy@tiny" / ".replaced" / f"{folder.name}.1"
    assert (old / "result.json").read_bytes() == before
    assert read_status(folder)["attempt"] == 1
    again, earlier = read_result(folder), json.loads(before)
    assert again is not None
    assert again["parameters_sha256"] == earlier["parameters_sha256"]
    assert run_folders(roots) == [folder]


def test_checkpoints_of_finished_runs_are_pruned_to_the_best_unless_all_are_kept(roots: Path, study_file: Path) -> None:
    harness(*words(study_file, "seed=0"))
    harness(*words(study_file, "seed=1", "keep=all"))
    kept = [sorted(path.name for path in (folder / "checkpoints").iterdir()) for folder in run_folders(roots)]
    assert kept == [["best.safetensors"], ["best.safetensors", "last.safetensors"]]
    wrong = harness(*words(study_file, "keep=some"), check=False)
    assert "keep=some: use best or all" in wrong.stderr


def test_folders_from_another_machine_without_checkpoints_count_as_finished(
    roots: Path, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness(*words(study_file))
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(roots, elsewhere, ignore=shutil.ignore_patterns("checkpoints", ".lock"))
    monkeypatch.setenv("HARNESS_RUNS", str(elsewhere))
    assert "0 runs finished now, 2 before, 0 failed" in harness(*words(study_file)).stdout
    from harness.study import plan as planning

    plan = planning.make(str(study_file), ["model=vit_pocket", "subset=100", *TINY, "transfer.l2=1.0"])
    todos = [examine(cell, plan.folder) for cell in plan.selected]
    assert {todo.what for todo in todos} == {What.FINISHED}
    assert "needs a checkpoint" in todos[0].why


def test_detached_it_returns_at_once_and_goes_on(roots: Path, study_file: Path) -> None:
    started = time.monotonic()
    shown = harness(*words(study_file, "--detach")).stdout
    pid = int(shown.split("pid ")[1].split(",")[0])
    assert time.monotonic() - started < 30
    assert os.getsid(pid) != os.getsid(0)
    assert psutil.Process(pid).wait(timeout=120) in (0, None)
    log = (roots / "tinystudy@tiny" / "launcher.log").read_text()
    assert "2 runs finished now, 0 before, 0 failed" in log


def test_sigterm_to_the_launcher_ends_its_runs_and_the_same_command_goes_on(roots: Path, study_file: Path) -> None:
    long = ["run", str(study_file), "model=vit_pocket", "subset=100", "seed=0", "recipe.samples_seen=12k"]
    process = start_harness(*long)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        folders = run_folders(roots)
        if folders and (folders[0] / "checkpoints" / "last.safetensors").exists():
            break
        time.sleep(0.01)
    run_pid = int(read_status(folders[0])["pid"])
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 143, output
    assert not psutil.pid_exists(run_pid)
    assert read_status(folders[0])["reason"] == "interrupted"
    assert "1 runs were interrupted and go on" in harness(*long).stdout
    assert read_status(folders[0])["attempt"] == 2
    assert read_status(folders[0])["failures"] == 0


@pytest.mark.parametrize("setting", ["launcher.slots=0", "launcher.nodes=2", "launcher.kind=pbs", "launcher.threads=0"])
def test_launcher_settings_that_cannot_work_are_named(roots: Path, study_file: Path, setting: str) -> None:
    done = harness(*words(study_file, setting), check=False)
    assert done.returncode == 2
    assert setting.split("=")[0] in done.stderr
    assert not roots.exists()


def test_a_gpu_run_on_a_machine_without_one_is_refused(
    roots: Path, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = harness(*words(study_file, "device=h200", "precision=fp32"), check=False)
    assert done.returncode == 2
    assert "shows 0 GPUs" in done.stderr
    assert not roots.exists()


def test_watch_ends_when_nothing_is_running_or_waiting(roots: Path, study_file: Path) -> None:
    text = (
        study_file.read_text().replace("[vit_pocket, resnet_pocket]", "[vit_pocket]").replace('"100", "50%"', '"100"')
    )
    study_file.write_text(text.replace("pairs: [[vit_pocket]]", ""))
    command = ["status", str(study_file), "data=tiny", "--watch"]
    assert harness(*command, check=False).returncode == 2  # nothing was started here yet
    process = start_harness("run", str(study_file), *TINY)
    while not (roots / "tinystudy@tiny" / "plan.json").exists() and process.poll() is None:
        time.sleep(0.05)
    watched = harness(*command).stdout.splitlines()
    process.communicate()
    assert len(watched) > 1  # it saw the study going on
    watched = watched[-1]
    assert "2 finished, 0 running, 0 waiting, 0 failed" in watched
    assert "(100 %)" in watched


def test_a_full_disk_fails_the_run_with_path_and_bytes_and_leaves_the_others(
    roots: Path, study_file: Path, tmp_path: Path
) -> None:
    """The study lies on a file system that holds one run's checkpoints and not two."""
    roots.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", str(roots)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")
    try:
        done = harness(*words(study_file, "launcher.slots=1", "keep=all"), check=False)
        states = [read_status(folder) for folder in run_folders(roots)]
        assert done.returncode == 1
        failed = [status for status in states if status["state"] == "failed"]
        assert failed, states
        for status in failed:
            assert status["reason"] == "disk_full"
            assert "No space left on device" in status["error"]
            assert "bytes to write" in status["error"]
        assert not list(roots.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", str(roots)], check=True)
