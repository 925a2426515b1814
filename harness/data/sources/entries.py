"""Sources of encoded images, one entry each: name, size, label and perhaps a group that no split may cut.

Millions of entries stay small: names lie in one block of memory, numbers in arrays.
"""

import hashlib
import os
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.config import DataConfig
from harness.data.images import BadImageError
from harness.data.order import permute
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import count_or_none, cut
from harness.data.sources.encoded import encoded_sample
from harness.errors import ConfigError, DatasetError


class Texts:
    """A list of strings, any that a file system has, in one block of memory."""

    def __init__(self) -> None:
        self._data, self._ends = bytearray(), array("Q", [0])

    def append(self, text: str) -> None:
        self._data += os.fsencode(text)
        self._ends.append(len(self._data))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, i: int) -> str:
        return os.fsdecode(bytes(self._data[self._ends[i] : self._ends[i + 1]]))


@dataclass
class Entries:
    """What a source lists, and the class names that `labels` number."""

    names: Texts = field(default_factory=Texts)  # unique: paths below the root, keys
    sizes: array = field(default_factory=lambda: array("q"))  # bytes
    labels: array = field(default_factory=lambda: array("i"))
    groups: array = field(default_factory=lambda: array("i"))  # numbers of groups; empty where there are none
    group_numbers: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, size: int, label: int, group: str | None = None) -> None:
        self.names.append(name)
        self.sizes.append(size)
        self.labels.append(label)
        if group is not None:
            self.groups.append(self.group_numbers.setdefault(group, len(self.group_numbers)))

    def __len__(self) -> int:
        return len(self.names)


def entries_source(
    entries: Entries,
    given: dict[str, np.ndarray],
    class_names: list[str],
    read: Callable[[int], bytes],
    cfg: DataConfig,
    notes: dict[str, Any] | None = None,
    **more: Any,
) -> Source:
    """A source from its entries.

    Args:
        given: rows of the splits that the source has; the others are cut from train.
        read: encoded bytes of entry i. Raises OSError or BadImageError.
    Raises DatasetError where nothing would be left to train on.
    """
    if len(entries.groups) not in (0, len(entries)):
        raise DatasetError("some images have a group and some have none; give every one a group")
    splits = cut_splits(entries, given, cfg)
    grouped = {"groups": group_counts(entries, splits)} if entries.groups else {}
    return Source(
        class_names=class_names,
        splits={name: encoded_split(entries, rows, read, cfg) for name, rows in splits.items() if len(rows)},
        fingerprint=fingerprint(entries, splits),
        notes={"origins": "distinct images"} | grouped | (notes or {}),
        **more,
    )


def cut_splits(entries: Entries, given: dict[str, np.ndarray], cfg: DataConfig) -> dict[str, np.ndarray]:
    """Rows of train, val and test. With groups, test holds whole ones, and val too unless data.val_within_groups."""
    train = given["train"]
    sizes = {
        split: 0 if split in given else count_or_none(text, len(train), f"data.{split}_samples")
        for split, text in (("val", cfg.val_samples), ("test", cfg.test_samples))
    }
    if sum(sizes.values()) >= len(train):
        raise DatasetError(f"data.val_samples and data.test_samples leave none of {len(train):,} images to train on")
    if not entries.groups:
        val, test, rest = (train[part] for part in cut(len(train), list(sizes.values()), cfg.seed))
        return {"train": rest, "val": given.get("val", val), "test": given.get("test", test)}
    groups = np.frombuffer(entries.groups, np.int32)
    test, rest = hold_out_groups(train, groups, sizes["test"], cfg.seed, "test")
    if cfg.val_within_groups:
        val, left = cut(len(rest), [sizes["val"]], cfg.seed + 1)
        val, rest = rest[val], rest[left]
    else:
        val, rest = hold_out_groups(rest, groups, sizes["val"], cfg.seed + 1, "val")
    return {"train": rest, "val": given.get("val", val), "test": given.get("test", test)}


def hold_out_groups(
    rows: np.ndarray, groups: np.ndarray, wanted: int, seed: int, split: str
) -> tuple[np.ndarray, np.ndarray]:
    """(held out, left): whole groups in a seeded order, each that still fits into `wanted` images.

    Raises DatasetError when none fits: every group is larger than what is asked for.
    """
    if wanted == 0:
        return rows[:0], rows
    numbers, counts = np.unique(groups[rows], return_counts=True)
    chosen, held = [], 0
    for i in permute(np.arange(len(numbers)), len(numbers), seed).tolist():
        if held + counts[i] <= wanted:
            chosen.append(numbers[i])
            held += int(counts[i])
    if not chosen:
        raise DatasetError(
            f"data.{split}_samples: {wanted:,} images are fewer than the smallest of {len(numbers):,} groups has "
            f"({counts.min():,}), and groups are not cut; ask for more"
        )
    inside = np.isin(groups[rows], chosen)
    return rows[inside], rows[~inside]


def group_counts(entries: Entries, splits: dict[str, np.ndarray]) -> dict[str, int]:
    """Groups of each split, for the manifest."""
    groups = np.frombuffer(entries.groups, np.int32)
    return {name: len(np.unique(groups[rows])) for name, rows in splits.items()}


def fingerprint(entries: Entries, splits: dict[str, np.ndarray]) -> str:
    """Over names, sizes, labels and groups: the same wherever the files lie; contents are not read."""
    digest = hashlib.sha256()
    for split, rows in splits.items():
        for i in rows.tolist():
            group = f"\0{entries.groups[i]}" if entries.groups else ""
            line = f"{split}\0{entries.names[i]}\0{entries.sizes[i]}\0{entries.labels[i]}{group}\n"
            digest.update(os.fsencode(line))
    return digest.hexdigest()


def encoded_split(entries: Entries, rows: np.ndarray, read: Callable[[int], bytes], cfg: DataConfig) -> SourceSplit:
    """Entries as samples; the key is a number and a digest of the name, so that any name can be packed."""

    def get(k: int) -> Sample:
        i = int(rows[k])
        name = hashlib.sha256(os.fsencode(entries.names[i])).hexdigest()[:12]
        try:
            data = read(i)
        except OSError as error:
            raise BadImageError("unreadable", str(error)) from error
        return encoded_sample(data, f"{k:08d}-{name}", entries.labels[i], cfg)

    def name_of(k: int) -> str:
        return os.fsencode(entries.names[int(rows[k])]).decode(errors="backslashreplace")

    return SourceSplit(len(rows), get, name_of)


def reader(root: Path, entries: Entries) -> Callable[[int], bytes]:
    """Entry i's bytes, where names are paths below `root`, or absolute. Text: a Path takes longer than a small file."""

    def read(i: int) -> bytes:
        with open(os.path.join(root, entries.names[i]), "rb", buffering=0) as file:  # noqa: PTH118
            return file.read()

    return read


def group_of(cfg: DataConfig, name: str) -> str | None:
    """The group of a name by data.group_by, a regular expression; what its first bracket holds, else all it matches.

    Raises DatasetError for a name that it does not match.
    """
    if cfg.group_by is None:
        return None
    try:
        match = re.search(cfg.group_by, name)
    except re.error as error:
        raise ConfigError(f"data.group_by={cfg.group_by}: no regular expression ({error})") from error
    if match is None:
        raise DatasetError(f"{name}: data.group_by={cfg.group_by} does not match it")
    return match[1] if match.re.groups else match[0]
