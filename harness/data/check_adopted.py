"""Adopted shards read again: bytes, members, labels, images, against manifest and indices."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.data.adopt import adopted_digest
from harness.data.foreign_shard import Member, image_of, label_of, members, read
from harness.data.images import BadImageError, read_image
from harness.data.manifest import Dataset
from harness.data.remote import RemoteShard
from harness.data.shard import file_sha256
from harness.data.urls import expand
from harness.data.workers import run_tasks
from harness.errors import DatasetError, HarnessError

NOTHING = hashlib.sha256().hexdigest()  # digest of a shard of which no image is used


class Task(NamedTuple):
    """A shard and the rows of all splits that point into it."""

    file: Path | RemoteShard
    entry: dict[str, Any]
    rows: np.ndarray
    label: str | None
    class_names: list[str]
    channels: int


def check_adopted(dataset: Dataset, indices: dict[str, np.ndarray], workers: int) -> tuple[list[str], str]:
    """Problems of an adopted set, each naming shard and key, and its digest as it is now."""
    parts: dict[str, list[np.ndarray]] = {}
    entries: dict[str, dict[str, Any]] = {}
    files: dict[str, Path | RemoteShard] = {}
    problems: list[str] = []
    for split, index in indices.items():
        edges = np.searchsorted(index["shard"], np.arange(len(dataset.splits[split].shards) + 1))
        for number, (entry, file) in enumerate(zip(dataset.splits[split].shards, dataset.shards(split), strict=True)):
            name = entry["file"]
            rows = np.asarray(index[edges[number] : edges[number + 1]])
            if len(rows) != entry["samples"]:
                problems.append(f"{name}: {len(rows)} rows of {split}, the manifest says {entry['samples']}")
            if entries.setdefault(name, entry)["sha256"] != entry["sha256"]:
                problems.append(f"{name}: the manifest gives it two sha256")
            files[name] = file
            parts.setdefault(name, []).append(rows)
    tasks = [
        Task(
            files[name],
            entries[name],
            np.sort(np.concatenate(rows), order="offset"),
            dataset.adopted["label"],
            dataset.class_names,
            dataset.channels,
        )
        for name, rows in parts.items()
    ]
    found = dict(zip(parts, run_tasks(check_shard, tasks, workers), strict=True))
    problems += [problem for shard_problems, _ in found.values() for problem in shard_problems]
    digests = {
        split: [found[name][1] if name in found else NOTHING for name in expand(pattern, allow_shell=True)]
        for split, pattern in dataset.adopted["patterns"].items()
    }
    return problems, adopted_digest(dataset.class_names, dataset.adopted["held_out"], digests)


def check_shard(task: Task) -> tuple[list[str], str]:
    """Problems of one shard, and the digest of the images that rows point to."""
    name = task.entry["file"]
    try:
        path = local(task.file)
        size = path.stat().st_size
        problems = []
        if size != task.entry["bytes"]:
            problems.append(f"{name}: {size} bytes, the manifest says {task.entry['bytes']}")
        elif file_sha256(path) != task.entry["sha256"]:
            problems.append(f"{name}: sha256 differs from the manifest's")
        samples, _ = members(path, name)
    except HarnessError as error:
        return [str(error) if str(error).startswith(name) else f"{name}: {error}"], NOTHING
    except FileNotFoundError:
        return [f"{name}: missing; {len(task.rows):,} samples lie in it"], NOTHING
    at = {}
    for key, files in samples.items():
        try:
            at[image_of(files).offset] = (key, files)
        except BadImageError:
            continue
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for row in task.rows:
            key, files = at.get(int(row["offset"]), ("", {}))
            if not files or image_of(files) != Member(int(row["offset"]), int(row["size"])):
                problems.append(f"{name}: sample {key or '?'}: the index points elsewhere (byte {row['offset']})")
                continue
            try:
                text = label_of(file, files, task.label, name, key)
                if not means(text, int(row["label"]), task.class_names):
                    problems.append(f"{name}: sample {key}: label {text}, the index says {row['label']}")
                data = read(file, image_of(files), name, key)
                read_image(data, task.channels)
            except (BadImageError, DatasetError) as error:
                problems.append(f"{name}: sample {key}: {error}")
                continue
            digest.update(f"{key}\0{text}\0".encode(errors="surrogateescape") + hashlib.sha256(data).digest())
    return problems, digest.hexdigest()


def local(file: Path | RemoteShard) -> Path:
    """A path to read. A copy in the cache that is damaged is fetched again, once."""
    if isinstance(file, Path):
        return file
    path = file.local()
    if file_sha256(path) != file.sha256:
        path.unlink(missing_ok=True)
        path = file.local()
    return path


def means(text: str, label: int, class_names: list[str]) -> bool:
    """Whether a label's text is the class that a row names."""
    if text.isdecimal() and int(text) == label:
        return True
    return 0 <= label < len(class_names) and class_names[label] == text
