"""A table of image files: CSV, TSV or parquet with a path, a label and perhaps a group and a split.

Paths are relative to the table's folder, or absolute. A `split` column (train, val, test) is kept; what is missing is
cut from train. Labels are names, in CSV always text; classes are numbered in their order as text, numbers as numbers.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from harness.config import DataConfig
from harness.data.sources import Source
from harness.data.sources.entries import Entries, entries_source, group_of, reader
from harness.errors import ConfigError, DatasetError, near_matches

IMAGE_COLUMNS = ("path", "file", "filename", "file_name", "image", "image_path", "filepath")
LABEL_COLUMNS = ("label", "class", "target", "label_name", "class_name", "category")
SPLIT_NAMES = {"train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def open_list(cfg: DataConfig) -> Source:
    """Raises DatasetError naming table, row and column of what is missing; missing files are dropped when packed."""
    path = table_path(cfg)
    table = read_table(path)
    image = find_column(table, path, cfg.image_column, IMAGE_COLUMNS, "image_column")
    label = find_column(table, path, cfg.label_column, LABEL_COLUMNS, "label_column")
    group = group_name(table, path, cfg.group_column)
    check_cells(table, path, [image, label, *([group] if group else [])])
    names, numbers = number_classes(table[label])
    entries = Entries()
    groups = table[group].astype(str).tolist() if group else [None] * len(table)
    for file, number, member in zip(table[image].astype(str), numbers.tolist(), groups, strict=True):
        entries.add(file, size_of(path.parent / file), number, member or group_of(cfg, file))
    given = given_splits(table, path)
    return entries_source(entries, given, names, reader(path.parent, entries), cfg)


def table_path(cfg: DataConfig) -> Path:
    """data.path, a file. Raises DatasetError."""
    if cfg.path is None:
        raise DatasetError(f"data.path is not given: harness data pack {cfg.source} data.path=FILE data.name=mine")
    path = Path(cfg.path).expanduser()
    if not path.is_file():
        raise DatasetError(f"data.path={path}: there is no such file")
    return path


def read_table(path: Path) -> pd.DataFrame:
    """The rows, CSV and TSV as text. Raises DatasetError for a file that is none and for one without rows."""
    try:
        if path.suffix.lower() == ".parquet":
            table = pd.read_parquet(path)
        else:
            separator = "\t" if path.suffix.lower() in (".tsv", ".tab") else ","
            table = pd.read_csv(path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError, ImportError) as error:
        raise DatasetError(f"{path}: not a table of CSV, TSV or parquet ({str(error).splitlines()[0]})") from error
    if table.empty:
        raise DatasetError(f"{path}: no rows")
    return table


def find_column(table: pd.DataFrame, path: Path, wanted: str | None, usual: tuple[str, ...], field: str) -> str:
    """The column that the user names, else the one with a usual name. Raises ConfigError."""
    there = [str(name) for name in table.columns]
    if wanted is not None:
        if wanted not in there:
            raise ConfigError(f"data.{field}={wanted}: {path} has no such column.{near_matches(wanted, there)}")
        return wanted
    found = [name for name in there if name.strip().lower() in usual]
    if len(found) != 1:
        what = f"several: {', '.join(found)}" if found else f"none of {', '.join(usual)}"
        raise ConfigError(f"{path}: {what}; say which with data.{field}=NAME (it has {', '.join(there)})")
    return found[0]


def group_name(table: pd.DataFrame, path: Path, wanted: str | None) -> str | None:
    """The column of groups; None where there is none."""
    if wanted is None and "group" not in table.columns:
        return None
    return find_column(table, path, wanted or "group", (), "group_column")


def check_cells(table: pd.DataFrame, path: Path, columns: list[str]) -> None:
    """Raises DatasetError for an empty cell, with its line."""
    for name in columns:
        column = table[name]
        empty = column.isna() | (column.astype(str).str.strip() == "")
        if empty.any():
            line = int(np.flatnonzero(empty)[0]) + 2  # the heading is line 1
            raise DatasetError(
                f"{path}: line {line} has no {name} ({int(empty.sum()):,} rows in all); fill or remove it"
            )


def number_classes(labels: "pd.Series") -> tuple[list[str], np.ndarray]:
    """Class names and the number of each row's: whole numbers in their order, everything else as text."""
    text = labels.astype(str).str.strip()
    names = text.unique().tolist()
    whole = all(name.lstrip("-").isdigit() for name in names)
    names = sorted(names, key=int) if whole else sorted(names)
    number = {name: i for i, name in enumerate(names)}
    return names, text.map(number).to_numpy()


def given_splits(table: pd.DataFrame, path: Path) -> dict[str, np.ndarray]:
    """Rows of each split that the table names. Raises DatasetError for an unknown one, and for no train."""
    if "split" not in table.columns:
        return {"train": np.arange(len(table))}
    text = table["split"].astype(str).str.strip().str.lower()
    unknown = sorted(set(text) - set(SPLIT_NAMES))
    if unknown:
        raise DatasetError(f"{path}: split {unknown[0]!r}; wanted {', '.join(sorted(set(SPLIT_NAMES.values())))}")
    names = text.map(SPLIT_NAMES)
    given = {split: np.flatnonzero(names == split) for split in ("train", "val", "test") if (names == split).any()}
    if "train" not in given:
        raise DatasetError(f"{path}: no row of the train split")
    return given


def size_of(path: Path) -> int:
    """Bytes; 0 for a file that is not there, which is dropped by name when it is packed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
