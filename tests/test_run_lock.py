"""The lock of a run: one holder among many processes, and nobody left out by a dead one."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from harness import run_lock
from harness.run_lock import Holder, acquire, holder, lock, myself, newest, release
from tests.conftest import ROOT


def held_elsewhere(folder: Path, seconds_ago: float) -> Path:
    """A lock whose holder is a process of another machine that last beat some time ago."""
    path = acquire(folder)
    assert path is not None
    path.write_text(json.dumps(asdict(Holder("other/boot/ns", "other", os.getpid(), 0.0))))
    then = time.time() - seconds_ago
    os.utime(path, (then, then))
    return path


def test_one_holder_and_the_next_after_a_release(tmp_path: Path) -> None:
    with lock(tmp_path) as mine:
        assert mine
        assert holder(tmp_path) == myself()
        with lock(tmp_path) as again:
            assert not again
    assert holder(tmp_path) is None
    with lock(tmp_path) as after:
        assert after
    assert sorted(path.name for path in (tmp_path / ".lock").iterdir()) == ["000001", "000002"]


def contend(folder: str, count: int, start: "multiprocessing.synchronize.Event") -> None:
    """Add one to a number in a file `count` times, each time under the lock and with a gap to be interrupted in."""
    path = Path(folder)
    start.wait()
    while count:
        with lock(path) as mine:
            if mine:
                value = int((path / "number").read_text())
                time.sleep(0.0005)
                (path / "number").write_text(str(value + 1))
                count -= 1


def test_no_increment_is_lost_among_many_processes(tmp_path: Path) -> None:
    (tmp_path / "number").write_text("0")
    context = multiprocessing.get_context("fork")
    start = context.Event()
    processes = [context.Process(target=contend, args=(str(tmp_path), 15, start)) for _ in range(4)]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert (tmp_path / "number").read_text() == "60"


def take(folder: str, start: "multiprocessing.synchronize.Event", won: "multiprocessing.Queue[int]") -> None:
    start.wait()
    won.put(1 if acquire(Path(folder)) else 0)
    time.sleep(0.5)  # a holder must live to hold


def test_a_dead_holder_is_followed_by_exactly_one_of_many(tmp_path: Path) -> None:
    held_elsewhere(tmp_path, run_lock.STALE_SECONDS + 5)
    context = multiprocessing.get_context("fork")
    start, won = context.Event(), context.Queue()
    processes = [context.Process(target=take, args=(str(tmp_path), start, won)) for _ in range(8)]
    for process in processes:
        process.start()
    start.set()
    assert sum(won.get() for _ in processes) == 1
    for process in processes:
        process.join()


def test_a_holder_on_another_machine_is_believed_while_it_beats(tmp_path: Path) -> None:
    held_elsewhere(tmp_path, run_lock.STALE_SECONDS / 2)
    assert acquire(tmp_path) is None
    found = holder(tmp_path)
    assert found is not None
    assert found.host == "other"
    then = time.time() - run_lock.STALE_SECONDS - 1
    os.utime(newest(tmp_path), (then, then))  # type: ignore[type-var]
    assert acquire(tmp_path) is not None


def test_a_sigkilled_holder_of_this_machine_is_followed_at_once(tmp_path: Path) -> None:
    script = (
        f"import time; from pathlib import Path; from harness.run_lock import lock\n"
        f"with lock(Path({str(tmp_path)!r})) as mine:\n    print(mine, flush=True)\n    time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "True"
    assert acquire(tmp_path) is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert acquire(tmp_path) is not None


@pytest.mark.parametrize(
    "content", ["[]", "null", "{", '"x"', "{}", '{"machine": 1, "host": "h", "pid": "many", "started": 0}', b"\xff\xfe"]
)
def test_a_damaged_lock_is_nobodys_once_it_is_old(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / ".lock" / "000001"
    path.parent.mkdir()
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = holder(tmp_path)
    assert found is None or found.pid == 0
    os.utime(path, (0, 0))
    assert holder(tmp_path) is None
    assert acquire(tmp_path) is not None


@pytest.mark.parametrize("pid", [-1, 0, 2**70])
def test_a_pid_that_no_process_has_does_not_run(tmp_path: Path, pid: int) -> None:
    path = acquire(tmp_path)
    assert path is not None
    path.write_text(json.dumps(asdict(replace(myself(), pid=pid))))
    assert holder(tmp_path) is None


def test_a_pid_that_came_round_again_is_not_the_holder(tmp_path: Path) -> None:
    path = acquire(tmp_path)
    assert path is not None
    path.write_text(json.dumps(asdict(replace(myself(), started=myself().started - 100))))
    assert holder(tmp_path) is None


def test_a_file_without_content_is_a_holder_until_it_is_old(tmp_path: Path) -> None:
    path = acquire(tmp_path)
    assert path is not None
    path.write_text("")
    assert acquire(tmp_path) is None
    then = time.time() - run_lock.STALE_SECONDS - 1
    os.utime(path, (then, then))
    assert acquire(tmp_path) is not None


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_holder_beats_and_ends_when_another_took_over(tmp_path: Path, taken_over: bool) -> None:
    script = (
        "import time; from pathlib import Path; from harness import run_lock\n"
        "run_lock.BEAT_SECONDS = 0.05\n"
        f"with run_lock.lock(Path({str(tmp_path)!r})):\n    print('held', flush=True)\n    time.sleep(1)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    process.stdout.readline()
    path = newest(tmp_path)
    assert path is not None
    os.utime(path, (0, 0))
    if taken_over:
        path.with_name("000002").write_text("{}")
    process.wait()
    process.stdout.close()
    assert process.returncode == (run_lock.EXIT_BUSY if taken_over else 0)
    if not taken_over:
        assert path.stat().st_mtime > time.time() - 60


def test_a_release_makes_room_for_the_next(tmp_path: Path) -> None:
    path = acquire(tmp_path)
    assert path is not None
    release(path)
    assert acquire(tmp_path) == tmp_path / ".lock" / "000002"
