"""Parquet files with image bytes inside: the layout of the Hugging Face hub.

An image column holds {bytes, path} or bytes alone; a label column numbers (names come from the schema's metadata, where
`datasets` puts them) or names. Files whose name begins with train, validation, val or test, as the hub's do, are that
split. Parquet cannot be read at random: the bytes are written out once into a file beside the cache, which goes when
the set is packed.
"""

import hashlib
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.config import DataConfig
from harness.data.images import BadImageError
from harness.data.sources import Source
from harness.data.sources.entries import Entries, entries_source
from harness.data.sources.lists import LABEL_COLUMNS, SPLIT_NAMES, find_column, group_name
from harness.errors import ConfigError, DatasetError
from harness.paths import cache_root

IMAGE_COLUMNS = ("image", "img", "jpg", "png", "bytes", "image_bytes", "picture")
ROWS_AT_ONCE = 256


def open_parquet(cfg: DataConfig) -> Source:
    """Raises DatasetError naming the file that cannot be read, ConfigError for a column that is not there."""
    files = find_files(cfg)
    columns = Columns(files[0], cfg)
    entries, given = Entries(), {}
    labels: dict[str, int] = {}
    values: list[str] = []
    for split, paths in by_split(files).items():
        before = len(entries)
        for path in paths:
            for row, size, label, group in list_rows(path, columns):
                if label not in labels:
                    values.append(label)
                entries.add(f"{path.name}:{row}", size, labels.setdefault(label, len(labels)), group)
        given[split] = np.arange(before, len(entries))
    names = renumber(entries, values, columns.class_names)
    spool = Spool(files, columns, entries)
    return entries_source(entries, given, names, spool.read, cfg, warm=spool.fill, done=spool.remove)


def find_files(cfg: DataConfig) -> list[Path]:
    """data.path: a file, or a folder of them."""
    if cfg.path is None:
        raise DatasetError("data.path is not given: harness data pack parquet data.path=DIR data.name=mine")
    path = Path(cfg.path).expanduser()
    files = [path] if path.is_file() else sorted(path.rglob("*.parquet"))
    if not files:
        raise DatasetError(f"data.path={path}: no parquet file there")
    return files


def by_split(files: list[Path]) -> dict[str, list[Path]]:
    """Files of each split by how their names begin; all are train where none begins so."""
    splits: dict[str, list[Path]] = {}
    for path in files:
        word = path.stem.lower().split("-")[0].split("_")[0]
        splits.setdefault(SPLIT_NAMES.get(word, "train"), []).append(path)
    if "train" not in splits:
        raise DatasetError(f"{files[0].parent}: files of {', '.join(splits)} and none of train")
    return {split: splits[split] for split in ("train", "val", "test") if split in splits}


class Columns:
    """Which columns hold what, from the first file."""

    def __init__(self, path: Path, cfg: DataConfig) -> None:
        schema = open_file(path).schema_arrow
        empty = schema.empty_table().to_pandas()
        self.image = find_column(empty, path, cfg.image_column, IMAGE_COLUMNS, "image_column")
        self.label = find_column(empty, path, cfg.label_column, LABEL_COLUMNS, "label_column")
        self.group = group_name(empty, path, cfg.group_column)
        self.class_names = hub_class_names(schema.metadata or {}, self.label)

    def all(self) -> list[str]:
        return [name for name in (self.image, self.label, self.group) if name]


def hub_class_names(metadata: dict[bytes, bytes], label: str) -> list[str] | None:
    """Names of a ClassLabel column, as `datasets` stores them in the schema's metadata; None where it did not."""
    try:
        feature = json.loads(metadata[b"huggingface"])["info"]["features"][label]
        return [str(name) for name in feature["names"]]
    except (KeyError, TypeError, ValueError):
        return None


def open_file(path: Path) -> Any:
    """Raises DatasetError where pyarrow is not installed and for a file that is no parquet."""
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise DatasetError("reading parquet needs pyarrow: pip install pyarrow") from error
    try:
        return pq.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not a whole parquet file ({str(error).splitlines()[0]})") from error


def batches(path: Path, columns: list[str]) -> Iterator[pd.DataFrame]:
    """Rows in order, a few hundred at a time. Raises DatasetError for a column that this file lacks, and for damage."""
    file = open_file(path)
    missing = [name for name in columns if name not in file.schema_arrow.names]
    if missing:
        raise DatasetError(f"{path}: no column {missing[0]}, which the first file has")
    try:
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
            yield batch.to_pandas()
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: damaged ({str(error).splitlines()[0]})") from error


def list_rows(path: Path, columns: Columns) -> Iterator[tuple[int, int, str, str | None]]:
    """(row, bytes of its image, label, group) of a file."""
    row = 0
    for part in batches(path, columns.all()):
        groups = part[columns.group].astype(str) if columns.group else [None] * len(part)
        for image, label, group in zip(part[columns.image], part[columns.label], groups, strict=True):
            if label is None or (isinstance(label, float) and np.isnan(label)):
                raise DatasetError(f"{path}: row {row} has no {columns.label}")
            yield row, len(image_bytes(image)), str(label), group
            row += 1


def image_bytes(cell: Any) -> bytes:
    """The bytes in an image cell; none for an empty one."""
    value = cell.get("bytes") if isinstance(cell, dict) else cell
    return value if isinstance(value, bytes) else b""


def renumber(entries: Entries, found: list[str], names: list[str] | None) -> list[str]:
    """Class names; the labels of `entries`, numbered as they were found, get their number among them.

    Raises ConfigError for a label that the schema has no name for.
    """
    if names is None:
        whole = all(text.lstrip("-").isdigit() for text in found)
        names = sorted(found, key=int) if whole else sorted(found)
        number = {text: i for i, text in enumerate(names)}
    else:
        number = {str(i): i for i in range(len(names))}
        unknown = [text for text in found if text not in number]
        if unknown:
            raise ConfigError(f"label {unknown[0]}: the schema names {len(names)} classes, 0 to {len(names) - 1}")
    table = np.array([number[text] for text in found])
    entries.labels = array("i", table[np.frombuffer(entries.labels, np.int32)].astype(np.int32).tobytes())
    return names


class Spool:
    """Image bytes one after the other in a file, so that packing can read them in any order."""

    def __init__(self, files: list[Path], columns: Columns, entries: Entries) -> None:
        self.files, self.columns = files, columns
        self.offsets = np.concatenate([[0], np.cumsum(np.frombuffer(entries.sizes, np.int64))])
        identity = repr([(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files])
        self.path = cache_root() / "spool" / hashlib.sha256(identity.encode()).hexdigest()[:32]

    def fill(self) -> None:
        """Write it, atomically, unless it is there from a pack that was interrupted."""
        if self.path.exists() and self.path.stat().st_size == self.offsets[-1]:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            for paths in by_split(self.files).values():
                for path in paths:
                    for part in batches(path, [self.columns.image]):
                        file.writelines(image_bytes(cell) for cell in part[self.columns.image])
        temporary.replace(self.path)

    def read(self, i: int) -> bytes:
        start, end = int(self.offsets[i]), int(self.offsets[i + 1])
        if start == end:
            raise BadImageError("empty", "no bytes")
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            return file.read(end - start)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
