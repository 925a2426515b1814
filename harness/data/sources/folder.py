"""A tree of class folders: the user's own images.

`DIR/class/…/image.jpg`, any nesting below the class; or `DIR/train/class/…` with `val` and `test` beside it, whose
split is then kept. What is missing is cut from the training images by data.val_samples and data.test_samples.

Passed over, and counted by kind: side files (`._x`, hidden files, `.DS_Store`, `Thumbs.db`, `__MACOSX`), files whose
extension (in any case) is not an image's, links that lead nowhere, pipes and sockets. Links to folders are followed,
each folder once. A folder that may not be read is an error: a class would silently be smaller.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import numpy as np

from harness.config import DataConfig
from harness.data.sources import Source
from harness.data.sources.common import raw_folder
from harness.data.sources.entries import Entries, entries_source, group_of, reader
from harness.errors import DatasetError

EXTENSIONS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
}
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


def open_folder(cfg: DataConfig) -> Source:
    """Raises DatasetError naming the folder, or the class, that holds no image."""
    root = raw_folder(cfg).absolute()
    passed: Counter[str] = Counter()
    split_folders = find_splits(root)
    classes = class_names(root / split_folders["train"] if split_folders else root, cfg.classes)
    entries, given = Entries(), {}
    for split, name in (split_folders or {"train": "."}).items():
        before = len(entries)
        list_split(root, name, classes, cfg, entries, passed)
        given[split] = np.arange(before, len(entries))
    notes = {"passed_over": dict(sorted(passed.items()))}
    return entries_source(entries, given, classes, reader(root, entries), cfg, notes)


def find_splits(root: Path) -> dict[str, str] | None:
    """{'train': 'train', 'val': 'valid'} where the folders below `root` are splits; None where they are classes.

    A folder of images that is called train, between others, is a class. Raises DatasetError where it could be either.
    """
    folders = [name for name in names_in(root) if (root / name).is_dir() and not is_hidden(name)]
    named = [name for name in folders if name.lower() in SPLITS]
    others = [name for name in folders if name.lower() not in SPLITS]
    train = [name for name in named if name.lower() == "train"]
    if not train or not any((root / train[0] / name).is_dir() for name in names_in(root / train[0])):
        return None
    if others and len(named) == 1:
        return None
    if others:
        raise DatasetError(
            f"{root}: {', '.join(named)} look like splits, {', '.join(others[:3])} like something else; "
            "move one kind away"
        )
    splits: dict[str, str] = {}
    for name in named:
        split = SPLITS[name.lower()]
        if split in splits:
            raise DatasetError(f"{root}: both {splits[split]} and {name} are the {split} split; move one away")
        splits[split] = name
    return splits


def class_names(root: Path, only: list[str] | None = None) -> list[str]:
    """Names of class folders, sorted as text. Raises DatasetError when there are none, or not those that are wanted."""
    names = [name for name in names_in(root) if (root / name).is_dir() and not is_hidden(name)]
    if only is not None:
        missing = sorted(set(only) - set(names))
        if missing:
            raise DatasetError(f"{root}: data.classes names folders that are not there: {', '.join(missing)}")
        names = [name for name in names if name in only]
    if not names:
        raise DatasetError(f"{root}: no class folder in it (wanted {root}/CLASS/IMAGE.jpg)")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(f"{root}: the name of class folder {name!r} is not UTF-8; rename it") from error
    return names


def list_split(
    root: Path, split: str, classes: list[str], cfg: DataConfig, entries: Entries, passed: Counter[str]
) -> None:
    """Add the image files of every class folder below `root/split`, in the order of classes and names.

    Raises DatasetError for a class that is empty, or that the training images do not have.
    """
    labels = {name: label for label, name in enumerate(classes)}
    folder = root / split
    for name in class_names(folder, cfg.classes):
        if name not in labels:
            raise DatasetError(f"{folder / name}: a class that the training images do not have")
        before = len(entries)
        for path, size in list_images(folder / name, passed):
            relative = path[len(str(root)) + 1 :]
            entries.add(relative, size, labels[name], group_of(cfg, relative))
        if len(entries) == before:
            raise DatasetError(f"{folder / name}: this class folder holds no image; remove it or fill it")
    loose = sum(not (folder / name).is_dir() and not is_hidden(name) for name in names_in(folder))
    if loose:
        passed["file outside class folders"] += loose


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def list_images(folder: Path, passed: Counter[str]) -> Iterator[tuple[str, int]]:
    """Every image file below `folder` with its bytes, sorted; a linked folder is entered once, so that loops end."""
    entered = {os.path.realpath(folder)}
    for where, folders, names in os.walk(folder, onerror=unreadable, followlinks=True):
        inside = Path(os.path.realpath(where))
        fresh = []
        for name in sorted(folders):
            real = os.path.realpath(Path(where, name))
            if is_hidden(name):
                passed["hidden or side folder"] += 1
            elif real in entered or inside.is_relative_to(real):
                passed["linked folder already entered"] += 1
            else:
                entered.add(real)
                fresh.append(name)
        folders[:] = fresh
        for name in sorted(names):
            path = f"{where}/{name}"  # text: a Path takes longer than the file's own system call
            size = look_at(path, name, passed)
            if size is not None:
                yield path, size


def look_at(path: str, name: str, passed: Counter[str]) -> int | None:
    """Bytes of a file that can be an image, else None and one more of its kind in `passed`."""
    extension = os.path.splitext(name)[1].lower()  # noqa: PTH122
    if is_hidden(name):
        passed["hidden or side file"] += 1
    elif extension not in EXTENSIONS:
        passed[f"extension {ascii(extension)[1:-1] or 'none'}"] += 1
    else:
        try:
            status = os.stat(path)  # noqa: PTH116
        except OSError:
            passed["link that leads nowhere"] += 1
            return None
        if stat.S_ISREG(status.st_mode):
            return status.st_size
        passed["pipe, socket or device"] += 1
    return None


def unreadable(error: OSError) -> NoReturn:
    """os.walk would pass over a folder that may not be read."""
    raise DatasetError(f"{error.filename}: {error.strerror}; make it readable or move it away") from error


def is_hidden(name: str) -> bool:
    """Hidden files, and what macOS and Windows leave beside images."""
    return name.startswith(".") or name in ("Thumbs.db", "__MACOSX", "desktop.ini")
