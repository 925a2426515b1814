"""Everything of a packed set read again: nothing that the manifest or an index says is taken on trust."""

import hashlib
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.check_adopted import check_adopted, local
from harness.data.finish import split_digest
from harness.data.images import BadImageError
from harness.data.manifest import Dataset, index_path, manifest_problems
from harness.data.remote import RemoteShard
from harness.data.shard import file_sha256, sample_digest
from harness.data.sources.common import digest_of
from harness.data.sources.encoded import read_pixels
from harness.data.workers import run_tasks
from harness.errors import DatasetError, HarnessError

PROBLEMS_A_SHARD = 20  # named one by one; more are only counted


class ShardCheck(NamedTuple):
    """What one shard is to hold."""

    file: Path | RemoteShard
    entry: dict[str, Any]  # the manifest's: samples, bytes, sha256
    rows: np.ndarray | None  # the index's; None where there is no index to compare with
    channels: int
    num_classes: int
    by_bytes: bool  # the digest is over stored bytes (data.verify=headers)
    owners: dict[str, str]  # sha256 to the shard that the manifest gives it


class Found(NamedTuple):
    """What was found in one shard."""

    path: Path  # read; of a shard behind a URL the copy in the cache
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
    workers = workers or os.cpu_count() or 1
    problems, indices = read_indices(dataset)
    if dataset.adopted:
        found, digest = check_adopted(dataset, indices, workers)
        others = [line for name, rows in indices.items() for line in check_counts(dataset, name, rows["label"])]
    else:
        found, others, digest = check_packed(dataset, indices, workers)
    problems += found
    if not problems and digest != dataset.digest:
        problems.append(
            f"{dataset.folder / 'manifest.json'}: its digest is not that of the images: it was edited"
            + ("" if dataset.adopted else ", or this version of Pillow decodes them otherwise")
        )
    return [*problems, *others, *manifest_problems(dataset.folder)]


def read_indices(dataset: Dataset) -> tuple[list[str], dict[str, np.ndarray]]:
    """What is wrong with indices, and those with which nothing is."""
    problems: list[str] = []
    indices: dict[str, np.ndarray] = {}
    for name in dataset.splits:
        index, wrong = read_index(dataset, name)
        problems += wrong
        if index is not None:
            indices[name] = index
    return problems, indices


def check_packed(dataset: Dataset, indices: dict[str, np.ndarray], workers: int) -> tuple[list[str], list[str], str]:
    """Problems within the shards of a packed set, problems of counts and keys, and its digest as it is now."""
    problems: list[str] = []
    others: list[str] = []
    digest = hashlib.sha256()
    keys: list[tuple[Path, np.ndarray]] = []
    owners = {entry["sha256"]: entry["file"] for split in dataset.splits.values() for entry in split.shards}
    for name in dataset.splits:
        tasks = shard_tasks(dataset, name, indices.get(name), owners)
        found = list(run_tasks(check_shard, tasks, workers))
        shard_problems = [problem for one in found for problem in one.problems]
        problems += shard_problems
        keys += [(one.path, one.keys) for one in found]
        digest.update(split_digest(name, sum(len(one.keys) for one in found), [one.digest for one in found]))
        if not shard_problems:
            others += check_counts(dataset, name, np.concatenate([one.labels for one in found]))
    return problems, others + repeated_keys(keys), digest.hexdigest()


def shard_tasks(dataset: Dataset, split: str, index: np.ndarray | None, owners: dict[str, str]) -> list[ShardCheck]:
    """What to check of each shard of a split; without an index, the shards alone."""
    entries = dataset.splits[split].shards
    edges = None if index is None else np.searchsorted(index["shard"], np.arange(len(entries) + 1))
    return [
        ShardCheck(
            file,
            entry,
            None if index is None or edges is None else index[edges[number] : edges[number + 1]],
            dataset.channels,
            dataset.num_classes,
            dataset.verify == "headers",
            owners,
        )
        for number, (entry, file) in enumerate(zip(entries, dataset.shards(split), strict=True))
    ]


def read_index(dataset: Dataset, split: str) -> tuple[np.ndarray | None, list[str]]:
    """The index of a split, or what is wrong with it."""
    path = index_path(dataset.folder, split)
    try:
        index = np.asarray(dataset.index(split))
    except DatasetError as error:
        return None, [str(error)]
    number_of = index["shard"]
    samples, shards = dataset.splits[split].samples, len(dataset.splits[split].shards)
    if len(index) != samples:
        return None, [f"{path}: {len(index)} rows, the manifest says {samples}"]
    if (number_of[1:] < number_of[:-1]).any() or number_of.max(initial=0) >= shards:
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
    name, nothing = str(task.file), Found(Path(), [], "", np.empty(0, np.uint64), np.empty(0, np.int64))
    try:
        path = local(task.file)
    except HarnessError as error:
        return nothing._replace(problems=[str(error)])
    if not path.is_file():
        return nothing._replace(problems=[f"{name}: missing; {task.entry['samples']:,} samples lie in it"])
    problems = check_bytes(name, path, task)
    digest = hashlib.sha256()
    keys: list[int] = []
    labels: list[int] = []
    last = ""
    try:
        for number, member in enumerate(members(path)):
            row = None if task.rows is None or number >= len(task.rows) else task.rows[number]
            wrong, label, pixels = check_member(member, row, task)
            problems += [f"{name}: sample {member.key}: {text}" for text in wrong]
            digest.update(sample_digest(member.key, label, pixels))
            keys.append(key_number(member.key))
            labels.append(label)
            last = f"; the last whole sample is {member.key}"
    except (tarfile.TarError, OSError, EOFError) as error:
        problems.append(f"{name}: not a whole tar ({error}){last}")
    if len(keys) != task.entry["samples"]:
        problems.append(f"{name}: {len(keys)} samples, the manifest says {task.entry['samples']}{last}")
    if len(problems) > PROBLEMS_A_SHARD:
        more = len(problems) - PROBLEMS_A_SHARD
        problems = [*problems[:PROBLEMS_A_SHARD], f"{name}: and {more} problems more"]
    return Found(path, problems, digest.hexdigest(), np.array(keys, np.uint64), np.array(labels, np.int64))


def check_bytes(name: str, path: Path, task: ShardCheck) -> list[str]:
    """Size and sha256 of a shard; one that holds another shard's bytes is told from a damaged one."""
    problems = []
    if path.stat().st_size != task.entry["bytes"]:
        problems.append(f"{name}: {path.stat().st_size} bytes, the manifest says {task.entry['bytes']}")
    sha256 = file_sha256(path)
    if sha256 != task.entry["sha256"]:
        owner = task.owners.get(sha256)
        swapped = f": it holds what the manifest calls {owner}" if owner else ""
        problems.append(f"{name}: sha256 differs from the manifest's{swapped}")
    return problems


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
        decoded, _ = read_pixels(member.data, task.channels)
        pixels = hashlib.sha256(member.data).digest() if task.by_bytes else digest_of(decoded)
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
