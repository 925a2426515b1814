"""Packing as processes: kills, Ctrl-C, two at once, read-only roots, what is printed and imported."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.compose import compose
from harness.data.pack import pack
from tests.conftest import ROOT, TINY_DATA
from tests.data.test_pack import tree

# Long enough to be caught in the middle; the second pack of the test finishes it, so not longer
WORDS = [*TINY_DATA[1:], "data.samples=6000", "data.shard_samples=200"]
PATIENCE_SECONDS = 60


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "harness.cli", "data", "pack", "glyphs", *words]


def environment(root: Path) -> dict[str, str]:
    return {**os.environ, "HARNESS_DATA": str(root), "PYTHONPATH": str(ROOT)}


def start(root: Path, workers: int, *more: str) -> subprocess.Popen[str]:
    """A pack that has finished three shards of thirty-two, or of as many as `more` words ask for.

    On a busy machine a pack may be done before this process looks at it: then another one is started.
    """
    while True:
        process = subprocess.Popen(
            command("--workers", str(workers), *WORDS, *more),
            env=environment(root),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            # a test run that was itself started in the background hands down an ignored SIGINT
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        packing = root / "tiny" / ".packing"
        wait_for(lambda: process.poll() is not None or len(list(packing.glob("train-*.tar.json"))) >= 3)  # noqa: B023
        if process.poll() is None:
            return process
        assert process.returncode == 0, process.communicate()[1]
        shutil.rmtree(root / "tiny")


def wait_for(condition) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("undisturbed")
    return tree(pack(compose([TINY_DATA[0], *WORDS]).data, root, workers=1, progress=False))


def test_workers_end_with_a_killed_parent_and_the_next_pack_goes_on(
    tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    """SIGKILL of the parent alone: orphans that lived on would hold the lock for ever."""
    process = start(tmp_path, workers=2)
    workers = psutil.Process(process.pid).children()
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not alive(workers))
    done = subprocess.run(command("--workers", "2", *WORDS), env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "shards are there; going on" in done.stdout
    assert tree(tmp_path / "tiny") == undisturbed


def test_sigkill_of_the_whole_group_and_again_gives_the_same_bytes(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    process = start(tmp_path, workers=2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list((tmp_path / "tiny" / ".packing").glob("*.tar.json")))
    assert 3 <= done < 32
    assert not (tmp_path / "tiny" / "manifest.json").exists()
    half = tmp_path / "tiny" / "train-000000.tar"  # as after a power failure: a record, and not all of its shard
    half.write_bytes(half.read_bytes()[:-1024])
    subprocess.run(command("--workers", "2", *WORDS), env=environment(tmp_path), check=True, stdout=subprocess.DEVNULL)
    assert tree(tmp_path / "tiny") == undisturbed


def test_a_killed_worker_is_an_error_that_says_how_to_go_on(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    process = start(tmp_path, workers=2)
    psutil.Process(process.pid).children()[0].kill()
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 2
    assert "a packing process was killed" in errors
    assert "Traceback" not in errors
    pack(compose([TINY_DATA[0], *WORDS]).data, tmp_path, workers=1, progress=False)
    assert tree(tmp_path / "tiny") == undisturbed


def test_ctrl_c_leaves_no_process_and_prints_no_traceback(tmp_path: Path) -> None:
    process = start(tmp_path, 2, "data.samples=200k")  # never done before the signal, however busy the machine
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130
    assert "Traceback" not in errors
    wait_for(lambda: not alive(family))


def test_of_two_packs_at_once_one_waits(tmp_path: Path, undisturbed: dict[str, str]) -> None:
    first = start(tmp_path, workers=1)
    os.killpg(first.pid, signal.SIGSTOP)  # until the second is there, however long a process takes to start
    unbuffered = environment(tmp_path) | {"PYTHONUNBUFFERED": "1"}
    second = subprocess.Popen(command(*WORDS), env=unbuffered, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert "another process is packing this set; waiting" in second.stdout.readline()
    os.killpg(first.pid, signal.SIGCONT)
    first.communicate(timeout=PATIENCE_SECONDS)
    second.communicate(timeout=PATIENCE_SECONDS)
    assert (first.returncode, second.returncode) == (0, 0)
    assert tree(tmp_path / "tiny") == undisturbed


def test_without_a_terminal_progress_is_plain_lines_and_torch_is_not_imported(tmp_path: Path) -> None:
    program = "import sys; from harness.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    words = [sys.executable, "-c", program, "data", "pack", "glyphs", *TINY_DATA[1:], "--workers", "2"]
    done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "False"
    assert "packing: 1,000 of 1,000 images" in lines
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_packed_set_below_a_read_only_root_is_left_as_it_is(tmp_path: Path) -> None:
    cfg = compose(TINY_DATA).data
    pack(cfg, tmp_path, 1, progress=False)
    tmp_path.chmod(0o555)
    try:
        pack(cfg, tmp_path, 1, progress=False)
    finally:
        tmp_path.chmod(0o755)
