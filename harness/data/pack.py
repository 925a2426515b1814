"""Raw images to a packed data set: one global uniform shuffle, WebDataset shards, an index, a manifest.

The shuffle is a permutation of the source's indices, so a shard is a pure function of (source, seed, its number):
shards are written in parallel and in any order, memory stays bounded, a killed pack goes on with the shards that are
missing, and the output does not depend on the number of workers.
"""

import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from harness.config import DataConfig
from harness.data.manifest import FORMAT_VERSION, INDEX, dataset_folder, index_path
from harness.data.order import PERMUTATION, permute
from harness.data.shard import ShardRecord, read_record, write_shard
from harness.data.sources import Source, open_source
from harness.errors import DatasetError
from harness.run_folder import identity_hash, read_json, write_atomic, write_json

NOT_IN_IDENTITY = ("title", "licence", "origin", "pack_on_demand")  # change nothing that is packed
RECORDS = ".packing"


@dataclass(frozen=True)
class ShardTask:
    """One shard to write: samples `indices` of a split, in this order."""

    split: str
    number: int
    start: int
    stop: int

    @property
    def file(self) -> str:
        return f"{self.split}-{self.number:06d}.tar"


def pack(cfg: DataConfig, root: Path, workers: int | None = None, force: bool = False, progress: bool = True) -> Path:
    """Pack `cfg` into root/NAME and return that folder; a complete pack of the same configuration is left as it is.

    Raises DatasetError when the folder holds another configuration (unless `force`), when a split is empty, or when
    more than data.max_dropped of the images cannot be used.
    """
    folder = dataset_folder(cfg, root)
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f".{cfg.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes that want the set one packs, the other waits
        if not is_packed(folder, cfg) or force:
            pack_locked(cfg, folder, workers or os.cpu_count() or 1, force, progress)
    return folder


def pack_locked(cfg: DataConfig, folder: Path, workers: int, force: bool, progress: bool) -> None:
    """Open the source, write the shards that are missing, then indices and manifest."""
    source = open_source(cfg)
    identity = identity_hash({"config": identity_of(cfg), "fingerprint": source.fingerprint, "shuffle": PERMUTATION})
    prepare_folder(folder, identity, force)
    tasks = shard_tasks(source, cfg.shard_samples)
    missing = [task for task in tasks if read_record(folder / RECORDS, task.file) is None]
    write_shards(missing, source, cfg, folder, workers, progress)
    records = {task.file: read_record(folder / RECORDS, task.file) for task in tasks}
    finish(folder, cfg, source, tasks, {file: record for file, record in records.items() if record is not None})


def identity_of(cfg: DataConfig) -> dict[str, Any]:
    """The fields that decide what is packed."""
    return {name: value for name, value in asdict(cfg).items() if name not in NOT_IN_IDENTITY}


def is_packed(folder: Path, cfg: DataConfig) -> bool:
    """Whether a finished pack of this configuration is there. The source is not read again to find out."""
    manifest = read_json(folder / "manifest.json")
    return manifest is not None and manifest.get("config") == identity_of(cfg)


def prepare_folder(folder: Path, identity: str, force: bool) -> None:
    """Make sure that `folder` is empty, or holds the unfinished pack of the same identity.

    Raises DatasetError, and touches nothing, when it holds anything else.
    """
    begun = read_json(folder / RECORDS / "identity.json")
    if begun is not None and begun.get("identity") == identity and not (folder / "manifest.json").exists():
        return
    if folder.exists() and any(folder.iterdir()):
        is_ours = (folder / "manifest.json").exists() or begun is not None
        if not force:
            what = "a data set of another configuration" if is_ours else "files that are no data set"
            other_name = "give this one another name (data.name=NAME)"
            fix = f"{other_name} or pack with --force" if is_ours else other_name
            raise DatasetError(f"{folder} holds {what}: {fix}")
        if not is_ours:
            raise DatasetError(f"{folder} holds files that are no data set; --force does not remove those")
        shutil.rmtree(folder)
    write_json(folder / RECORDS / "identity.json", {"identity": identity})


def shard_tasks(source: Source, shard_samples: int) -> list[ShardTask]:
    """Every shard of every split. Raises DatasetError for an empty training split."""
    if source.splits["train"].samples == 0:
        raise DatasetError("the train split is empty")
    return [
        ShardTask(name, number, start, min(start + shard_samples, split.samples))
        for name, split in source.splits.items()
        for number, start in enumerate(range(0, split.samples, shard_samples))
    ]


# The source is opened once; forked workers share its pages.
_job: tuple[Source, DataConfig, Path] | None = None


def write_one(task: ShardTask) -> int:
    """Write one shard in a worker process."""
    assert _job is not None
    source, cfg, folder = _job
    split = source.splits[task.split]
    key = int(hashlib.sha256(f"{cfg.seed}/{task.split}".encode()).hexdigest()[:16], 16)
    indices = permute(np.arange(task.start, task.stop), split.samples, key)
    write_shard(folder, folder / RECORDS, task.file, split, indices)
    return task.stop - task.start


def write_shards(
    tasks: list[ShardTask], source: Source, cfg: DataConfig, folder: Path, workers: int, progress: bool
) -> None:
    """Write shards in parallel, showing how many images are done."""
    global _job
    _job = (source, cfg, folder)
    total = sum(task.stop - task.start for task in tasks)
    columns = (TextColumn("packing"), BarColumn(), MofNCompleteColumn(), TextColumn("images"), TimeRemainingColumn())
    with Progress(*columns, disable=not progress) as bar:
        shown = bar.add_task("packing", total=total)
        for count in run_tasks(tasks, workers):
            bar.advance(shown, count)


def run_tasks(tasks: list[ShardTask], workers: int) -> Iterator[int]:
    """Results as they come; in this process when there is one worker or one task."""
    if workers <= 1 or len(tasks) <= 1:
        yield from map(write_one, tasks)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        yield from pool.map(write_one, tasks)


def finish(
    folder: Path, cfg: DataConfig, source: Source, tasks: list[ShardTask], records: dict[str, ShardRecord]
) -> None:
    """Indices, dropped.csv and, last of all, the manifest."""
    splits: dict[str, Any] = {}
    digest = hashlib.sha256()
    dropped: list[tuple[str, str, str]] = []
    for name in source.splits:
        mine = [records[task.file] for task in tasks if task.split == name]
        dropped += [(name, item, reason) for record in mine for item, reason in record.dropped]
        rows = np.concatenate([record.rows(number) for number, record in enumerate(mine)] or [np.empty(0, INDEX)])
        if not len(rows):
            raise DatasetError(f"split {name}: none of its images can be used; see {folder / 'dropped.csv'}")
        save_index(folder, name, rows)
        digest.update(f"{name}:{len(rows)}".encode() + b"".join(bytes.fromhex(record.digest) for record in mine))
        splits[name] = {
            "samples": len(rows),
            "shards": [record.manifest_entry() for record in mine],
            "class_counts": np.bincount(rows["label"], minlength=len(source.class_names)).tolist(),
        }
    write_dropped(folder, dropped, cfg, sum(split.samples for split in source.splits.values()))
    write_json(
        folder / "manifest.json",
        {
            "format_version": FORMAT_VERSION,
            "name": cfg.name,
            "title": cfg.title,
            "licence": cfg.licence,
            "origin": cfg.origin,
            "config": identity_of(cfg),
            "class_names": source.class_names,
            "channels": cfg.channels,
            "image_size": cfg.image_size,
            "shuffle": {"kind": PERMUTATION, "seed": cfg.seed},
            "digest": digest.hexdigest(),
            "splits": splits,
            "dropped": dict(Counter(reason for _, _, reason in dropped)),
            "notes": source.notes,
        },
    )
    shutil.rmtree(folder / RECORDS)


def save_index(folder: Path, split: str, rows: np.ndarray) -> None:
    """One split's index, atomically."""
    path = index_path(folder, split)
    temporary = path.with_suffix(".tmp")
    with open(temporary, "wb") as file:
        np.save(file, rows)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_dropped(folder: Path, dropped: list[tuple[str, str, str]], cfg: DataConfig, total: int) -> None:
    """dropped.csv names every image that is not in the set. Raises DatasetError above the share that is allowed."""
    lines = ["split,image,reason"] + [f"{split},{json.dumps(item)},{reason}" for split, item, reason in dropped]
    if dropped:
        write_atomic(folder / "dropped.csv", "\n".join(lines) + "\n")
    if len(dropped) > cfg.max_dropped * total:
        raise DatasetError(
            f"{len(dropped):,} of {total:,} images cannot be used ({folder / 'dropped.csv'} names them), more than "
            f"data.max_dropped={cfg.max_dropped}; mend the images or raise the limit"
        )
