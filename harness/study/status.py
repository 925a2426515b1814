"""Where a study stands, from its run folders alone (no torch, no scheduler)."""

import os
import time
from pathlib import Path
from typing import Any

from harness.run_folder import read_result, read_status
from harness.run_lock import STALE_SECONDS, holder, last_beat


def run_state(folder: Path, run_id: str) -> dict[str, Any]:
    """State of one planned run: finished, running, waiting or failed, with progress and the error's last line.

    A run that nobody holds any more is failed (lost), whatever it last said: its process is gone, or on another machine
    has shown no life for two minutes.
    """
    status = read_status(folder / run_id)
    state, reason = status.get("state", "waiting"), status.get("reason")
    result = read_result(folder / run_id) if state != "running" else None
    if result is not None:
        state, reason = "finished", None
        status = {**status, "best_val_top1": result["best_val_top1"]}
    elif state == "running":
        state, reason = running_state(folder / run_id, status)
    elif state == "finished":  # it says so, but that is not so
        state, reason = "failed", "lost"
    return {**status, "run_id": run_id, "state": state, "reason": reason}


def running_state(folder: Path, status: dict[str, Any]) -> tuple[str, str | None]:
    """Running while its lock is held, or its heartbeat is young where there is no lock; else finished or lost."""
    alive = holder(folder) is not None if (folder / ".lock").is_dir() else not is_stale(folder, status)
    if read_result(folder) is not None:  # evaluating another target, or ended before it could say so
        return ("running", None) if alive and last_beat(folder) else ("finished", None)
    return ("running", None) if alive else ("failed", "lost")


def is_stale(folder: Path, status: dict[str, Any]) -> bool:
    """Whether a running run has said nothing for two minutes."""
    return time.time() - max(float(status.get("heartbeat") or 0), last_beat(folder)) > STALE_SECONDS


def study_states(folder: Path, run_ids: list[str]) -> list[dict[str, Any]]:
    """States of the planned runs, in the plan's order."""
    return [run_state(folder, run_id) for run_id in run_ids]


def unplanned(folder: Path, run_ids: list[str]) -> list[str]:
    """Run folders that belong to no cell of the plan any more: reported, and left alone."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    return sorted(name for name in set(names) - set(run_ids) if (folder / name / "config.yaml").exists())


def remaining_seconds(states: list[dict[str, Any]], horizon_samples: dict[str, int], slots: int) -> float | None:
    """Time to the end of the study at the speed of the runs that are running; None when none tells its speed."""
    speeds = [float(s["images_per_second"]) for s in states if s["state"] == "running" and s.get("images_per_second")]
    if not speeds:
        return None
    left = sum(samples_left(state, horizon_samples[state["run_id"]]) for state in states)
    return left / (sum(speeds) / len(speeds) * slots)


def samples_left(state: dict[str, Any], horizon: int) -> int:
    """Images that a run has still to see; nothing for one that ended."""
    if state["state"] not in ("waiting", "running"):
        return 0
    return max(0, horizon - int(state.get("samples_seen") or 0))


def run_seconds_left(state: dict[str, Any], horizon: int) -> float | None:
    """Seconds to a running run's horizon at its measured speed; None where it tells none."""
    speed = float(state.get("images_per_second") or 0)
    return samples_left(state, horizon) / speed if state["state"] == "running" and speed else None


def spent_exaflops(states: list[dict[str, Any]], planned: dict[str, dict[str, Any]]) -> float:
    """Training compute that the planned runs have used up to now."""
    total = 0.0
    for state in states:
        row = planned[state["run_id"]]
        seen = row["samples_seen"] if state["state"] == "finished" else int(state.get("samples_seen") or 0)
        total += row["exaflops"] * min(1.0, seen / row["samples_seen"])
    return total
