"""`harness sync RUN…`: metrics.jsonl of runs to Weights & Biases, under each run's id."""

import queue
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.errors import HarnessError
from harness.paths import runs_root
from harness.run_folder import read_metrics
from harness.submission import load_frozen
from harness.train.tracker import Rows, mode_of, send


def sync_command(names: Sequence[str]) -> int:
    """Replay every row of every run; wandb leaves out those that it has. Exit code 1 if any run could not be sent."""
    runs = [run for name in names for run in run_folders(name)]  # all names are looked at before anything is sent
    failed = 0
    for folder in runs:
        config = load_frozen(folder).config
        rows = read_metrics(folder)
        waiting: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
        waiting.put(rows)
        waiting.put(None)
        mode = mode_of(config.tracker)
        if not send(config, folder.name, folder, mode, waiting):
            failed += 1
            continue
        where = config.tracker.project
        if mode == "offline":
            where = f"a file below {folder / 'wandb'} (no key: set WANDB_API_KEY, or WANDB_MODE=online after a login)"
        print(f"{folder.name}: {len(rows):,} rows to {where}")
    if failed:
        print(f"{failed} of {len(runs)} runs were not sent", file=sys.stderr)
    return 1 if failed else 0


def run_folders(name: str) -> list[Path]:
    """A run's folder, or every run below a study's; a name is looked for below the runs root too.

    Raises HarnessError where there is no run.
    """
    for folder in (Path(name), runs_root() / name):
        if (folder / "config.yaml").exists():
            return [folder]
        if below := sorted(path.parent for path in folder.glob("*/config.yaml")):
            return below
    raise HarnessError(f"{name}: no run's folder (one holds config.yaml), nor one of runs; looked in {runs_root()} too")
