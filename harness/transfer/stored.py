"""Transfer results that are already in a run's folder: whether they are whole, and of the images that lie here now."""

from pathlib import Path

from harness.data.on_demand import digest_here
from harness.paths import data_root
from harness.run_folder import read_json, target_data, target_digest


def why_again(path: Path) -> str | None:
    """Why a target must be evaluated (again); None where its file is whole and the target's images are the same.

    Args:
        path: of the run's transfer file. A target that is not packed here cannot have changed.
    """
    content = read_json(path)
    if content is None:
        return "damaged" if path.exists() else "not evaluated yet"
    if not isinstance(content.get("rows"), list):
        return "not a transfer result"
    data = target_data(content)
    then, now = target_digest(content), digest_here(data, data_root()) if data else None
    if then and now and then != now:
        return f"of other images than {data} holds now ({then[:12]}, now {now[:12]})"
    return None
