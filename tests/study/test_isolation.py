"""A run that needs more memory than there is, and folders that come from two machines: the others are not touched."""

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from harness.run_folder import read_result, read_status
from tests.conftest import ROOT, TINY_DATA, harness
from tests.study.conftest import assert_equal_tables, run_folders, tables

MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")  # of control groups, version 1
GREEDY = """\
title: One run of many gigabytes among small ones
smoke: true
data: tiny
recipe: pocket
transfer: digits
overrides: [data=glyphs, {data}, recipe.evaluations=1, recipe.train_eval_samples=100]
cells:
  - {{model: [vit_pocket], subset: ["100"], seed: [0], overrides: [recipe.samples_seen=180k, recipe.batch_size=60000]}}
  - model: [resnet_pocket]
    subset: ["100"]
    seed: [0, 1]
    overrides: [recipe.samples_seen=320, recipe.batch_size=32]
"""


@pytest.fixture
def greedy(tmp_path: Path) -> Path:
    path = tmp_path / "tinystudy.yaml"
    path.write_text(GREEDY.format(data=", ".join(TINY_DATA[1:])))
    return path


@contextlib.contextmanager
def small_memory_group() -> Iterator[Callable[[], None]]:
    """A control group of 2 GB; what is yielded puts the calling process into it. Skips where none can be made."""
    group = MEMORY_GROUPS / f"harness-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("2000000000")
    except OSError:
        pytest.skip("needs the right to make a memory control group")
    try:
        yield lambda: void((group / "cgroup.procs").write_text(str(os.getpid())))
    finally:
        deadline = time.monotonic() + 30
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)  # the last of the command's processes, a fork server, is just ending
        group.rmdir()


@contextlib.contextmanager
def small_address_space() -> Iterator[Callable[[], None]]:
    """A limit that makes allocations fail, as where memory is not given out beyond what there is."""
    yield lambda: resource.setrlimit(resource.RLIMIT_AS, (5_500_000_000, 5_500_000_000))


def void(_: object) -> None:
    return None


@pytest.mark.parametrize(
    "limit, words",
    [
        (small_address_space, "set loop.micro_batch"),
        pytest.param(small_memory_group, "the kernel ran out of memory", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_runs_out_of_memory_leaves_the_others_alone(
    roots: Path,
    greedy: Path,
    limit: Callable[[], contextlib.AbstractContextManager[Callable[[], None]]],
    words: str,
) -> None:
    command = [sys.executable, "-m", "harness.cli", "run", str(greedy), "launcher.memory_bytes=1e12"]
    with limit() as enter:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, preexec_fn=enter)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 runs finished now, 0 before, 1 failed" in done.stdout
    assert words in done.stdout
    states = {folder.name[:6]: read_status(folder) for folder in run_folders(roots)}
    assert states["vit_po"]["state"] == "failed"
    assert states["vit_po"]["reason"] == "out_of_memory"
    assert states["resnet"]["state"] == "finished"


def test_folders_of_two_machines_make_the_table_of_one(
    roots: Path, study_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, pd.DataFrame]
) -> None:
    """Each machine trains a model; the folders of one are copied to the other, without checkpoints."""
    harness("run", str(study_file), "model=vit_pocket")
    other = tmp_path / "other"
    monkeypatch.setenv("HARNESS_RUNS", str(other))
    harness("run", str(study_file), "model=resnet_pocket")
    monkeypatch.setenv("HARNESS_RUNS", str(roots))
    for folder in run_folders(other):
        shutil.copytree(folder, roots / "tinystudy@tiny" / folder.name, ignore=shutil.ignore_patterns("checkpoints"))
    assert_equal_tables(tables(study_file, tmp_path / "out"), undisturbed)
    assert "0 runs finished now, 8 before, 0 failed" in harness("run", str(study_file)).stdout


def test_removed_cells_are_named_and_changed_ones_are_new(roots: Path, study_file: Path) -> None:
    tiny = ["recipe.samples_seen=320", "recipe.evaluations=1"]
    harness("run", str(study_file), "model=vit_pocket", "subset=100", *tiny)
    before = run_folders(roots)
    study_file.write_text(study_file.read_text().replace("seed: [0, 1]", "seed: [0]"))
    edited = ["run", str(study_file), "model=vit_pocket", "subset=100", *tiny]
    shown = harness(*edited).stdout
    assert "1 run folders belong to no cell of this study any more and are left alone" in shown
    assert "0 runs finished now, 1 before" in shown
    shown = harness(*edited, "recipe.learning_rate=1e-3").stdout
    assert "2 run folders belong to no cell" in shown
    assert "1 runs finished now, 0 before" in shown
    after = run_folders(roots)
    assert len(after) == 3
    assert set(before) < set(after)
    assert all(read_result(folder) for folder in after)
    assert "not in the study any more" in harness("status", str(study_file), "data=tiny").stdout


CLEANED = """
import multiprocessing, shutil
from multiprocessing import util
from harness.study import launch

context = multiprocessing.get_context("forkserver")
launch.FORK_TRIES = 1
launch.fork(lambda: context.Process(target=print)).join()
shutil.rmtree(util.get_temp_dir())
try:
    launch.fork(lambda: context.Process(target=print))
except launch.HarnessError as error:
    print(error)
"""


def test_a_cleaned_temporary_folder_is_named() -> None:
    """Long studies outlive what cleaners of /tmp leave alone; the socket of the fork server lies there."""
    done = subprocess.run([sys.executable, "-c", CLEANED], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert "give the same command again, with TMPDIR set to a folder that nobody cleans" in done.stdout, done.stderr
