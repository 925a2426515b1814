"""The end of packing: indices, dropped.csv and, last of all, the manifest."""

import csv
import hashlib
import io
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.config import DataConfig
from harness.data.manifest import FORMAT_VERSION, INDEX, index_path, sealed
from harness.data.order import PERMUTATION
from harness.data.pack_workers import ShardTask
from harness.data.shard import ShardRecord, read_record, read_rows
from harness.data.sources import Source
from harness.errors import DatasetError
from harness.run_folder import write_atomic, write_json


class Dropped(NamedTuple):
    """An image that is not in the set."""

    split: str
    image: str
    reason: str


def finish(
    folder: Path, records: Path, cfg: DataConfig, identity: dict[str, Any], source: Source, tasks: list[ShardTask]
) -> None:
    """Write what describes the shards. Raises DatasetError when too many images, or all of a split, were dropped."""
    finished = {name: [read(folder, records, task) for task in tasks if task.split == name] for name in source.splits}
    dropped = [Dropped(name, *item) for name, shards in finished.items() for shard in shards for item in shard.dropped]
    write_dropped(folder, dropped)
    check_dropped(folder, dropped, cfg, source)
    splits: dict[str, Any] = {}
    digest = hashlib.sha256()
    for name, shards in finished.items():
        kept = [shard for shard in shards if shard.samples]
        for shard in shards:
            if not shard.samples:  # every image of it was dropped; an empty tar breaks other readers
                (folder / shard.file).unlink()
        counts = write_index(folder, records, name, kept, len(source.class_names))
        samples = sum(shard.samples for shard in kept)
        digest.update(split_digest(name, samples, [shard.digest for shard in kept]))
        splits[name] = {
            "samples": samples,
            "shards": [shard.manifest_entry() for shard in kept],
            "class_counts": counts.tolist(),
        }
    converted = sum((Counter(shard.converted) for shards in finished.values() for shard in shards), Counter[str]())
    manifest = {
        "format_version": FORMAT_VERSION,
        "name": cfg.name,
        "title": cfg.title,
        "licence": cfg.licence,
        "origin": cfg.origin,
        "config": identity,
        "fingerprint": source.fingerprint,
        "class_names": source.class_names,
        "channels": cfg.channels,
        "image_size": cfg.image_size,
        "shuffle": {"kind": PERMUTATION, "seed": cfg.seed},
        "digest": digest.hexdigest(),
        "splits": splits,
        "dropped": dict(sorted(Counter(item.reason for item in dropped).items())),
        "converted": dict(sorted(converted.items())),
        "shared_originals": shared_originals(folder, list(splits)),
        "notes": source.notes,
    }
    write_json(folder / "manifest.json", sealed(manifest))
    shutil.rmtree(records)


def read(folder: Path, records: Path, task: ShardTask) -> ShardRecord:
    """The record of a shard that has just been written."""
    record = read_record(folder, records, task.file)
    if record is None:
        raise DatasetError(f"{folder / task.file}: vanished while packing; the same command writes it again")
    return record


def split_digest(name: str, samples: int, shard_digests: list[str]) -> bytes:
    """What one split adds to the digest of the set."""
    return f"{name}:{samples}".encode() + b"".join(bytes.fromhex(digest) for digest in shard_digests)


def write_index(folder: Path, records: Path, split: str, shards: list[ShardRecord], classes: int) -> np.ndarray:
    """One split's index, atomically, a shard at a time; returns the images of each class."""
    path = index_path(folder, split)
    temporary = path.with_suffix(".tmp")
    counts = np.zeros(classes, np.int64)
    with open(temporary, "wb") as file:
        header = {"descr": INDEX.descr, "fortran_order": False, "shape": (sum(shard.samples for shard in shards),)}
        np.lib.format.write_array_header_1_0(file, header)
        for number, shard in enumerate(shards):
            rows = read_rows(records, shard.file)
            rows["shard"] = number
            file.write(rows.tobytes())
            counts += np.bincount(rows["label"], minlength=classes)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return counts


def shared_originals(folder: Path, splits: list[str]) -> dict[str, int]:
    """How many images of a split have an original that training has too: {'test': 3}. Glyphs share in val by design."""
    train = np.unique(np.load(index_path(folder, "train"), mmap_mode="r")["origin"])
    return {
        name: int(np.isin(np.load(index_path(folder, name), mmap_mode="r")["origin"], train).sum())
        for name in splits
        if name != "train"
    }


def write_dropped(folder: Path, dropped: list[Dropped]) -> None:
    """dropped.csv names every image that is not in the set; no file where all are."""
    path = folder / "dropped.csv"
    if not dropped:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([Dropped._fields, *dropped])
    write_atomic(path, text.getvalue())


def check_dropped(folder: Path, dropped: list[Dropped], cfg: DataConfig, source: Source) -> None:
    """Raises DatasetError above the share that is allowed, and for a split of which nothing is left."""
    lost = Counter(item.split for item in dropped)
    total = sum(split.samples for split in source.splits.values())
    reasons = ", ".join(f"{count} {reason}" for reason, count in Counter(item.reason for item in dropped).items())
    for name, split in source.splits.items():
        if split.samples == lost[name]:
            raise DatasetError(
                f"split {name}: none of its {split.samples:,} images can be used ({reasons}); "
                f"{folder / 'dropped.csv'} names them"
            )
    if len(dropped) > cfg.max_dropped * total:
        raise DatasetError(
            f"{len(dropped):,} of {total:,} images cannot be used ({reasons}), more than "
            f"data.max_dropped={cfg.max_dropped}; {folder / 'dropped.csv'} names them. Raise the limit, or mend the "
            "files and pack again with --force"
        )
