"""Transfer results that are already in a run's folder: whether they are whole, and of the images that lie here now."""

from functools import cache
from pathlib import Path

from harness.compose import compose
from harness.data.manifest import dataset_folder, open_dataset
from harness.errors import DatasetError
from harness.paths import data_root, has_option
from harness.run_folder import read_json


def why_again(path: Path, data: str) -> str | None:
    """Why a target must be evaluated (again); None where its file is whole and the target's images are the same.

    Args:
        path: of the run's transfer file.
        data: the target's data set, a name. One that is not packed here cannot have changed.
    """
    content = read_json(path)
    if content is None:
        return "damaged" if path.exists() else "not evaluated yet"
    target = content.get("target")
    if not isinstance(target, dict) or not isinstance(content.get("rows"), list):
        return "not a transfer result"
    digest = digest_here(data, data_root())
    if digest is not None and digest != target.get("digest"):
        return f"of other images than {data} holds now ({str(target.get('digest'))[:12]}, now {digest[:12]})"
    return None


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
