"""What a person sees while a study runs: a live line on a terminal, a plain line now and then elsewhere."""

import time
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.markup import escape
from rich.table import Table

from harness.cell import Cell
from harness.run_folder import read_status
from harness.study.console import wide_console
from harness.study.plan import Plan, slots_of
from harness.study.status import remaining_seconds, study_states

PLAIN_LINE_SECONDS = 10.0


class Reporter:
    """Progress of one `harness run`: runs done, images a second, time left."""

    def __init__(self, plan: Plan, already_finished: list[str]) -> None:
        self._plan = plan
        self._total = len(plan.selected)
        self._already = already_finished
        self._console = wide_console()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._last_line = 0.0
        self._announced: set[str] = set()
        self._slots = slots_of(plan.cells[0].config.launcher)
        self._horizons = {cell.run_id: cell.horizon_samples for cell in plan.cells}

    def __enter__(self) -> "Reporter":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._live.stop()

    def update(self, running: list[Path], waiting: list[Cell], finished: list[str], failed: dict[str, str]) -> None:
        """Show the state of things; cheap enough to call at every poll."""
        for run_id in [*finished, *failed]:
            if run_id not in self._announced:
                self._announced.add(run_id)
                self._console.print(self._announcement(run_id, failed), highlight=False)
        if self._live.is_started:
            self._live.update(self._table(running, waiting, finished, failed))
        elif time.monotonic() - self._last_line > PLAIN_LINE_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(self._summary(running, waiting, finished, failed), highlight=False)

    def _announcement(self, run_id: str, failed: dict[str, str]) -> str:
        done = len(self._already) + len(self._announced)
        if run_id in failed:
            return f"\\[{done}/{self._total}] [red]failed[/red]   {run_id}  {escape(failed[run_id].splitlines()[0])}"
        status = read_status(self._plan.folder / run_id)
        return f"\\[{done}/{self._total}] finished {run_id}  (attempt {status.get('attempt')})"

    def _summary(self, running: list[Path], waiting: list[Cell], finished: list[str], failed: dict[str, str]) -> str:
        states = study_states(self._plan.folder, [path.name for path in running])
        states += [{"run_id": cell.run_id, "state": "waiting"} for cell in waiting]
        seconds = remaining_seconds(states, self._horizons, self._slots)
        speed = sum(float(state.get("images_per_second") or 0) for state in states)
        left = "…" if seconds is None else f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
        done = len(self._already) + len(finished)
        return (
            f"{done}/{self._total} runs finished, {len(running)} running, {len(waiting)} waiting, "
            f"{len(failed)} failed · {speed:,.0f} images/s · {left} left"
        )

    def _table(self, running: list[Path], waiting: list[Cell], finished: list[str], failed: dict[str, str]) -> Table:
        table = Table(box=None, show_header=False, caption=self._summary(running, waiting, finished, failed))
        table.caption_style = "bold"
        table.caption_justify = "left"
        for state in study_states(self._plan.folder, [path.name for path in running]):
            seen, horizon = int(state.get("samples_seen") or 0), self._horizons[state["run_id"]]
            best = state.get("best_val_top1")
            table.add_row(
                state["run_id"],
                f"{100 * seen / horizon:3.0f} %",
                f"{seen:,} of {horizon:,} images",
                f"{float(state.get('images_per_second') or 0):,.0f} images/s",
                "" if best is None else f"best val top-1 {100 * best:.1f} %",
            )
        return table
