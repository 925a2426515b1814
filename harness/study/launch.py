"""Start what is not finished on this machine: every run a process of its own, as many as fit, failures kept apart.

The launcher trusts nothing but run folders: a run is finished when its result.json is there. Killed at any moment,
launcher or runs, the same command goes on where it stopped.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from harness.cell import Cell
from harness.errors import HarnessError
from harness.run_folder import read_status
from harness.run_lock import holder
from harness.study.plan import Plan
from harness.study.progress import Reporter
from harness.study.slots import THREAD_VARIABLES, Machine, Placed, machine_of, need_of, place
from harness.study.todo import TO_RUN, Todo, What
from harness.submission import EXIT_BUSY, EXIT_REQUEUE, is_complete, settle, submit

STOP_GRACE_SECONDS = 30.0  # for a last checkpoint
LOG_TAIL_LINES = 6
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143
FORKSERVER_GONE = 255  # what multiprocessing says of a process whose fork server was killed: nothing is known of it
FORK_TRIES = 5


class Terminated(BaseException):
    """SIGTERM: the launcher is asked to end, and its runs with it."""


@dataclass
class Outcome:
    """What one `harness run` did."""

    already_finished: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # run_id -> reason and error
    not_started: list[str] = field(default_factory=list)  # after --max-failures
    exit_signal: int = 0  # 130 after Ctrl-C, 143 after SIGTERM

    @property
    def exit_code(self) -> int:
        return self.exit_signal or (1 if self.failed else 0)


@dataclass
class Running:
    """One run's process."""

    cell: Cell
    folder: Path
    process: BaseProcess
    placed: Placed
    oom_kills: int  # the kernel's count when the run started
    samples_seen: int  # when it started


def run(plan: Plan, todos: list[Todo], max_failures: int | None = None) -> Outcome:
    """Train every cell that is to run, as many at a time as the machine holds; returns when none is left.

    Args:
        max_failures: start no more runs once so many have failed; those that run go on to their end.
    """
    outcome = Outcome(already_finished=[todo.cell.run_id for todo in todos if todo.what is What.FINISHED])
    outcome.failed = {t.cell.run_id: t.why for t in todos if t.what in (What.DIVERGED, What.GIVEN_UP)}
    before = len(outcome.failed)
    waiting = [todo.cell for todo in todos if todo.what in (*TO_RUN, What.ELSEWHERE)]
    if not waiting:
        return outcome
    config = waiting[0].config
    machine = machine_of(config.launcher, config.device.kind, config.device.memory_bytes)
    running: list[Running] = []
    with Reporter(plan, outcome.already_finished) as reporter, sigterm_raises():
        try:
            while waiting or running:
                if max_failures is not None and len(outcome.failed) - before >= max_failures:
                    outcome.not_started += [cell.run_id for cell in waiting]
                    waiting.clear()
                start_what_fits(plan, machine, waiting, running, outcome)
                wait([item.process.sentinel for item in running], timeout=config.launcher.poll_seconds)
                for item in [item for item in running if not item.process.is_alive()]:
                    running.remove(item)
                    sort_out(item, outcome, waiting)
                reporter.update([item.folder for item in running], waiting, outcome.finished, outcome.failed)
        except (KeyboardInterrupt, Terminated) as stopped:
            outcome.exit_signal = EXIT_TERMINATED if isinstance(stopped, Terminated) else EXIT_INTERRUPTED
            stop(running)
    return outcome


def start_what_fits(
    plan: Plan, machine: Machine, waiting: list[Cell], running: list[Running], outcome: Outcome
) -> None:
    """Start waiting runs, in order, while there is room; what another process has is waited for."""
    for cell in list(waiting):
        folder = plan.folder / cell.run_id
        if is_complete(folder, cell.config_hash, cell.transfer_id):  # by another process
            waiting.remove(cell)
            outcome.finished.append(cell.run_id)
            continue
        placed = place(machine, [item.placed for item in running], need_of(cell))
        if placed is None:
            return
        if holder(folder) is None:
            waiting.remove(cell)
            running.append(start(cell, plan.folder, placed))


def start(cell: Cell, study_dir: Path, placed: Placed) -> Running:
    """Submit and start one run; what it prints goes to its log.txt.

    Runs are forked from a server that has torch and timm loaded: importing them takes seconds, a pocket run not many.
    """
    folder = submit(cell, study_dir)
    threads = str(cell.config.launcher.threads)
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, threads))  # before the server starts: read when libraries load
    environment = dict(os.environ)
    if placed.gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(placed.gpus)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.study.fork_server"])
    arguments = (str(folder), environment, cell.config.launcher.processes)
    process = fork(lambda: context.Process(target=run_in_child, args=arguments, name=cell.run_id))
    return Running(cell, folder, process, placed, oom_kills(), samples_seen(folder))


def fork(make: Callable[[], BaseProcess]) -> BaseProcess:
    """Start a process by the fork server, and the server again where it was killed just now.

    Raises HarnessError when it dies each time. A run that it had forked all the same holds its lock: a second one ends.
    """
    for left in reversed(range(FORK_TRIES)):
        process = make()
        try:
            process.start()
            return process
        except (EOFError, OSError) as error:
            if not left:
                raise no_server(error) from error
            time.sleep(0.5)
    raise AssertionError


def no_server(error: Exception) -> HarnessError:
    """The error of a fork server that cannot be had, with what to do."""
    if isinstance(error, FileNotFoundError):
        return HarnessError(
            f"the socket of the process that runs are forked from is gone from {tempfile.gettempdir()}: something "
            "cleans that folder; give the same command again, with TMPDIR set to a folder that nobody cleans"
        )
    return HarnessError(
        f"the process that runs are forked from ended {FORK_TRIES} times ({error!r}): too little memory, or torch "
        "cannot be imported (`python -c 'import harness.experiment'` tells)"
    )


def run_in_child(folder: str, environment: dict[str, str], processes: int) -> None:
    """The body of a run's process; the server has already imported what is imported here."""
    with contextlib.suppress(OSError):  # when memory runs out, the kernel takes a run and not the launcher
        Path("/proc/self/oom_score_adj").write_text("500")
    if processes == 1:
        from harness.experiment import execute_logged

        execute_logged(folder, environment)
    with open(Path(folder) / "log.txt", "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.execve(sys.executable, [sys.executable, *torchrun(processes), folder], environment)


def torchrun(processes: int) -> list[str]:
    """torchrun on one machine; `--standalone` takes a free port, so that two runs do not meet on one."""
    return [
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "--max-restarts=0"),
        *("-m", "harness.experiment"),
    ]


def sort_out(item: Running, outcome: Outcome, waiting: list[Cell]) -> None:
    """Sort a process that ended into finished, failed, or back to the queue when it is to be started again."""
    code, run_id = item.process.exitcode or 0, item.cell.run_id
    if is_complete(item.folder, item.cell.config_hash, item.cell.transfer_id):
        outcome.finished.append(run_id)
    elif code in (EXIT_BUSY, FORKSERVER_GONE):
        waiting.append(item.cell)
    else:
        code = EXIT_REQUEUE if was_interrupted(item) else code
        status = settle(item.folder, code, oom_kills() > item.oom_kills)
        if code == EXIT_REQUEUE:
            waiting.append(item.cell)
        else:
            outcome.failed[run_id] = f"{status.get('reason')}: {status.get('error')}"


def was_interrupted(item: Running) -> bool:
    """Whether ranks made a checkpoint and stopped as they were told: torchrun makes 1 of their exit codes.

    Only if the run got further: when one rank dies torchrun tells the others to stop, and it might die each time.
    """
    got_further = samples_seen(item.folder) > item.samples_seen
    return got_further and read_status(item.folder).get("reason") == "interrupted"


def samples_seen(folder: Path) -> int:
    """Progress by status.json."""
    return int(read_status(folder).get("samples_seen") or 0)


def oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since boot; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def log_tail(folder: Path) -> list[str]:
    """The last lines of a run's log."""
    try:
        with open(folder / "log.txt", "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return file.read().decode(errors="replace").splitlines()[-LOG_TAIL_LINES:]
    except OSError:
        return []


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """SIGTERM inside raises Terminated: a launcher that is asked to end takes its runs along."""

    def raise_terminated(number: int, frame: FrameType | None) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, raise_terminated)
    except ValueError:  # not the main thread: whoever owns it decides
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def stop(running: list[Running]) -> None:
    """Ask the runs' processes to end; their last checkpoints stay and the same command goes on from them."""
    for item in running:
        item.process.terminate()
    deadline = time.monotonic() + STOP_GRACE_SECONDS
    for item in running:
        item.process.join(max(0.1, deadline - time.monotonic()))
        if item.process.is_alive():
            item.process.kill()
            item.process.join()
        if item.process.exitcode and read_status(item.folder).get("state") == "running":
            settle(item.folder, EXIT_REQUEUE)
