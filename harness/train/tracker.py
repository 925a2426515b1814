"""A mirror of metrics.jsonl at Weights & Biases, under the run's id. Never read back, never in the way of training.

Without a key (or with tracker.mode=offline) the run file is written below the run's folder, and `harness sync RUN`
replays metrics.jsonl later. Whatever goes wrong with the mirror is one warning, and training goes on without it.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.config import TrackerConfig, TrainConfig
from harness.errors import ConfigError, near_matches

TRACKERS = ("none", "wandb")
INIT_SECONDS = 30.0  # how long a dead network may hold a run up, once

Mirror = Callable[[list[dict[str, Any]]], None]


@contextmanager
def start_tracker(config: TrainConfig, run_id: str, folder: Path, first_rank: bool = True) -> Iterator[Mirror]:
    """A function that mirrors rows of metrics.jsonl, while training lasts.

    Raises ConfigError for a tracker that there is not; nothing else.
    """
    if config.tracker.name not in TRACKERS:
        raise ConfigError(f"tracker={config.tracker.name}.{near_matches(config.tracker.name, TRACKERS)}")
    run = open_run(config, run_id, folder) if config.tracker.name == "wandb" and first_rank else None

    def mirror(rows: list[dict[str, Any]]) -> None:
        nonlocal run
        if run is None:
            return
        try:
            log_rows(run, rows)
        except Exception as error:
            run = None
            warn(error)

    try:
        yield mirror
    finally:
        close_run(run)


def log_rows(run: Any, rows: list[dict[str, Any]]) -> None:
    """One wandb step an evaluation or log step, at its samples seen: `val/top1`, `step/loss`, …"""
    by_samples: dict[int, dict[str, float]] = {}
    for row in rows:
        values = {f"{row['split']}/{key}": value for key, value in row.items() if key not in ("samples_seen", "split")}
        by_samples.setdefault(row["samples_seen"], {}).update(values)
    for samples_seen, values in sorted(by_samples.items()):
        run.log({"samples_seen": samples_seen, **values}, step=samples_seen)


def open_run(config: TrainConfig, run_id: str, folder: Path) -> Any | None:
    """A wandb run of id `run_id`, also after a resume; None, with a warning, where none can be had."""
    try:
        import wandb

        return wandb.init(
            id=run_id,
            name=run_id,
            project=config.tracker.project,
            entity=config.tracker.entity,
            group=config.study,
            config=asdict(config),
            dir=str(folder),
            mode=mode_of(config.tracker),  # type: ignore[arg-type]
            resume="allow",
            settings=wandb.Settings(
                init_timeout=INIT_SECONDS,
                console="off",
                silent=True,
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,
                x_disable_meta=True,
            ),
        )
    except Exception as error:
        warn(error)
        return None


def close_run(run: Any | None) -> None:
    """Finish; a failure is a warning."""
    if run is not None:
        try:
            run.finish()
        except Exception as error:
            warn(error)


def mode_of(tracker: TrackerConfig) -> str:
    """online | offline: as configured, else by WANDB_MODE, else online exactly where there is a key."""
    if tracker.mode not in ("auto", "online", "offline"):
        raise ConfigError(f"tracker.mode={tracker.mode}: use auto, online or offline")
    wished = os.environ.get("WANDB_MODE") if tracker.mode == "auto" else tracker.mode
    if wished in ("online", "offline"):
        return wished
    return "online" if has_key() else "offline"


def has_key() -> bool:
    """Whether wandb would find a key: in the environment, or where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    host = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").split("//")[-1].split("/")[0]
    try:
        return host in netrc.read_text()
    except OSError:
        return False


def warn(error: Exception) -> None:
    """One line on stderr."""
    print(f"warning: wandb: {type(error).__name__}: {error}; training goes on without it", file=sys.stderr, flush=True)
