"""Start what is not finished: every run a process of its own, so many at a time, failures kept apart.

The launcher trusts nothing but run folders: a run is finished when its result.json is there. Killed at any moment,
launcher or runs, the same command goes on where it stopped.
"""

import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

from harness.cell import Cell
from harness.run_folder import read_status, write_status
from harness.study.plan import Plan, slots_of
from harness.study.progress import Reporter
from harness.submission import EXIT_BUSY, is_complete, submit

STOP_GRACE_SECONDS = 10.0
LOG_TAIL_LINES = 6


@dataclass
class Outcome:
    """What one `harness run` did."""

    already_finished: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # run_id -> reason and last lines of its log
    interrupted: bool = False

    @property
    def exit_code(self) -> int:
        if self.interrupted:
            return 130
        return 1 if self.failed else 0


@dataclass
class Running:
    """One run's process."""

    cell: Cell
    folder: Path
    process: BaseProcess


def run(plan: Plan) -> Outcome:
    """Train every selected cell that is not finished, `slots` at a time; returns when none is left."""
    launcher = plan.selected[0].config.launcher if plan.selected else plan.cells[0].config.launcher
    slots = slots_of(launcher)
    outcome = Outcome()
    waiting: list[Cell] = []
    for cell in plan.selected:
        folder = plan.folder / cell.run_id
        if is_complete(folder, cell.config_hash, cell.transfer_id):
            outcome.already_finished.append(cell.run_id)
        elif read_status(folder).get("reason") == "diverged":
            outcome.failed[cell.run_id] = "diverged before and is not tried again: " + str(
                read_status(folder).get("error")
            )
        else:
            waiting.append(cell)

    running: list[Running] = []
    with Reporter(plan, outcome.already_finished) as reporter:
        try:
            while waiting or running:
                while waiting and len(running) < slots:
                    running.append(start(waiting.pop(0), plan.folder))
                time.sleep(launcher.poll_seconds)
                for item in [item for item in running if not item.process.is_alive()]:
                    running.remove(item)
                    settle(item, outcome, waiting)
                reporter.update([item.folder for item in running], waiting, outcome.finished, outcome.failed)
        except KeyboardInterrupt:
            outcome.interrupted = True
            stop(running)
    return outcome


def start(cell: Cell, study_dir: Path) -> Running:
    """Submit and start one run; what it prints goes to its log.txt.

    Runs are forked from a server that has torch and timm loaded: importing them takes seconds, a pocket run not many.
    """
    folder = submit(cell, study_dir)
    threads = str(cell.config.launcher.threads)
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
    os.environ.update(limits)  # before the server starts: libraries read them when they are loaded
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.experiment"])
    process = context.Process(target=run_in_child, args=(str(folder), dict(os.environ)), name=cell.run_id)
    process.start()
    return Running(cell, folder, process)


def run_in_child(folder: str, environment: dict[str, str]) -> None:
    """The body of a run's process; the server has already imported what is imported here."""
    from harness.experiment import execute_logged

    execute_logged(folder, environment)


def settle(item: Running, outcome: Outcome, waiting: list[Cell]) -> None:
    """Sort a process that ended into finished, failed, or back to the end of the queue when another has the run."""
    code, run_id = item.process.exitcode or 0, item.cell.run_id
    if code == EXIT_BUSY:
        waiting.append(item.cell)
    elif is_complete(item.folder, item.cell.config_hash, item.cell.transfer_id):
        outcome.finished.append(run_id)
    else:
        status = read_status(item.folder)
        if status.get("state") != "failed":  # it could not say so itself
            reason = "killed" if code < 0 else "error"
            error = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            status = {**status, "error": error}
            kept = {key: status[key] for key in ("attempt", "started_at", "host", "error") if key in status}
            write_status(item.folder, "failed", reason, **kept)
            status["reason"] = reason
        outcome.failed[run_id] = f"{status.get('reason')}: {status.get('error')}\n{log_tail(item.folder)}"


def log_tail(folder: Path) -> str:
    """The last lines of a run's log."""
    try:
        lines = (folder / "log.txt").read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(f"    {line}" for line in lines[-LOG_TAIL_LINES:])


def stop(running: list[Running]) -> None:
    """End the runs' processes; their last checkpoints stay and the same command goes on from them."""
    for item in running:
        item.process.terminate()
    deadline = time.monotonic() + STOP_GRACE_SECONDS
    for item in running:
        item.process.join(max(0.1, deadline - time.monotonic()))
        if item.process.is_alive():
            item.process.kill()
            item.process.join()
