"""What `harness run` does with each cell, decided from its run folder alone: a pure function of what is found there."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from harness.cell import Cell
from harness.run_folder import read_result
from harness.study.status import run_state
from harness.submission import checkpoints, is_complete


class What(Enum):
    """What is to be done with a cell."""

    FINISHED = "finished"
    START = "start"
    RESUME = "resume"  # interrupted: killed with its launcher, stopped, or its machine lost
    RETRY = "try again"
    ELSEWHERE = "running elsewhere"  # another process has it, here or on another machine
    DIVERGED = "diverged"
    GIVEN_UP = "given up"
    LEFT_OUT = "left out"


TO_RUN = (What.START, What.RESUME, What.RETRY)


@dataclass(frozen=True)
class Todo:
    """One cell's turn, and why in a few words."""

    cell: Cell
    what: What
    why: str


def decide(state: dict[str, Any], complete: bool, has_checkpoint: bool, max_failures: int, only: str | None) -> What:
    """The rule.

    Args:
        state: as `run_state` gives it.
        complete: a valid result of this configuration is there, and its transfer.
        only: 'failed' takes failed runs alone, and those that were given up too.
    """
    name, reason = state["state"], state.get("reason")
    if complete:
        return What.FINISHED
    if name == "running":
        return What.ELSEWHERE
    is_failed = name == "failed" and reason != "lost"
    if is_failed and reason == "diverged":
        return What.DIVERGED
    if only == "failed":
        return What.RETRY if is_failed else What.LEFT_OUT
    if is_failed:
        return What.GIVEN_UP if int(state.get("failures") or 0) >= max_failures else What.RETRY
    return What.RESUME if has_checkpoint or reason in ("lost", "interrupted") else What.START


def examine(cell: Cell, study_dir: Path, only: str | None = None) -> Todo:
    """Look at a cell's folder and decide."""
    folder = study_dir / cell.run_id
    state = run_state(folder.parent, cell.run_id)
    saved = checkpoints(folder)
    complete = is_complete(folder, cell.config_hash, cell.transfer_id)
    if not complete and not saved and read_result(folder, cell.config_hash) is not None:
        return Todo(cell, What.FINISHED, f"trained elsewhere; {cell.transfer_id} needs a checkpoint, and none is here")
    max_failures = cell.config.launcher.max_failures_per_run
    what = decide(state, complete, any(path.name.startswith("last.") for path in saved), max_failures, only)
    return Todo(cell, what, reason_for(what, state))


def reason_for(what: What, state: dict[str, Any]) -> str:
    """Why, for a person."""
    seen, horizon = int(state.get("samples_seen") or 0), int(state.get("horizon_samples") or 0)
    progress = f"{100 * seen / horizon:.0f} % done" if horizon else "not far"
    failures = int(state.get("failures") or 0)
    return {
        What.FINISHED: "result.json is there",
        What.START: "not started yet",
        What.RESUME: f"{state.get('reason') or 'interrupted'} at attempt {state.get('attempt') or 1}, {progress}",
        What.RETRY: f"failed {failures} times, last: {state.get('reason')}: {state.get('error')}",
        What.ELSEWHERE: f"pid {state.get('pid')} on {state.get('host')}, {progress}",
        What.DIVERGED: f"diverged before and is not tried again: {state.get('error')}",
        What.GIVEN_UP: f"failed {failures} times and is not tried again (--only failed does): "
        f"{state.get('reason')}: {state.get('error')}",
        What.LEFT_OUT: "not failed",
    }[what]
