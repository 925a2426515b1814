"""A packed data set on disk: plain WebDataset tars, manifest.json, and one memory-mapped index a split."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import DataConfig
from harness.errors import DatasetError

FORMAT_VERSION = 1
INDEX = np.dtype([("shard", "<u4"), ("offset", "<u8"), ("size", "<u4"), ("label", "<i4"), ("origin", "<u8")])


@dataclass(frozen=True)
class Split:
    """One split: its shards in packed order."""

    samples: int
    shards: list[dict[str, Any]]  # file, samples, bytes, sha256
    class_counts: list[int]


@dataclass(frozen=True)
class Dataset:
    """A packed data set, opened."""

    folder: Path
    name: str
    title: str
    licence: str
    class_names: list[str]
    channels: int
    image_size: int | None
    digest: str  # sha256 over keys, labels and decoded pixels in packed order
    splits: dict[str, Split]
    notes: dict[str, Any] = field(default_factory=dict)  # what the source says of itself

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def index(self, split: str) -> np.ndarray:
        """Memory-mapped rows of a split: shard, offset and size of the image's bytes, label, origin."""
        return np.load(index_path(self.folder, split), mmap_mode="r")


def dataset_folder(cfg: DataConfig, root: Path) -> Path:
    """Where a data set lies."""
    return root / cfg.name


def index_path(folder: Path, split: str) -> Path:
    """The index file of a split."""
    return folder / f"{split}.index.npy"


def open_dataset(folder: Path) -> Dataset:
    """Open a packed set after cheap checks: manifest, index lengths, shard sizes.

    Raises DatasetError naming what is wrong and the command that mends it.
    """
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text())
        splits = {name: Split(**split) for name, split in manifest["splits"].items()}
    except FileNotFoundError as error:
        raise DatasetError(
            f"{folder}: no packed data set here; `harness data pack {folder.name}` makes one "
            "(the data root is $HARNESS_DATA, else ./data)"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DatasetError(f"{path}: damaged ({error}); pack again with --force") from error
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DatasetError(f"{path}: format {manifest.get('format_version')}, this harness reads {FORMAT_VERSION}")
    dataset = Dataset(
        folder=folder,
        name=manifest["name"],
        title=manifest["title"],
        licence=manifest["licence"],
        class_names=manifest["class_names"],
        channels=manifest["channels"],
        image_size=manifest["image_size"],
        digest=manifest["digest"],
        splits=splits,
        notes=manifest["notes"],
    )
    for name, split in splits.items():
        check_cheaply(dataset, name, split)
    return dataset


def check_cheaply(dataset: Dataset, name: str, split: Split) -> None:
    """Index length against manifest, shard sizes on disk; `harness data check` reads everything."""
    try:
        rows = len(dataset.index(name))
    except (OSError, ValueError) as error:
        path = index_path(dataset.folder, name)
        raise DatasetError(f"{path}: missing or damaged; pack again with --force") from error
    if rows != split.samples:
        raise DatasetError(
            f"{index_path(dataset.folder, name)}: {rows} rows, the manifest says {split.samples}; "
            "pack again with --force"
        )
    for shard in split.shards:
        path = dataset.folder / shard["file"]
        size = path.stat().st_size if path.exists() else None
        if size != shard["bytes"]:
            found = "missing" if size is None else f"{size} bytes"
            raise DatasetError(f"{path}: {found}, the manifest says {shard['bytes']} bytes; pack again with --force")
