"""WebDataset tars that someone else wrote, packed again: shuffled, checked, converted.

data.path is a brace pattern or a folder of tars; names that hold `train`, `val` or `test` are that split. Nothing is
ever unpacked to disk, so that a path in a tar that is absolute or climbs out (`..`) can do no harm: it is only a name,
and such samples are dropped as `unsafe_name`.
"""

from pathlib import Path, PurePosixPath

import numpy as np
from braceexpand import braceexpand

from harness.config import DataConfig
from harness.data.foreign_shard import image_of, label_of, members
from harness.data.images import BadImageError
from harness.data.sources import Source
from harness.data.sources.entries import Entries, entries_source
from harness.data.sources.lists import SPLIT_NAMES
from harness.data.urls import scheme_of
from harness.errors import ConfigError, DatasetError

NO_IMAGE = -1  # entry that is dropped when it is read


def open_shards(cfg: DataConfig) -> Source:
    """Raises DatasetError for a file that is no whole tar, ConfigError for a pattern of URLs."""
    paths = find_shards(cfg)
    entries = Entries()
    labels: dict[str, int] = {}
    places: list[tuple[int, int]] = []  # shard, offset; NO_IMAGE where the sample has a fault
    faults: dict[int, BadImageError] = {}
    rows: dict[str, list[int]] = {}
    for number, path in enumerate(paths):
        samples, repeated = members(path, str(path))
        with open(path, "rb") as file:
            for key, files in samples.items():
                size, offset, label = 0, NO_IMAGE, ""
                try:
                    check_name(key)
                    if key in repeated:
                        raise BadImageError("repeated_member", key)
                    image = image_of(files)
                    label = label_of(file, files, cfg.label_column, str(path), key)
                    size, offset = image.size, image.offset
                except BadImageError as error:
                    faults[len(entries)] = error
                rows.setdefault(split_of(path), []).append(len(entries))
                entries.add(f"{path.name}:{key}", size, labels.setdefault(label, len(labels)) if label else 0)
                places.append((number, offset))
    if not labels:
        raise DatasetError(f"{paths[0]}: no sample has an image and a label (data.label_column=EXTENSION or FIELD)")
    names = sort_classes(entries, labels)
    given: dict[str, np.ndarray] = {split: np.array(rows[split]) for split in ("train", "val", "test") if split in rows}
    if "train" not in given:
        raise DatasetError(f"data.path={cfg.path}: shards of {', '.join(given)} and none of train")

    def read(i: int) -> bytes:
        if i in faults:
            raise faults[i]
        number, offset = places[i]
        with open(paths[number], "rb", buffering=0) as file:
            file.seek(offset)
            return file.read(entries.sizes[i])

    return entries_source(entries, given, names, read, cfg)


def find_shards(cfg: DataConfig) -> list[Path]:
    """Tars that the pattern names, or those in the folder. Raises ConfigError and DatasetError."""
    if cfg.path is None:
        raise DatasetError(
            "data.path is not given: harness data pack webdataset 'data.path=\"DIR/x-{000..009}.tar\"' …"
        )
    if scheme_of(cfg.path):
        raise ConfigError(f"data.path={cfg.path}: a URL; `harness data index` adopts remote shards as they are")
    folder = Path(cfg.path).expanduser()
    paths = sorted(folder.rglob("*.tar")) if folder.is_dir() else [Path(name) for name in braceexpand(str(folder))]
    if not paths:
        raise DatasetError(f"data.path={cfg.path}: no tar there")
    return paths


def split_of(path: Path) -> str:
    """By a word in the shard's name: train unless it says val or test."""
    words = path.stem.lower().replace("_", "-").split("-")
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), "train")


def check_name(key: str) -> None:
    """Raises BadImageError for a name that would leave the folder that it is unpacked in."""
    if key.startswith("/") or ".." in PurePosixPath(key).parts:
        raise BadImageError("unsafe_name", key)


def sort_classes(entries: Entries, labels: dict[str, int]) -> list[str]:
    """Class names, whole numbers as numbers; the entries are renumbered to them."""
    whole = all(text.lstrip("-").isdigit() for text in labels)
    names = sorted(labels, key=int) if whole else sorted(labels)
    number = np.zeros(len(labels), np.int32)
    for place, name in enumerate(names):
        number[labels[name]] = place
    for i, label in enumerate(entries.labels):
        entries.labels[i] = int(number[label])
    return names
