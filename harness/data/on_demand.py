"""Small sets that need no download are packed by the first command that needs them; others are asked for."""

from functools import cache
from pathlib import Path

from harness.compose import compose
from harness.config import DataConfig
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.pack import pack
from harness.errors import DatasetError
from harness.paths import data_root, has_option


def open_or_pack(name: str) -> Dataset:
    """The data set `conf/data/<name>.yaml`, packed here and now when its configuration says pack_on_demand.

    A name that has no such file is a set of the user's below the data root.
    Raises DatasetError with the command to run when the set is not there and not packed on demand.
    """
    cfg, folder = located(name, data_root())
    if cfg is not None and cfg.pack_on_demand:
        pack(cfg, data_root(), workers=1, progress=False)
    return open_dataset(folder, allow_shell=cfg is not None and cfg.allow_shell)


@cache  # a study asks once a run
def digest_here(name: str, root: Path) -> str | None:
    """The digest of a data set below `root`; None where it is not packed there."""
    cfg, folder = located(name, root)
    try:
        return open_dataset(folder, cheap_checks=False, allow_shell=cfg is not None and cfg.allow_shell).digest
    except DatasetError:
        return None


def located(name: str, root: Path) -> tuple[DataConfig | None, Path]:
    """conf/data/<name>.yaml, None where there is no such file, and the set's folder below `root`."""
    cfg = compose([f"data={name}"]).data if has_option("data", name) else None
    return cfg, root / name if cfg is None else dataset_folder(cfg, root)
