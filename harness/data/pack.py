"""Raw images to a packed data set: one global uniform shuffle, WebDataset shards, an index, a manifest.

The shuffle is a permutation of the source's indices, so a shard is a pure function of (source, seed, its number):
shards are written in parallel and in any order, memory stays bounded, a killed pack goes on with the shards that are
missing, and the output does not depend on the number of workers.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.config import DataConfig, stated
from harness.data.finish import finish
from harness.data.manifest import dataset_folder
from harness.data.order import PERMUTATION
from harness.data.pack_workers import ShardTask, write_shards
from harness.data.shard import read_record
from harness.data.sources import Source, open_source
from harness.errors import DatasetError, HarnessError
from harness.run_folder import read_json, write_json

# Fields that change nothing that is packed. Where the source lies is not what it holds: its fingerprint covers that.
NOT_IN_IDENTITY = (
    "title",
    "licence",
    "origin",
    "pack_on_demand",
    "max_dropped",
    "path",
    "fonts",
    "allow_shell",
    "fetch",
    "raw",
)
RECORDS = ".packing"


def pack(cfg: DataConfig, root: Path, workers: int | None = None, force: bool = False, progress: bool = True) -> Path:
    """Pack `cfg` into root/NAME and return that folder; a complete pack of the same configuration is left as it is.

    Raises DatasetError when the folder holds another configuration (unless `force`), when a split is empty, or when
    more than data.max_dropped of the images cannot be used.
    """
    folder = dataset_folder(cfg, root)
    try:
        if is_packed(folder, cfg) and not force:  # nothing to write, so nothing to lock: the root may be read-only
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / f".{cfg.name}.lock", progress):
            if force or not is_packed(folder, cfg):
                pack_locked(cfg, folder, workers or os.cpu_count() or 1, force, progress)
    except OSError as error:
        raise DatasetError(f"{folder}: packing stopped ({error}); the same command goes on from there") from error
    return folder


@contextmanager
def locked(path: Path, progress: bool) -> Iterator[None]:
    """Of two processes that want a set one packs, the other waits and says so."""
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print(f"{path}: another process is packing this set; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pack_locked(cfg: DataConfig, folder: Path, workers: int, force: bool, progress: bool) -> None:
    """Open the source, write the shards that are missing, then indices and manifest."""
    source = open_source(cfg)
    prepare_folder(folder, {**identity_of(cfg), "fingerprint": source.fingerprint, "shuffle": PERMUTATION}, force)
    records = folder / RECORDS
    tasks = shard_tasks(source, cfg)
    missing = [task for task in tasks if read_record(folder, records, task.file) is None]
    if progress and len(missing) < len(tasks):
        print(f"{folder}: {len(tasks) - len(missing)} of {len(tasks)} shards are there; going on")
    write_shards(missing, source, folder, records, workers, progress)
    finish(folder, records, cfg, identity_of(cfg), source, tasks)
    source.done()


def identity_of(cfg: DataConfig) -> dict[str, Any]:
    """The fields that decide what is packed."""
    return {name: value for name, value in stated(cfg).items() if name not in NOT_IN_IDENTITY}


def differences(packed: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """'data.image_size is 64, wanted 32' for each field of `wanted` in which a packed set differs."""
    return [
        "the source's files have changed"
        if name == "fingerprint"
        else f"data.{name} is {packed.get(name)}, wanted {value}"
        for name, value in wanted.items()
        if packed.get(name) != value
    ]


def is_packed(folder: Path, cfg: DataConfig) -> bool:
    """Whether a finished pack of this configuration is there. The source is not read again to find out."""
    manifest = read_json(folder / "manifest.json")
    return manifest is not None and not differences(manifest.get("config", {}), identity_of(cfg))


def source_changed(folder: Path, cfg: DataConfig) -> bool | None:
    """Whether the source holds something else than when it was packed; None where it cannot be read any more."""
    manifest = read_json(folder / "manifest.json") or {}
    try:
        return bool(manifest.get("fingerprint") != open_source(cfg).fingerprint)
    except (HarnessError, OSError):
        return None


def prepare_folder(folder: Path, identity: dict[str, Any], force: bool) -> None:
    """Make sure that `folder` is empty, or holds the unfinished pack of the same identity.

    Raises DatasetError, and touches nothing, when it holds anything else.
    """
    manifest = read_json(folder / "manifest.json")
    begun = read_json(folder / RECORDS / "identity.json")
    if manifest is None and begun is not None and not differences(begun, identity):
        return
    if folder.exists() and any(folder.iterdir()):
        only_ours = {path.name for path in folder.iterdir()} <= {RECORDS, "cache"}
        is_ours = manifest is not None or begun is not None or only_ours
        if not is_ours:
            raise DatasetError(
                f"{folder} holds files that are no data set: give this one another name (data.name=NAME)"
                + ("; --force does not remove those files" if force else "")
            )
        if not force and not only_ours:
            packed = {**manifest["config"], "fingerprint": manifest.get("fingerprint")} if manifest else begun or {}
            known = {name: value for name, value in identity.items() if name in packed or manifest is None}
            what = "; ".join(differences(packed, known)) or "it is damaged"
            raise DatasetError(
                f"{folder} holds another data set ({what}): give this one another name (data.name=NAME) or replace "
                "it with --force"
            )
        shutil.rmtree(folder)
    write_json(folder / RECORDS / "identity.json", identity)


def shard_tasks(source: Source, cfg: DataConfig) -> list[ShardTask]:
    """Every shard of every split. Raises DatasetError for an empty training split."""
    if source.splits["train"].samples == 0:
        raise DatasetError(f"data set {cfg.name}: the train split is empty")
    tasks = []
    for name, split in source.splits.items():
        key = int(hashlib.sha256(f"{cfg.seed}/{name}".encode()).hexdigest()[:16], 16)
        starts = range(0, split.samples, cfg.shard_samples)
        tasks += [
            ShardTask(name, number, start, min(start + cfg.shard_samples, split.samples), key)
            for number, start in enumerate(starts)
        ]
    return tasks
