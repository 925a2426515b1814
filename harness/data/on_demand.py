"""Small sets that need no download are packed by the first command that needs them; others are asked for."""

from functools import cache
from pathlib import Path

from harness.compose import compose
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.pack import pack
from harness.errors import DatasetError
from harness.paths import data_root, has_option


def open_or_pack(name: str) -> Dataset:
    """The data set `conf/data/<name>.yaml`, packed here and now when its configuration says pack_on_demand.

    A name that has no such file is a set of the user's below the data root.
    Raises DatasetError with the command to run when the set is not there and not packed on demand.
    """
    if not has_option("data", name):
        return open_dataset(data_root() / name)
    cfg = compose([f"data={name}"]).data
    if cfg.pack_on_demand:
        pack(cfg, data_root(), workers=1, progress=False)
    return open_dataset(dataset_folder(cfg, data_root()), allow_shell=cfg.allow_shell)


@cache  # a study asks once a run
def digest_here(data: str, root: Path) -> str | None:
    """The digest of a data set below `root`; None where it is not packed there."""
    if has_option("data", data):
        cfg = compose([f"data={data}"]).data
        folder, shell = dataset_folder(cfg, root), cfg.allow_shell
    else:
        folder, shell = root / data, False
    try:
        return open_dataset(folder, cheap_checks=False, allow_shell=shell).digest
    except DatasetError:
        return None
