"""Everything of a packed set read again: nothing that the manifest or an index says is taken on trust."""

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.finish import split_digest
from harness.data.images import BadImageError, read_image
from harness.data.manifest import Dataset, index_path
from harness.data.pack_workers import run_tasks
from harness.data.shard import file_sha256, sample_digest
from harness.data.sources.common import digest_of

PROBLEMS_A_SHARD = 20  # named one by one; more are only counted


class ShardCheck(NamedTuple):
    """What one shard is to hold."""

    path: Path
    entry: dict[str, Any]  # the manifest's: samples, bytes, sha256
    rows: np.ndarray | None  # the index's; None where there is no index to compare with
    channels: int
    num_classes: int


class Found(NamedTuple):
    """What was found in one shard."""

    problems: list[str]
    digest: str
    keys: np.ndarray  # uint64 digest of each key
    labels: np.ndarray


class Member(NamedTuple):
    """An image of a shard and the label beside it."""

    key: str
    offset: int
    data: bytes
    label: bytes | None


def check_dataset(dataset: Dataset, workers: int | None = None) -> list[str]:
    """Problems of a set, each naming the shard and, where there is one, the key."""
    problems: list[str] = []
    digest = hashlib.sha256()
    keys: list[tuple[Path, np.ndarray]] = []
    damaged = False
    for name, split in dataset.splits.items():
        index, index_problems = read_index(dataset, name)
        problems += index_problems
        tasks = [
            ShardCheck(
                dataset.folder / entry["file"],
                entry,
                None if index is None else index[index["shard"] == number],
                dataset.channels,
                dataset.num_classes,
            )
            for number, entry in enumerate(split.shards)
        ]
        found = list(run_tasks(check_shard, tasks, workers or os.cpu_count() or 1))
        shard_problems = [problem for one in found for problem in one.problems]
        damaged |= bool(shard_problems or index_problems)
        problems += shard_problems
        keys += [(task.path, one.keys) for task, one in zip(tasks, found, strict=True)]
        digest.update(split_digest(name, sum(len(one.keys) for one in found), [one.digest for one in found]))
        if not shard_problems:
            problems += check_counts(dataset, name, np.concatenate([one.labels for one in found]))
    problems += repeated_keys(keys)
    if not damaged and digest.hexdigest() != dataset.digest:
        problems.append(
            f"{dataset.folder}: the manifest's digest is not that of the images: the manifest was edited, or this "
            "version of Pillow decodes them otherwise"
        )
    return problems


def read_index(dataset: Dataset, split: str) -> tuple[np.ndarray | None, list[str]]:
    """The index of a split, or what is wrong with it."""
    path = index_path(dataset.folder, split)
    try:
        index = np.asarray(dataset.index(split))
        number_of = index["shard"]
    except (OSError, ValueError, IndexError) as error:
        return None, [f"{path}: missing or damaged ({error})"]
    samples, shards = dataset.splits[split].samples, len(dataset.splits[split].shards)
    if len(index) != samples:
        return None, [f"{path}: {len(index)} rows, the manifest says {samples}"]
    if (np.diff(number_of.astype(np.int64)) < 0).any() or number_of.max(initial=0) >= shards:
        return None, [f"{path}: its rows are not in the order of the shards"]
    return index, []


def check_counts(dataset: Dataset, name: str, labels: np.ndarray) -> list[str]:
    """The manifest's class counts and number of samples against the labels in the shards."""
    split = dataset.splits[name]
    counts = np.bincount(labels, minlength=dataset.num_classes).tolist()
    problems = []
    if counts != split.class_counts:
        problems.append(f"{dataset.folder}: the manifest's class counts of {name} are not those of the shards")
    if len(labels) != split.samples:
        problems.append(f"{dataset.folder}: {name} has {len(labels)} samples, the manifest says {split.samples}")
    return problems


def check_shard(task: ShardCheck) -> Found:
    """One shard: size, sha256, every pair of image and label, the index's rows, and every image decoded."""
    nothing = Found([], "", np.empty(0, np.uint64), np.empty(0, np.int64))
    if not task.path.is_file():
        return nothing._replace(problems=[f"{task.path}: missing"])
    problems = []
    if task.path.stat().st_size != task.entry["bytes"]:
        size = task.path.stat().st_size
        problems.append(f"{task.path}: {size} bytes, the manifest says {task.entry['bytes']}")
    if file_sha256(task.path) != task.entry["sha256"]:
        problems.append(f"{task.path}: sha256 differs from the manifest's")
    digest = hashlib.sha256()
    keys: list[int] = []
    labels: list[int] = []
    try:
        for number, member in enumerate(members(task.path)):
            row = None if task.rows is None or number >= len(task.rows) else task.rows[number]
            wrong, label, pixels = check_member(member, row, task)
            problems += [f"{task.path}: sample {member.key}: {text}" for text in wrong]
            digest.update(sample_digest(member.key, label, pixels))
            keys.append(key_number(member.key))
            labels.append(label)
    except (tarfile.TarError, OSError, EOFError) as error:
        problems.append(f"{task.path}: not a whole tar ({error})")
    if len(keys) != task.entry["samples"]:
        problems.append(f"{task.path}: {len(keys)} samples, the manifest says {task.entry['samples']}")
    if len(problems) > PROBLEMS_A_SHARD:
        more = len(problems) - PROBLEMS_A_SHARD
        problems = [*problems[:PROBLEMS_A_SHARD], f"{task.path}: and {more} problems more"]
    return Found(problems, digest.hexdigest(), np.array(keys, np.uint64), np.array(labels, np.int64))


def members(path: Path) -> Iterator[Member]:
    """Images of a shard with the label that follows each."""
    with tarfile.open(path, "r:") as tar:
        waiting: Member | None = None
        for info in tar:
            file = tar.extractfile(info)
            data = file.read() if file else b""
            key, _, extension = info.name.rpartition(".")
            if extension == "cls" and waiting is not None and waiting.key == key:
                yield waiting._replace(label=data)
                waiting = None
            else:
                if waiting is not None:
                    yield waiting
                waiting = Member(key, info.offset_data, data, None)
        if waiting is not None:
            yield waiting


def check_member(member: Member, row: np.void | None, task: ShardCheck) -> tuple[list[str], int, bytes]:
    """Problems of one sample, its label (-1: none) and the digest of its pixels."""
    wrong = []
    label, pixels = 0, b""
    try:
        if member.label is None:
            raise ValueError("no label follows it")
        label = int(member.label)
        if not 0 <= label < task.num_classes:
            raise ValueError(f"label {label}, the set has {task.num_classes} classes")
    except ValueError as error:
        wrong.append(str(error))
        label = 0
    if row is not None and (int(row["offset"]), int(row["size"])) != (member.offset, len(member.data)):
        wrong.append("the index points elsewhere")
    elif row is not None and int(row["label"]) != label:
        wrong.append(f"label {label}, the index says {row['label']}")
    try:
        pixels = digest_of(np.asarray(read_image(member.data, task.channels)[0]))
    except BadImageError as error:
        wrong.append(str(error))
    return wrong, label, pixels


def key_number(key: str) -> int:
    """64 bits for a key, so that millions of keys can be compared in memory."""
    return int.from_bytes(hashlib.sha256(key.encode(errors="surrogateescape")).digest()[:8], "little")


def repeated_keys(keys: list[tuple[Path, np.ndarray]]) -> list[str]:
    """Keys that occur twice in the set, in one shard or in two."""
    if not keys:
        return []
    numbers = np.concatenate([found for _, found in keys])
    values, counts = np.unique(numbers, return_counts=True)
    problems = []
    for value in values[counts > 1][:PROBLEMS_A_SHARD]:
        where = [path for path, found in keys for _ in range(int((found == value).sum()))]
        name = next(member.key for member in members(where[0]) if key_number(member.key) == value)
        problems.append(f"key {name} occurs {len(where)} times: {', '.join(map(str, where))}")
    return problems
