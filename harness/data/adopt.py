"""Shards that someone else packed, adopted in place: a manifest and indices for them, and nothing beside them.

Every shard is read once: its bytes hashed, its images decoded, its labels collected. What was read is kept until the
manifest is written, so that the same command goes on after a kill.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.config import DataConfig
from harness.data.finish import Dropped, write_dropped
from harness.data.foreign_shard import ShardIndex, index_shard, kinds_of_labels
from harness.data.manifest import FORMAT_VERSION, INDEX, dataset_folder, index_path, sealed
from harness.data.order import hash_words, permute
from harness.data.pack import locked
from harness.data.remote import fetch_unknown
from harness.data.subset import parse_size
from harness.data.urls import expand, scheme_of
from harness.data.workers import run_tasks
from harness.errors import ConfigError, DatasetError
from harness.run_folder import read_json, write_json

SOURCE = "foreign"
RECORDS = ".indexing"
SPLITS = ("train", "val", "test")
_HELD_OUT = 3  # keeps the key of the permutation that picks held-out samples apart from the orders'


class Adoption(NamedTuple):
    """What to adopt, and how."""

    patterns: dict[str, str]  # split to pattern; train always
    label: str | None = None  # extension or .json field of the class
    classes: list[str] | None = None  # names in the order of their numbers; None takes what the labels say
    decode: bool = True
    workers: int = 1
    force: bool = False
    progress: bool = True


class Task(NamedTuple):
    """One shard to read."""

    name: str  # URL or path
    record: Path  # without extension: .json and .npy
    label: str | None
    decode: bool
    channels: int


class Record(NamedTuple):
    """A shard that was read: the rows lie beside it."""

    name: str
    rows: Path
    labels: list[str]
    samples: list[int]
    dropped: list[list[str]]
    sha256: str
    bytes: int
    digest: str

    @property
    def total(self) -> int:
        return sum(self.samples)


def adopt(cfg: DataConfig, root: Path, what: Adoption) -> Path:
    """Index foreign shards as root/NAME and return that folder.

    Raises ConfigError for patterns that are no shards, DatasetError for shards that cannot be read, a folder that holds
    something else, labels that are none, and more unusable images than data.max_dropped.
    """
    folder = dataset_folder(cfg, root)
    shards = {split: expand(pattern, cfg.allow_shell) for split, pattern in what.patterns.items()}
    names = [name for split in shards.values() for name in split]
    for name in (name for name, count in Counter(names).items() if count > 1):
        raise ConfigError(f"{name} is in two patterns")
    for name in names:
        if scheme_of(name) is None and not Path(name).is_file():
            raise DatasetError(f"{name}: no such file")
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{cfg.name}.lock", what.progress):
            prepare(folder, {"patterns": what.patterns, "label": what.label, "decode": what.decode}, what.force)
            records = {split: read_shards(folder, split, shards[split], cfg, what) for split in shards}
            write_manifest(folder, cfg, what, records)
            shutil.rmtree(folder / RECORDS)
    except BrokenProcessPool as error:
        raise DatasetError(f"{folder}: an indexing process was killed; the same command goes on from there") from error
    except OSError as error:
        raise DatasetError(f"{folder}: indexing stopped ({error}); the same command goes on from there") from error
    return folder


def prepare(folder: Path, identity: dict[str, Any], force: bool) -> None:
    """Make `folder` ready, keeping what an earlier attempt of the same read. Raises DatasetError, and touches nothing,
    where it holds anything else; with `force` an adopted set is replaced, never a packed one.
    """
    manifest, begun = read_json(folder / "manifest.json"), read_json(folder / RECORDS / "identity.json")
    if manifest is None and begun == identity:
        return
    if folder.exists() and any(folder.iterdir()):
        ours = "adopted" in (manifest or {}) or (manifest is None and begun is not None)
        if not (ours and force):
            advice = " or replace it with --force" if ours else ""
            raise DatasetError(f"{folder} holds another data set: give this one another name (data.name=NAME){advice}")
        shutil.rmtree(folder)
    write_json(folder / RECORDS / "identity.json", identity)


def read_shards(folder: Path, split: str, names: list[str], cfg: DataConfig, what: Adoption) -> list[Record]:
    """Read the shards of a pattern that were not read before, in parallel."""
    records = folder / RECORDS
    tasks = [
        Task(name, records / f"{split}-{number:06d}", what.label, what.decode, cfg.channels)
        for number, name in enumerate(names)
    ]
    missing = [task for task in tasks if read_record(task) is None]
    done, images = len(tasks) - len(missing), 0
    for count in run_tasks(read_shard, missing, what.workers):
        done, images = done + 1, images + count
        if what.progress and (done * 10 // len(tasks) > (done - 1) * 10 // len(tasks)):
            print(f"indexing {split}: {done:,} of {len(tasks):,} shards, {images:,} images", flush=True)
    found = [record for task in tasks if (record := read_record(task)) is not None]
    if len(found) < len(tasks):
        raise DatasetError(f"{records}: changed while indexing; the same command reads it again")
    return found


def read_shard(task: Task) -> int:
    """Read one shard, in a worker, and keep what was found; returns how many images it has.

    Raises DatasetError for a shard in which nothing is labelled, saying where a label could be.
    """
    path = fetch_unknown(task.name).path if scheme_of(task.name) else Path(task.name)
    found: ShardIndex = index_shard(path, task.name, task.label, task.decode, task.channels)
    unlabelled = sum(reason == "no_label" for _, reason in found.dropped)
    if unlabelled and not len(found.rows):
        kinds = ", ".join(kinds_of_labels(path, task.name)) or "nothing"
        wanted = f"no {task.label}" if task.label else "neither .cls nor a field label in .json"
        raise DatasetError(
            f"{task.name}: {unlabelled} images have {wanted}. Beside them there is {kinds}: say which holds the class "
            "with --label NAME, or --label none for a set without classes"
        )
    with open(task.record.with_suffix(".npy"), "wb") as file:
        np.save(file, found.rows)
    content = {**found._asdict(), "name": task.name, "rows": str(task.record.with_suffix(".npy"))}
    write_json(task.record.with_suffix(".json"), content)
    return len(found.rows)


def read_record(task: Task) -> Record | None:
    """What was found in a shard, if it was read."""
    content = read_json(task.record.with_suffix(".json"))
    try:
        return Record(**{**(content or {}), "rows": Path((content or {})["rows"])})
    except (TypeError, KeyError):
        return None


def write_manifest(folder: Path, cfg: DataConfig, what: Adoption, records: dict[str, list[Record]]) -> None:
    """dropped.csv, indices and, last of all, the manifest."""
    dropped = [
        Dropped(split, f"{record.name}: {key}", reason)
        for split, found in records.items()
        for record in found
        for key, reason in record.dropped
    ]
    write_dropped(folder, dropped)
    total = sum(record.total for found in records.values() for record in found)
    reasons = dict(sorted(Counter(item.reason for item in dropped).items()))
    if len(dropped) > cfg.max_dropped * (total + len(dropped)):
        raise DatasetError(
            f"{len(dropped):,} of {total + len(dropped):,} images cannot be used ({reasons}), more than "
            f"data.max_dropped={cfg.max_dropped}; {folder / 'dropped.csv'} names them"
        )
    names, number_of = class_numbers(records, what.classes)
    sizes = held_out(cfg, what, records)
    digest = adopted_digest(
        names,
        sizes,
        {split: [record.digest for record in found] for split, found in records.items()},
    )
    owners = assigned(cfg, sizes, sum(record.total for record in records["train"]))
    splits = {}
    for number, name in enumerate(SPLITS):
        origin = name if name in records else "train"
        chosen = None if origin != "train" else owners == number
        splits[name] = write_split(folder, name, records[origin], chosen, number_of, len(names))
    manifest = {
        "format_version": FORMAT_VERSION,
        "name": cfg.name,
        "title": cfg.title,
        "licence": cfg.licence,
        "origin": cfg.origin,
        "adopted": {"patterns": absolute(what.patterns), "label": what.label, "held_out": sizes},
        "class_names": names,
        "channels": cfg.channels,
        "image_size": None,
        "shuffle": {"kind": SOURCE},
        "digest": digest,
        "splits": splits,
        "dropped": reasons,
        "notes": {"digest_covers": "keys, labels and encoded bytes, in the shards' order"},
    }
    write_json(folder / "manifest.json", sealed(manifest))


def adopted_digest(names: list[str], held_out: dict[str, int], shard_digests: dict[str, list[str]]) -> str:
    """Digest of an adopted set: classes, what is held out, and every shard's digest in order."""
    digest = hashlib.sha256(json.dumps([names, held_out]).encode())
    for split, shards in shard_digests.items():
        digest.update(f"{split}:".encode() + b"".join(bytes.fromhex(shard) for shard in shards))
    return digest.hexdigest()


def absolute(patterns: dict[str, str]) -> dict[str, str]:
    """Patterns that mean the same from every folder."""
    return {
        split: pattern if scheme_of(pattern) else os.path.abspath(pattern)  # noqa: PTH100 (links stay links)
        for split, pattern in patterns.items()
    }


def class_numbers(records: dict[str, list[Record]], given: list[str] | None) -> tuple[list[str], Callable[[str], int]]:
    """Class names, and the number of a label. Labels that are all numbers are classes' numbers, else names, sorted.

    Raises DatasetError for a number without a class, ConfigError where `given` lacks a name.
    """
    texts = {text for found in records.values() for record in found for text in record.labels}
    if all(text.isdecimal() for text in texts):
        largest = max(int(text) for text in texts)
        if given is not None and largest >= len(given):
            raise ConfigError(f"a label is {largest}, --classes names {len(given)}")
        return given or [str(number) for number in range(largest + 1)], int
    numbered = [text for text in sorted(texts) if text.lstrip("-").isdecimal()]
    if numbered and given is None:
        odd = min(text for text in texts if not text.isdecimal())
        raise DatasetError(
            f"labels are numbers such as {numbered[-1]}, but one is {odd!r}: name the classes with --classes FILE"
        )
    names = given or sorted(texts)
    numbers = {name: number for number, name in enumerate(names)}
    for text in sorted(texts - set(names)):
        raise ConfigError(f"the label {text!r} is not among the names of --classes")
    return names, numbers.__getitem__


def held_out(cfg: DataConfig, what: Adoption, records: dict[str, list[Record]]) -> dict[str, int]:
    """How many samples of the first pattern go to the splits for which no pattern is given."""
    total = sum(record.total for record in records["train"])
    sizes = {"val": cfg.val_samples, "test": cfg.test_samples}
    return {name: parse_size(text, total) for name, text in sizes.items() if name not in what.patterns}


def assigned(cfg: DataConfig, sizes: dict[str, int], total: int) -> np.ndarray:
    """The split of every sample of the first pattern, as a number of SPLITS; what is held out is drawn uniformly.

    Raises DatasetError where nothing is left to train on.
    """
    count = sum(sizes.values())
    if count >= total:
        raise DatasetError(f"{total:,} images; held out are {sizes}: nothing is left to train on")
    drawn = permute(np.arange(count), total, hash_words(cfg.seed, _HELD_OUT))
    owners = np.zeros(total, np.uint8)
    owners[drawn] = np.repeat([SPLITS.index(name) for name in sizes], list(sizes.values()))
    return owners


def write_split(
    folder: Path,
    split: str,
    records: list[Record],
    chosen: np.ndarray | None,
    number_of: Callable[[str], int],
    classes: int,
) -> dict[str, Any]:
    """One split's index, a shard at a time; returns its part of the manifest. Shards without a sample are left out."""
    samples = sum(record.total for record in records) if chosen is None else int(chosen.sum())
    if samples == 0:
        raise DatasetError(f"split {split}: none of its images can be used; {folder / 'dropped.csv'} names them")
    shards: list[dict[str, Any]] = []
    counts = np.zeros(classes, np.int64)
    path = index_path(folder, split)
    temporary, start, written = path.with_suffix(".tmp"), 0, 0
    with open(temporary, "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": INDEX.descr, "fortran_order": False, "shape": (samples,)})
        for record in records:
            rows = np.load(record.rows)
            stop = start + len(rows)
            if chosen is not None:
                rows = rows[chosen[start:stop]]
            start = stop
            if len(rows):
                rows["label"] = np.array([number_of(text) for text in record.labels], np.int64)[rows["label"]]
                rows["shard"], rows["origin"] = len(shards), written + np.arange(len(rows))
                counts += np.bincount(rows["label"], minlength=classes)
                written += len(rows)
                file.write(rows.tobytes())
                shards.append(
                    {"file": record.name, "samples": len(rows), "bytes": record.bytes, "sha256": record.sha256}
                )
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return {"samples": samples, "shards": shards, "class_counts": counts.tolist()}


def adopted_patterns(train: str, val: str | None, test: str | None) -> dict[str, str]:
    """Patterns by split; those that are not given are cut from the first."""
    given = {"train": train, "val": val, "test": test}
    return {split: pattern for split, pattern in given.items() if pattern is not None}


def read_classes(path: Path) -> list[str]:
    """Class names, one a line. Raises ConfigError for none, or one twice."""
    try:
        names = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    except OSError as error:
        raise ConfigError(f"--classes {path}: {error.strerror}") from error
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"--classes {path}: {'a name twice' if names else 'no name'}")
    return names
