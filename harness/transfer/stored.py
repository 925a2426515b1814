"""Transfer results that are already in a run's folder: whether they are whole, and of the images that lie here now."""

from pathlib import Path

from harness.data.on_demand import digest_here
from harness.paths import data_root
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
