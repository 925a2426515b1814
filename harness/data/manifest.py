"""A packed data set on disk: plain WebDataset tars, manifest.json, and one memory-mapped index a split."""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import DataConfig
from harness.data.remote import RemoteShard
from harness.data.rows import MAPPED_AT_MOST, Rows
from harness.data.urls import check_url, scheme_of
from harness.errors import DatasetError
from harness.paths import conf_dir

FORMAT_VERSION = 1
SEAL = "manifest_sha256"
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
    digest: str  # sha256 over keys, labels and decoded pixels (verify=headers: stored bytes) in packed order
    splits: dict[str, Split]
    dropped: dict[str, int] = field(default_factory=dict)  # images that are not in it, by reason
    converted: dict[str, int] = field(default_factory=dict)  # odd images that are, by what they took
    shared_originals: dict[str, int] = field(default_factory=dict)  # images of a split whose original training has too
    notes: dict[str, Any] = field(default_factory=dict)  # what the source says of itself
    verify: str = "pixels"  # what was looked at when it was packed, and what its digest is over: pixels | headers
    adopted: dict[str, Any] = field(default_factory=dict)  # of foreign shards: where they are, how labels were read

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def shards(self, split: str) -> list[Path | RemoteShard]:
        """Where each shard of a split lies, in packed order: below the folder, elsewhere, or behind a URL."""
        return [
            RemoteShard(shard["file"], shard["bytes"], shard["sha256"])
            if scheme_of(shard["file"])
            else self.folder / shard["file"]
            for shard in self.splits[split].shards
        ]

    def index(self, split: str) -> np.ndarray:
        """Memory-mapped rows of a split: shard, offset and size of the image's bytes, label, origin.

        Raises DatasetError when the file is missing or damaged.
        """
        path = index_path(self.folder, split)
        try:
            rows = np.load(path, mmap_mode="r")
            if rows.dtype != INDEX or rows.ndim != 1:
                raise ValueError(f"rows of {rows.dtype}")
        except (OSError, ValueError) as error:
            raise DatasetError(f"{path}: missing or damaged ({error}); pack again with --force") from error
        return rows

    def rows(self, split: str) -> np.ndarray | Rows:
        """`index`, for reading a few rows at a time: of a large split not mapped, so that little of it is resident."""
        mapped = self.index(split)
        return mapped if len(mapped) <= MAPPED_AT_MOST else Rows(index_path(self.folder, split), mapped)


def dataset_folder(cfg: DataConfig, root: Path) -> Path:
    """Where a data set lies."""
    return root / cfg.name


def index_path(folder: Path, split: str) -> Path:
    """The index file of a split."""
    return folder / f"{split}.index.npy"


def open_dataset(folder: Path, cheap_checks: bool = True, allow_shell: bool = False) -> Dataset:
    """Open a packed set after cheap checks: manifest, index lengths, sizes of the shards that are on this machine.

    Raises DatasetError naming what is wrong and the command that mends it, ConfigError for shards whose reading would
    run a shell command, unless `allow_shell`.
    """
    path = folder / "manifest.json"
    try:
        dataset = from_manifest(folder, json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DatasetError(
            f"{folder}: no packed data set here; `{pack_command_for(folder.name)}` makes one "
            "(the data root is $HARNESS_DATA, else ./data)"
        ) from error
    except OSError as error:
        raise DatasetError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"{path}: damaged ({type(error).__name__}: {error}); pack again with --force") from error
    for split in dataset.splits.values():
        for shard in split.shards:
            check_url(shard["file"], allow_shell)
    for name, split in dataset.splits.items() if cheap_checks else ():
        check_cheaply(dataset, name, split)
    return dataset


def from_manifest(folder: Path, manifest: dict[str, Any]) -> Dataset:
    """The data set that a manifest describes. Raises DatasetError for another format."""
    if manifest["format_version"] != FORMAT_VERSION:
        raise DatasetError(
            f"{folder}: packed in format {manifest['format_version']}, this harness reads {FORMAT_VERSION}; "
            "pack again with --force"
        )
    return Dataset(
        folder=folder,
        name=manifest["name"],
        title=manifest["title"],
        licence=manifest["licence"],
        class_names=manifest["class_names"],
        channels=manifest["channels"],
        image_size=manifest["image_size"],
        digest=manifest["digest"],
        splits={name: Split(**split) for name, split in manifest["splits"].items()},
        dropped=manifest.get("dropped", {}),
        converted=manifest.get("converted", {}),
        shared_originals=manifest.get("shared_originals", {}),
        notes=manifest["notes"],
        verify=manifest.get("config", {}).get("verify", "pixels"),
        adopted=manifest.get("adopted", {}),
    )


def sealed(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest with a sha256 of its own content, by which `harness data check` sees that it was edited."""
    content = {name: value for name, value in manifest.items() if name != SEAL}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return {**content, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def manifest_problems(folder: Path) -> list[str]:
    """Whether a manifest is as it was written; one without a seal is of an older version, and can say nothing."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    if SEAL in manifest and sealed(manifest) != manifest:
        return [f"{path}: edited since it was written (its {SEAL} is another)"]
    return []


def pack_command_for(name: str) -> str:
    """The command that packs the set of this name: one of conf/data, or the user's own."""
    if (conf_dir() / "data" / f"{name}.yaml").is_file():
        return f"harness data pack {name}"
    return f"harness data pack folder data.path=DIR data.name={name}"


def check_cheaply(dataset: Dataset, name: str, split: Split) -> None:
    """Index length against manifest, shard sizes on disk; `harness data check` reads everything."""
    again = "index" if dataset.adopted else "pack"
    rows = len(dataset.index(name))
    if rows != split.samples:
        raise DatasetError(
            f"{index_path(dataset.folder, name)}: {rows} rows, the manifest says {split.samples}; "
            f"{again} again with --force"
        )
    folder = str(dataset.folder)
    for shard in split.shards:
        if scheme_of(shard["file"]):
            continue
        path = os.path.join(folder, shard["file"])  # noqa: PTH118 (three times as quick: there may be 30,000)
        try:
            size = os.stat(path).st_size  # noqa: PTH116
        except OSError:
            size = None
        if size != shard["bytes"]:
            found = "missing" if size is None else f"{size} bytes"
            raise DatasetError(f"{path}: {found}, the manifest says {shard['bytes']} bytes; {again} again with --force")
