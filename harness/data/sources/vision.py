"""Any classification set of torchvision.datasets: data.torchvision=CIFAR10, downloaded where the network allows it.

A set's own splits are kept (train=True/False, split=train/val/test); what is missing is cut from train.
"""

import inspect
import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.sources import Source
from harness.data.sources.common import fetched_folder
from harness.data.sources.entries import Entries, entries_source
from harness.errors import ConfigError, DatasetError, near_matches

SPLIT_ARGUMENTS = ("split", "image_set")


def open_torchvision(cfg: DataConfig) -> Source:
    """Raises ConfigError for a name that torchvision does not have, DatasetError where its files are not there."""
    kind = find_class(cfg.torchvision)
    root = Path(cfg.path).expanduser() if cfg.path else fetched_folder(cfg.name)
    parts = open_splits(kind, root)
    classes = class_names(parts["train"], cfg)
    entries, given, places = Entries(), {}, []
    for split, part in parts.items():
        before = len(entries)
        for i, label in enumerate(labels_of(part)):
            entries.add(f"{split}{i:08d}", 0, int(label))
            places.append((part, i))
        given[split] = np.arange(before, len(entries))
    if max(entries.labels) >= len(classes):
        raise DatasetError(f"torchvision {cfg.torchvision}: label {max(entries.labels)}, {len(classes)} class names")

    def read(i: int) -> bytes:
        part, number = places[i]
        image = part[number][0]
        if not isinstance(image, Image.Image):
            raise DatasetError(f"torchvision {cfg.torchvision}: its samples are no images but {type(image).__name__}")
        buffer = io.BytesIO()
        image.save(buffer, "PNG", compress_level=1)
        return buffer.getvalue()

    return entries_source(entries, given, classes, read, cfg)


def find_class(name: str | None) -> Any:
    """The class in torchvision.datasets."""
    import torchvision.datasets as sets

    known = [item for item in sets.__all__ if inspect.isclass(getattr(sets, item, None))]
    if name not in known:
        raise ConfigError(f"data.torchvision={name}: not in torchvision.datasets.{near_matches(str(name), known)}")
    return getattr(sets, str(name))


def open_splits(kind: Any, root: Path, download: bool = False) -> dict[str, Any]:
    """The set's own splits, opened. Raises DatasetError that says how to get the files."""
    parameters = inspect.signature(kind.__init__).parameters
    more = {"download": True} if download and "download" in parameters else {}
    found: dict[str, Any] = {}
    try:
        for arguments, split in split_arguments(parameters):
            try:
                found[split] = kind(root=str(root), **arguments, **more)
            except ValueError:  # a split that this set does not have
                if split == "train":
                    raise
    except (RuntimeError, OSError, ValueError) as error:
        raise DatasetError(
            f"torchvision {kind.__name__} is not in {root} ({str(error).splitlines()[0]}): `harness data fetch` "
            "downloads it where torchvision can, or name the folder that holds it (data.path=DIR)"
        ) from error
    return found


def split_arguments(parameters: Any) -> list[tuple[dict[str, Any], str]]:
    """The arguments that open each split of a set with these parameters."""
    if "train" in parameters:
        return [({"train": True}, "train"), ({"train": False}, "test")]
    name = next((name for name in SPLIT_ARGUMENTS if name in parameters), None)
    if name is None:
        return [({}, "train")]
    default = str(parameters[name].default)
    first = default if default in ("trainval", "balanced", "letters") else "train"
    return [({name: first}, "train"), ({name: "val"}, "val"), ({name: "test"}, "test")]


def labels_of(part: Any) -> Any:
    """Labels of every image, without decoding them where the set keeps a list."""
    for name in ("targets", "labels", "_labels", "y"):
        labels = getattr(part, name, None)
        if labels is not None and len(labels) == len(part):
            return np.asarray(labels).astype(int).tolist()
    return [int(part[i][1]) for i in range(len(part))]


def class_names(part: Any, cfg: DataConfig) -> list[str]:
    """Names of the set's classes, else their numbers."""
    names = getattr(part, "classes", None)
    if names:
        return [str(name[0]) if isinstance(name, tuple | list) else str(name) for name in names]
    return [str(number) for number in range(max(labels_of(part)) + 1)]
