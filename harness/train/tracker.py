"""A mirror of metrics.jsonl at Weights & Biases, under the run's id. Never read back, never in the way of training.

A thread of its own talks to wandb, so that training waits for neither network nor disk. Without a key (or with
tracker.mode=offline) the run file is written below the run's folder; `harness sync RUN` replays metrics.jsonl later.
Each attempt begins with all rows that metrics.jsonl holds by then: what an earlier one could not send is not lost, and
the newest offline file is complete. Whatever goes wrong is one warning, and training goes on without the mirror.
"""

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.config import TrackerConfig, TrainConfig
from harness.errors import ConfigError, near_matches
from harness.run_folder import read_metrics

TRACKERS = ("none", "wandb")
HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")  # where wandb goes by itself, older and newer versions
INIT_SECONDS = 30.0  # how long wandb tries a dead network before the run file is written offline instead
CLOSE_SECONDS = 60.0  # how long a run that is done waits for wandb to take its last rows

Rows = list[dict[str, Any]]
Mirror = Callable[[Rows], None]


@contextmanager
def start_tracker(config: TrainConfig, run_id: str, folder: Path, first_rank: bool = True) -> Iterator[Mirror]:
    """A function that mirrors rows of metrics.jsonl, once they are written there, while training lasts.

    Raises ConfigError for a tracker or a mode that there is not; nothing else.
    """
    if config.tracker.name not in TRACKERS:
        raise ConfigError(f"tracker={config.tracker.name}.{near_matches(config.tracker.name, TRACKERS)}")
    if config.tracker.name == "none" or not first_rank:
        yield lambda rows: None
        return
    waiting: queue.SimpleQueue[Rows | None] = queue.SimpleQueue()
    mode = mode_of(config.tracker)
    thread = threading.Thread(target=send, args=(config, run_id, folder, mode, waiting), daemon=True)
    thread.start()
    begun = False

    def mirror(rows: Rows) -> None:
        nonlocal begun
        waiting.put(rows if begun else read_metrics(folder))
        begun = True

    try:
        yield mirror
    finally:
        waiting.put(None)
        thread.join(CLOSE_SECONDS)
        if thread.is_alive():
            warn(TimeoutError(f"did not take the last rows in {CLOSE_SECONDS:g} s"))


def send(config: TrainConfig, run_id: str, folder: Path, mode: str, waiting: "queue.SimpleQueue[Rows | None]") -> bool:
    """Rows to wandb as they come, up to None. Returns whether it went well; a failure is a warning."""
    try:
        run = open_run(config, run_id, folder, mode)
        while (rows := waiting.get()) is not None:
            log_rows(run, rows)
        run.finish()
        return True
    except Exception as error:
        warn(error)
        return False


def log_rows(run: Any, rows: Rows) -> None:
    """One wandb step an evaluation or log step, at its samples seen: `val/top1`, `step/loss`, …"""
    by_samples: dict[int, dict[str, float]] = {}
    for row in rows:
        values = {f"{row['split']}/{key}": value for key, value in row.items() if key not in ("samples_seen", "split")}
        by_samples.setdefault(row["samples_seen"], {}).update(values)
    for samples_seen, values in sorted(by_samples.items()):
        run.log({"samples_seen": samples_seen, **values}, step=samples_seen)


def open_run(config: TrainConfig, run_id: str, folder: Path, mode: str) -> Any:
    """A wandb run of id `run_id`, also after a resume. What cannot be reached online is written offline."""
    import wandb

    settings = wandb.Settings(
        init_timeout=INIT_SECONDS,
        console="off",
        silent=True,
        disable_git=True,
        disable_code=True,
        x_disable_stats=True,
        x_disable_meta=True,
    )
    options: dict[str, Any] = {
        "id": run_id,
        "name": run_id,
        "project": config.tracker.project,
        "entity": config.tracker.entity,
        "group": config.study,
        "config": asdict(config),
        "dir": str(folder),
        "settings": settings,
    }
    if mode == "online":
        try:
            return wandb.init(mode="online", resume="allow", **options)
        except Exception as error:
            warn(error, "its run file is written offline, for `harness sync`")
            wandb.teardown()  # the service would hold the run's id
    return wandb.init(mode="offline", **options)


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
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    netrc = Path(os.environ.get("NETRC") or Path.home() / ".netrc")
    url = os.environ.get("WANDB_BASE_URL")
    hosts = (url.split("//")[-1].split("/")[0],) if url else HOSTS
    try:
        words = netrc.read_text().split()
    except OSError:
        return False
    return any(host in words for host in hosts)


def warn(error: Exception, instead: str = "training goes on without it") -> None:
    """One line on stderr."""
    text = " ".join(str(error).split())
    print(f"warning: wandb: {type(error).__name__}: {text}; {instead}", file=sys.stderr, flush=True)
