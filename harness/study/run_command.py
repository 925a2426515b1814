"""`harness run`: plan, say what will be done with each cell, do it, and end with a table of what failed."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from harness.cell import Cell
from harness.data.declared import refuse_declared
from harness.errors import ConfigError, HarnessError
from harness.run_folder import read_status
from harness.run_lock import holder
from harness.study import launch, slurm
from harness.study import plan as planning
from harness.study.commands import print_skipped
from harness.study.console import wide_console
from harness.study.slots import machine_of
from harness.study.status import unplanned
from harness.study.todo import Todo, What, examine
from harness.submission import check_keep

REPLACED = ".replaced"


@dataclass(frozen=True)
class RunOptions:
    """Flags of `harness run`."""

    dry_run: bool = False
    only: str | None = None  # 'failed'
    rerun: bool = False
    max_failures: int | None = None
    detach: bool = False


def run_command(name: str, overrides: list[str], options: RunOptions) -> int:
    """Start every run that is not finished; the same command goes on after anything."""
    if options.max_failures is not None and options.max_failures < 1:
        raise ConfigError("--max-failures: at least 1")
    plan = planning.make(name, overrides)
    refuse_declared(plan.dataset)
    check_launcher(plan)
    first = plan.cells[0].config
    if first.launcher.kind == "local" and not options.dry_run:
        machine_of(first.launcher, first.device.kind, first.device.memory_bytes)  # raises without GPUs enough
    todos = [examine(cell, plan.folder, options.only) for cell in plan.selected]
    if options.rerun:
        todos = [anew(todo, plan.folder, options.only) for todo in todos]
        old = replaceable(plan.folder, [todo.cell for todo in todos if todo.what is What.START])
        if not options.dry_run and not options.detach:
            set_aside(old)
    print_left_out(plan)
    if options.dry_run:
        print_todos(todos)
        return 0
    planning.check_budget(plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    planning.record(plan)
    if options.detach:
        return detach(name, overrides, options, plan.folder)
    print_interrupted(todos)
    if plan.cells[0].config.launcher.kind == "slurm":
        return slurm.submit_study(plan, todos)
    return report(plan, launch.run(plan, todos, options.max_failures))


def check_launcher(plan: planning.Plan) -> None:
    """Raise ConfigError for launcher settings that cannot work, before anything is started."""
    launcher = plan.cells[0].config.launcher
    if launcher.kind not in ("local", "slurm"):
        raise ConfigError(f"launcher.kind={launcher.kind}: use local or slurm")
    for field in ("threads", "processes", "nodes", "runs_per_gpu", "max_failures_per_run"):
        if getattr(launcher, field) < 1:
            raise ConfigError(f"launcher.{field}={getattr(launcher, field)}: at least 1")
    if launcher.slots is not None and launcher.slots < 1:
        raise ConfigError(f"launcher.slots={launcher.slots}: at least 1, or null for one a core")
    if launcher.kind == "local" and launcher.nodes != 1:
        raise ConfigError(f"launcher.nodes={launcher.nodes}: one machine is one node; launcher=slurm takes several")
    check_keep(plan.cells[0].config.keep)


def anew(todo: Todo, study_dir: Path, only: str | None) -> Todo:
    """--rerun: a run from scratch; with --only failed the failed ones alone."""
    if only == "failed" and todo.what is not What.RETRY:
        return todo
    is_there = (study_dir / todo.cell.run_id).is_dir()
    return Todo(todo.cell, What.START, "from scratch; what is there is set aside" if is_there else todo.why)


def replaceable(study_dir: Path, cells: list[Cell]) -> list[Path]:
    """Folders of the runs that there are. Raises HarnessError when one of them is being trained."""
    folders = [study_dir / cell.run_id for cell in cells if (study_dir / cell.run_id).is_dir()]
    for folder in folders:
        found = holder(folder)
        if found is not None:
            raise HarnessError(f"{folder}: pid {found.pid} on {found.host} is training it; stop that before --rerun")
    return folders


def set_aside(folders: list[Path]) -> None:
    """Move runs' folders to .replaced/: a rerun starts from scratch, and nothing is lost."""
    for folder in folders:
        place = folder.parent / REPLACED
        place.mkdir(exist_ok=True)
        number = 1 + sum(path.name.startswith(f"{folder.name}.") for path in place.iterdir())
        folder.rename(place / f"{folder.name}.{number}")
        print(f"set aside: {place / f'{folder.name}.{number}'}")


def detach(name: str, overrides: list[str], options: RunOptions, folder: Path) -> int:
    """Start the same command in a session of its own, its output in launcher.log, and return at once."""
    flags = ["--rerun"] if options.rerun else []
    flags += [f"--only={options.only}"] if options.only else []
    flags += [f"--max-failures={options.max_failures}"] if options.max_failures is not None else []
    command = [sys.executable, "-m", "harness.cli", "run", name, *overrides, *flags]
    with open(folder / "launcher.log", "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=Path.cwd()
        )
    print(f"detached: pid {process.pid}, output in {folder / 'launcher.log'}")
    print(f"`harness status {name}` shows where it stands; `kill {process.pid}` stops it and its runs")
    return 0


def print_todos(todos: list[Todo]) -> None:
    """--dry-run: what would be done with each cell."""
    table = Table(box=None)
    for header in ("run", "would be", "why"):
        table.add_column(header, no_wrap=header != "why")
    for todo in todos:
        table.add_row(todo.cell.run_id, todo.what.value, escape(todo.why))
    console = wide_console()
    console.print(table)
    counts = Counter(todo.what.value for todo in todos)
    console.print(", ".join(f"{count} {what}" for what, count in counts.items()) + "; nothing was started")


def print_interrupted(todos: list[Todo]) -> None:
    """Say which runs are found without anybody who works on them."""
    found = [todo for todo in todos if todo.what is What.RESUME]
    if found:
        print(f"{len(found)} runs were interrupted and go on from their last checkpoints:")
        for todo in found[:5]:
            print(f"  {todo.cell.run_id}: {todo.why}")
        print("  …" if len(found) > 5 else "", end="\n" if len(found) > 5 else "")


def print_left_out(plan: planning.Plan) -> None:
    """Say which sizes are left out, and which run folders belong to no cell any more."""
    print_skipped(plan.skipped)
    left_alone = unplanned(plan.folder, [cell.run_id for cell in plan.cells])
    if left_alone:
        print(f"{len(left_alone)} run folders belong to no cell of this study any more and are left alone: ")
        print("  " + ", ".join(left_alone[:5]) + (" …" if len(left_alone) > 5 else ""))


def report(plan: planning.Plan, outcome: launch.Outcome) -> int:
    """The end of a local `harness run`: counts, the table of failures, the exit code."""
    print(
        f"{plan.name}@{plan.dataset.name}: {len(outcome.finished)} runs finished now, "
        f"{len(outcome.already_finished)} before, {len(outcome.failed)} failed; folder {plan.folder}"
    )
    if outcome.failed:
        print_failures(plan.folder, outcome.failed)
    if outcome.not_started:
        print(f"{len(outcome.not_started)} runs were not started: --max-failures was reached")
    if outcome.exit_signal:
        print("interrupted; the same command goes on from the last checkpoints")
    return outcome.exit_code


def print_failures(folder: Path, failed: dict[str, str]) -> None:
    """A table of the runs that failed, and below it why and the last lines of each log."""
    table = Table(title="failed")
    for header in ("run", "reason", "failures", "attempts", "host"):
        table.add_column(header, no_wrap=True)
    for run_id in failed:
        status = read_status(folder / run_id)
        table.add_row(run_id, *(str(status.get(key) or "") for key in ("reason", "failures", "attempt", "host")))
    wide_console().print(table)
    for run_id, why in failed.items():
        print(f"\nfailed: {run_id}\n  {why}")
        for line in launch.log_tail(folder / run_id):
            print(f"    {line}")
