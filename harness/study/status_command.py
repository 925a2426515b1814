"""`harness status`: where every run of a study stands, once or again and again, from run folders alone."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from harness.run_folder import STATES
from harness.study import collect
from harness.study.commands import instance_folder
from harness.study.console import duration, wide_console
from harness.study.status import (
    remaining_seconds,
    run_seconds_left,
    spent_exaflops,
    study_states,
    unplanned,
)

WATCH_SECONDS = 2.0
HEADERS = ("run", "state", "progress", "samples seen", "images/s", "left", "best val top-1", "attempt", "host", "note")


def status_command(name: str, overrides: list[str], watch: bool = False) -> int:
    """Print where every run of a study stands. With `watch`, again until nothing is running or waiting."""
    folder = instance_folder(name, overrides)
    console = wide_console()
    if not watch:
        table, states = picture(folder)
        console.print(table)
        for run_id in unplanned(folder, [state["run_id"] for state in states]):
            console.print(f"not in the study any more: {run_id}", highlight=False)
        return 0
    if not console.is_terminal:
        return watch_plainly(folder, console)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            table, states = picture(folder)
            live.update(table, refresh=True)
            if is_over(states):
                return 0
            time.sleep(WATCH_SECONDS)


def watch_plainly(folder: Any, console: Console) -> int:
    """A line whenever something changed, where there is no terminal."""
    last = ""
    while True:
        plan = collect.read_plan(folder)
        states = study_states(folder, [row["run_id"] for row in plan["runs"]])
        line = summary(plan, states)
        if line != last:
            console.print(line, highlight=False)
        if is_over(states):
            return 0
        last = line
        time.sleep(WATCH_SECONDS)


def is_over(states: list[dict[str, Any]]) -> bool:
    """Nothing is running or waiting."""
    return not any(state["state"] in ("running", "waiting") for state in states)


def picture(folder: Any) -> tuple[Group, list[dict[str, Any]]]:
    """The table and the line below it, and the states they show."""
    plan = collect.read_plan(folder)
    planned = {row["run_id"]: row for row in plan["runs"]}
    states = study_states(folder, list(planned))
    table = Table(title=f"{plan['name']}@{plan['dataset']}")
    for header in HEADERS:
        left = header in ("run", "state", "host", "note")
        table.add_column(header, justify="left" if left else "right", no_wrap=header == "run")
    for state in states:
        table.add_row(*line_of(state, planned[state["run_id"]]["samples_seen"]))
    return Group(table, summary(plan, states)), states


def line_of(state: dict[str, Any], horizon: int) -> list[str]:
    """One line of the status table."""
    seen = horizon if state["state"] == "finished" else int(state.get("samples_seen") or 0)
    best = state.get("best_val_top1")
    speed = state.get("images_per_second") if state["state"] == "running" else None
    left = run_seconds_left(state, horizon)
    note = f"{state['reason']}: {state.get('error') or ''}" if state.get("reason") else ""
    return [
        state["run_id"],
        state["state"],
        f"{100 * seen / horizon:.0f} %",
        f"{seen:,}",
        "" if speed is None else f"{float(speed):,.0f}",
        "" if left is None else duration(left),
        "" if best is None else f"{100 * float(best):.1f} %",
        str(state.get("attempt") or ""),
        str(state.get("host") or ""),
        escape(note.strip()),
    ]


def summary(plan: dict[str, Any], states: list[dict[str, Any]]) -> str:
    """Totals: runs by state, compute spent against planned, time left at the measured speed."""
    planned = {row["run_id"]: row for row in plan["runs"]}
    counts = {name: sum(state["state"] == name for state in states) for name in STATES}
    horizons = {run_id: row["samples_seen"] for run_id, row in planned.items()}
    seconds = remaining_seconds(states, horizons, max(1, counts["running"]))
    total = sum(row["exaflops"] for row in planned.values())
    spent = spent_exaflops(states, planned)
    return (
        ", ".join(f"{count} {state}" for state, count in counts.items())
        + f" · {spent:.3g} of {total:.3g} exaFLOPs spent ({100 * spent / total if total else 0:.0f} %)"
        + ("" if seconds is None else f" · {duration(seconds)} left")
    )
