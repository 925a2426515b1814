"""Where a study stands, from its run folders alone (no torch, no scheduler)."""

import time
from pathlib import Path
from typing import Any

from harness.run_folder import read_result, read_status

STALE_SECONDS = 120.0


def run_state(folder: Path, run_id: str) -> dict[str, Any]:
    """State of one planned run: finished, running, waiting or failed, with progress and the error's last line.

    A run whose heartbeat is older than two minutes is called failed (lost): its process is no longer there to say so.
    """
    status = read_status(folder / run_id)
    state, reason = status.get("state", "waiting"), status.get("reason")
    if read_result(folder / run_id) is not None:
        state, reason = "finished", None
    elif state == "finished" or (state == "running" and is_stale(status)):  # it says so, but that is not so
        state, reason = "failed", "lost"
    return {**status, "run_id": run_id, "state": state, "reason": reason}


def is_stale(status: dict[str, Any]) -> bool:
    """Whether a running run has said nothing for two minutes."""
    return time.time() - float(status.get("heartbeat") or 0) > STALE_SECONDS


def study_states(folder: Path, run_ids: list[str]) -> list[dict[str, Any]]:
    """States of the planned runs, in the plan's order."""
    return [run_state(folder, run_id) for run_id in run_ids]


def unplanned(folder: Path, run_ids: list[str]) -> list[str]:
    """Run folders that belong to no cell of the plan any more: reported, and left alone."""
    found = {path.parent.name for path in folder.glob("*/config.yaml")}
    return sorted(found - set(run_ids))


def remaining_seconds(states: list[dict[str, Any]], horizon_samples: dict[str, int], slots: int) -> float | None:
    """Time to the end of the study at the speed of the runs that are running; None when none tells its speed."""
    speeds = [float(s["images_per_second"]) for s in states if s["state"] == "running" and s.get("images_per_second")]
    if not speeds:
        return None
    left = 0.0
    for state in states:
        if state["state"] in ("waiting", "running"):
            done = int(state.get("samples_seen") or 0) if state["state"] == "running" else 0
            left += max(0, horizon_samples[state["run_id"]] - done)
    return left / (sum(speeds) / len(speeds) * slots)
