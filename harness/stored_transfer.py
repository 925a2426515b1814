"""Transfer results that are already in a run's folder: whether they are whole, and of the images that lie here now."""

from pathlib import Path
from typing import Any

from harness.data.on_demand import digest_here
from harness.paths import data_root
from harness.run_folder import read_json, target_data, target_digest
from harness.study.damage import is_list_of, sound_rows


def why_again(path: Path) -> str | None:
    """Why a target must be evaluated (again); None where its file is whole and the target's images are the same.

    Args:
        path: of the run's transfer file. A target that is not packed here cannot have changed.
    """
    content = read_json(path)
    if content is None:
        return "damaged" if path.exists() else "not evaluated yet"
    if bad := damage(content, path.stem):
        return f"damaged: {bad}"
    data = target_data(content)
    then, now = target_digest(content), digest_here(data, data_root()) if data else None
    if then and now and then != now:
        return f"of other images than {data} holds now ({then[:12]}, now {now[:12]})"
    return None


def damage(content: dict[str, Any], name: str) -> str:
    """What is wrong with the transfer file `name`; '' where every row can go to the table, the target to a reader."""
    _, bad = sound_rows(content, name)
    if bad:
        return bad
    target = content.get("target")
    if target is None:  # files of the first days
        return ""
    if not isinstance(target, dict) or not isinstance(target.get("name"), str):
        return "target: no object with a name"
    return "" if is_list_of(target.get("shared_class_names") or [], str) else "target: shared_class_names: no list"
