"""A run between its plan and its execution: frozen configuration, whether anything is left to do, and how it ended.

Needs no torch: a launcher that finds everything finished answers at once.
"""

import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from harness.cell import Cell
from harness.config import TrainConfig
from harness.errors import ConfigError, HarnessError
from harness.run_folder import read_result, read_status, write_atomic, write_status
from harness.run_lock import EXIT_BUSY as EXIT_BUSY
from harness.stored_transfer import why_again

EXIT_FAILED = 1
EXIT_DISK_FULL = 74  # failed, and there was no room to say so in status.json
EXIT_REQUEUE = 85  # asked to stop, made a checkpoint: start it again and it goes on
KEPT = ("attempt", "failures", "started_at", "host", "samples_seen", "horizon_samples", "best_val_top1")


def submit(cell: Cell, study_dir: Path) -> Path:
    """Create the run's folder and freeze its configuration there; harmless where it already is."""
    folder = study_dir / cell.run_id
    frozen = {
        "run_id": cell.run_id,
        "config_hash": cell.config_hash,
        "transfer_id": cell.transfer_id,
        "identity": cell.identity,
        "config": asdict(cell.config),
    }
    write_atomic(folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(frozen)))
    return folder


class Frozen(NamedTuple):
    """What was submitted: the configuration, and the hashes that its result and transfer are known by."""

    config: TrainConfig
    config_hash: str
    transfer_id: str


def load_frozen(folder: Path) -> Frozen:
    """Read a run's config.yaml. Raises HarnessError naming it when it is no run's configuration."""
    try:
        frozen = OmegaConf.load(folder / "config.yaml")
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(TrainConfig), frozen.config))
    except (OSError, ValueError, AttributeError) as error:
        raise HarnessError(f"{folder / 'config.yaml'}: not a run's configuration ({error})") from error
    assert isinstance(config, TrainConfig)
    return Frozen(config, str(frozen.config_hash), str(frozen.transfer_id))


def own_transfer_id(folder: Path) -> str:
    """The transfer_id of a run's config.yaml, '' where none can be read; no more of it, for 10,000 runs."""
    path = folder / "config.yaml"
    lines = path.read_text(errors="replace").splitlines()[:10] if path.is_file() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("transfer_id:")), "")


def is_complete(folder: Path, config_hash: str, transfer_id: str) -> bool:
    """Finished, and its transfer evaluated: whole, and on the images that its target holds now.

    Where no checkpoint was kept nothing can be evaluated again, and what there is stands.
    """
    if read_result(folder, config_hash) is None:
        return False
    path = transfer_file(folder, transfer_id)
    return why_again(path) is None or (path.exists() and not checkpoints(folder))


def transfer_file(folder: Path, transfer_id: str) -> Path:
    """Where the rows of a target and protocol are."""
    return folder / "transfer" / f"{transfer_id}.json"


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoint files of a run."""
    return sorted(path for path in (folder / "checkpoints").glob("*") if path.is_file())


def check_keep(keep: str) -> None:
    """Raise ConfigError for a wish that there is not."""
    if keep not in ("best", "all"):
        raise ConfigError(f"keep={keep}: use best or all")


def prune(folder: Path, keep: str) -> None:
    """Of a finished run's checkpoints keep the best, or all of them. Raises ConfigError for another wish."""
    check_keep(keep)
    for path in checkpoints(folder) if keep == "best" else []:
        if not path.name.startswith("best."):
            path.unlink()


def settle(folder: Path, exit_code: int, out_of_memory: bool = False) -> dict[str, Any]:
    """status.json of a run whose process ended without a result: what it wrote itself, else what its exit code says.

    Args:
        exit_code: as multiprocessing gives it: negative for a signal.
        out_of_memory: the kernel killed a process for memory while the run was going on.
    """
    status = read_status(folder)
    if status.get("state") == "failed":
        return status
    kept = {key: status[key] for key in KEPT if key in status}
    if exit_code == EXIT_REQUEUE:
        state, reason, error = "waiting", "interrupted", "asked to stop; goes on from its checkpoint"
    else:
        state, (reason, error) = "failed", cause(exit_code, out_of_memory)
        kept["failures"] = int(kept.get("failures") or 0) + 1
    try:
        write_status(folder, state, reason, error=error, **kept)
    except OSError as full:
        error += f" (and status.json cannot be written: {full})"
    return {**kept, "state": state, "reason": reason, "error": error}


def cause(exit_code: int, out_of_memory: bool) -> tuple[str, str]:
    """Reason and message of a process that could not say them itself."""
    if exit_code == EXIT_DISK_FULL:
        return "disk_full", "no space left, not even for status.json; see log.txt"
    if exit_code >= 0:
        return "error", f"exit code {exit_code}; see log.txt"
    name = signal.Signals(-exit_code).name
    if out_of_memory and -exit_code == signal.SIGKILL:
        return "out_of_memory", f"killed by {name} when the kernel ran out of memory (its count of such kills rose)"
    if -exit_code == signal.SIGBUS:
        return "killed", f"killed by {name}: most often /dev/shm is too small (df -h /dev/shm)"
    return "killed", f"killed by {name}"
