"""A small real data set and study, packed once a session; every test gets run roots of its own."""

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

from harness.cli import main
from harness.compose import compose
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack

ROOT = Path(__file__).resolve().parent.parent
TINY_DATA = [
    "data=glyphs",
    "data.name=tiny",
    "data.samples=600",
    "data.val_samples=200",
    "data.test_samples=200",
    "data.image_size=16",
    "data.shard_samples=250",
    "data.characters=0123456789",
]
STUDY = """\
title: A tiny study
smoke: true
data: tiny
recipe: pocket
transfer: digits
overrides: [data=glyphs, {data}, recipe.samples_seen={samples}, recipe.batch_size=32, recipe.evaluations=4,
            recipe.train_eval_samples=100]
cells:
  - {{model: [vit_pocket, resnet_pocket], subset: ["100", "50%"], seed: [0, 1]}}
pairs: [[vit_pocket, resnet_pocket]]
"""


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the set `tiny`: ten digits of real typefaces, 600 training images in three shards."""
    root = tmp_path_factory.mktemp("data")
    pack(compose(TINY_DATA).data, root, workers=1, progress=False)
    return root


@pytest.fixture(scope="session")
def tiny(data_folder: Path) -> Dataset:
    return open_dataset(data_folder / "tiny")


@pytest.fixture
def roots(data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HARNESS_DATA at the session's data, HARNESS_RUNS in the test's own folder; returns the latter."""
    runs = tmp_path / "runs"
    monkeypatch.setenv("HARNESS_DATA", str(data_folder))
    monkeypatch.setenv("HARNESS_RUNS", str(runs))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return runs


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """A study of eight runs of about a second each."""
    path = tmp_path / "tinystudy.yaml"
    path.write_text(STUDY.format(data=", ".join(TINY_DATA[1:]), samples=1600))
    return path


@pytest.fixture(scope="session")
def processes() -> ForkServerContext:
    """Children that start in milliseconds: forked from a server that has torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.conftest", "harness.experiment"])
    return context


@dataclass
class Done:
    """What a command printed and returned."""

    returncode: int
    stdout: str
    stderr: str


def harness(*words: str, check: bool = True) -> Done:
    """A command as the user gives it, in this process: the same entry point without seconds of imports each time."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    done = Done(code, out.getvalue(), err.getvalue())
    assert not check or code == 0, f"harness {' '.join(words)}: exit {code}\n{done.stdout}\n{done.stderr}"
    return done


def start_harness(*words: str) -> subprocess.Popen[str]:
    """A command in a process group of its own, to be killed."""
    return subprocess.Popen(
        [sys.executable, "-m", "harness.cli", *words],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
        start_new_session=True,
    )
