"""A run between its plan and its execution: frozen configuration, and whether anything is left to do.

Needs no torch: a launcher that finds everything finished answers at once.
"""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from omegaconf import OmegaConf

from harness.cell import Cell
from harness.config import TrainConfig
from harness.errors import HarnessError
from harness.run_folder import read_result, write_atomic

EXIT_BUSY = 75  # another process has the run
EXIT_REQUEUE = 85  # asked to stop, made a checkpoint: start it again and it goes on


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


def is_complete(folder: Path, config_hash: str, transfer_id: str) -> bool:
    """Finished, and its transfer evaluated."""
    return read_result(folder, config_hash) is not None and transfer_file(folder, transfer_id).exists()


def transfer_file(folder: Path, transfer_id: str) -> Path:
    """Where the rows of a target and protocol are."""
    return folder / "transfer" / f"{transfer_id}.json"
