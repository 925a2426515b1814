"""Training and validation images of a set as one training split: the 'full training split' of a transfer target.

A view: the shards stay where they are, and one index file that names both splits' rows is written to the user's cache.
"""

import hashlib
import json
from dataclasses import replace
from typing import Any

import numpy as np

from harness.data.manifest import Dataset, Split, index_path
from harness.data.shard import write_rows
from harness.data.subset import Window, parse_size, window
from harness.data.urls import scheme_of
from harness.errors import ConfigError, DatasetError
from harness.paths import cache_root

ANY_SAMPLES = 10**12  # of a set whose number is not known yet


def full_training_split(dataset: Dataset) -> Dataset:
    """The set with `train` = train, then val, where it has a validation split; itself otherwise."""
    if "val" not in dataset.splits:
        return dataset
    train, val = dataset.splits["train"], dataset.splits["val"]
    bytes_of = [shard["sha256"] for shard in (*train.shards, *val.shards)]  # packed anew, equal images lie elsewhere
    name = hashlib.sha256(json.dumps([dataset.digest, train.samples, bytes_of]).encode()).hexdigest()
    folder = cache_root() / "joined" / f"{dataset.name}-{name[:16]}"
    shards = [in_place(dataset, shard) for shard in (*train.shards, *val.shards)]
    counts = [one + other for one, other in zip(train.class_counts, val.class_counts, strict=True)]
    joined = replace(dataset, folder=folder, splits={"train": Split(train.samples + val.samples, shards, counts)})
    path = index_path(folder, "train")
    if not path.exists():
        rows = np.concatenate([dataset.index("train"), dataset.index("val")])
        rows["shard"][train.samples :] += len(train.shards)
        write_rows(path, rows)
    if len(joined.index("train")) != train.samples + val.samples:
        raise DatasetError(f"{path}: not of {dataset.folder}; delete it")
    return joined


def in_place(dataset: Dataset, shard: dict[str, Any]) -> dict[str, Any]:
    """A shard's record with an absolute path."""
    if scheme_of(shard["file"]):
        return shard
    return {**shard, "file": str((dataset.folder / shard["file"]).resolve())}


def dev_window(dataset: Dataset, share: str) -> tuple[Window, np.ndarray]:
    """What a learning rate is tried on: a window of the full training split, and the dev positions that it leaves out.

    Dev is the set's validation split where it has one, else the last `share` of its training images, which are in
    random order.
    """
    dev = dataset.splits["val"].samples if "val" in dataset.splits else dev_size(share, dataset.splits["train"].samples)
    total = full_training_split(dataset).splits["train"].samples
    return window(total, total - dev, 0), np.arange(total - dev, total)


def dev_size(share: str, samples: int = ANY_SAMPLES) -> int:
    """How many of the training images are left out for dev; at least one, at most half. Raises ConfigError."""
    try:
        size = parse_size(share, samples)
    except ConfigError as error:
        raise ConfigError(f"transfer.finetune.dev_split={share}: {error}") from error
    if size > samples // 2:
        known = f"{samples:,} " if samples < ANY_SAMPLES else ""
        raise ConfigError(f"transfer.finetune.dev_split={share}: more than half of the {known}training images")
    return size
