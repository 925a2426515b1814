"""A tree of class folders: the user's own images.

`DIR/class/…/image.jpg`, any nesting below the class; or `DIR/train/class/…` with `val` and `test` beside it, whose
split is then kept. What is missing is cut from the training images by data.val_samples and data.test_samples.

Passed over, and counted by kind: side files (`._x`, hidden files, `.DS_Store`, `Thumbs.db`, `__MACOSX`), files whose
extension (in any case) is not an image's, links that lead nowhere, pipes and sockets. Links to folders are followed,
each folder once. A folder that may not be read is an error: a class would silently be smaller.
"""

import hashlib
import os
import stat
from collections import Counter
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from harness.config import DataConfig
from harness.data.images import BadImageError, encode, read_image, shrink
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import count_or_none, cut, digest_of, origin_of
from harness.errors import DatasetError

EXTENSIONS = {
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm"),
}
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
LOSSLESS_UP_TO_PIXELS = 64
JPEG_QUALITY = 95


class File(NamedTuple):
    """An image file: path as text (millions of Path objects would fill the memory), bytes, label."""

    path: str
    size: int
    label: int


def open_folder(cfg: DataConfig) -> Source:
    """Raises DatasetError naming the folder, or the class, that holds no image."""
    if cfg.path is None:
        raise DatasetError("data.path is not given: harness data pack folder data.path=DIR data.name=mine")
    root = Path(cfg.path).expanduser()
    if not root.is_dir():
        raise DatasetError(f"data.path={root}: there is no such folder")
    passed: Counter[str] = Counter()
    split_folders = find_splits(root)
    classes = class_names(root / split_folders["train"] if split_folders else root)
    labelled = {
        split: list_split(root / name, classes, passed) for split, name in (split_folders or {"train": "."}).items()
    }
    splits = cut_splits(labelled, cfg)
    return Source(
        class_names=classes,
        splits={split: file_split(items, root, cfg) for split, items in splits.items() if items},
        fingerprint=fingerprint(splits, root),
        notes={"origins": "distinct images", "passed_over": dict(sorted(passed.items()))},
    )


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


def class_names(root: Path) -> list[str]:
    """Names of class folders, sorted as text. Raises DatasetError when there are none."""
    names = [name for name in names_in(root) if (root / name).is_dir() and not is_hidden(name)]
    if not names:
        raise DatasetError(f"{root}: no class folder in it (wanted {root}/CLASS/IMAGE.jpg)")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DatasetError(f"{root}: the name of class folder {name!r} is not UTF-8; rename it") from error
    return names


def list_split(root: Path, classes: list[str], passed: Counter[str]) -> list[File]:
    """Image files of every class folder below `root`, in the order of classes and names.

    Raises DatasetError for a class that is empty, or that the training images do not have.
    """
    labels = {name: label for label, name in enumerate(classes)}
    files: list[File] = []
    for name in class_names(root):
        if name not in labels:
            raise DatasetError(f"{root / name}: a class that the training images do not have")
        before = len(files)
        files += list_images(root / name, labels[name], passed)
        if len(files) == before:
            raise DatasetError(f"{root / name}: this class folder holds no image; remove it or fill it")
    loose = sum(not (root / name).is_dir() and not is_hidden(name) for name in names_in(root))
    if loose:
        passed["file outside class folders"] += loose
    return files


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def list_images(folder: Path, label: int, passed: Counter[str]) -> list[File]:
    """Every image file below `folder`, sorted; a linked folder is entered once, so that loops end."""
    found: list[File] = []
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
            file = look_at(Path(where, name), label, passed)
            if file is not None:
                found.append(file)
    return found


def look_at(path: Path, label: int, passed: Counter[str]) -> File | None:
    """The file if it can be an image, else None and one more of its kind in `passed`."""
    extension = path.suffix.lower()
    if is_hidden(path.name):
        passed["hidden or side file"] += 1
    elif extension not in EXTENSIONS:
        passed[f"extension {ascii(extension)[1:-1] or 'none'}"] += 1
    else:
        try:
            status = path.stat()
        except OSError:
            passed["link that leads nowhere"] += 1
            return None
        if stat.S_ISREG(status.st_mode):
            return File(str(path), status.st_size, label)
        passed["pipe, socket or device"] += 1
    return None


def unreadable(error: OSError) -> NoReturn:
    """os.walk would pass over a folder that may not be read."""
    raise DatasetError(f"{error.filename}: {error.strerror}; make it readable or move it away") from error


def is_hidden(name: str) -> bool:
    """Hidden files, and what macOS and Windows leave beside images."""
    return name.startswith(".") or name in ("Thumbs.db", "__MACOSX", "desktop.ini")


def cut_splits(labelled: dict[str, list[File]], cfg: DataConfig) -> dict[str, list[File]]:
    """Splits that the folder does not have are cut from its training images."""
    train = labelled["train"]
    wanted = {"val": cfg.val_samples, "test": cfg.test_samples}
    sizes = [
        0 if split in labelled else count_or_none(text, len(train), f"data.{split}_samples")
        for split, text in wanted.items()
    ]
    if sum(sizes) >= len(train):
        raise DatasetError(f"data.val_samples and data.test_samples leave none of {len(train):,} images to train on")
    val, test, rest = (pick(train, part) for part in cut(len(train), sizes, cfg.seed))
    return {"train": rest, "val": labelled.get("val", val), "test": labelled.get("test", test)}


def pick(items: list[File], chosen: np.ndarray) -> list[File]:
    """The items at the positions `chosen`."""
    return [items[i] for i in chosen.tolist()]


def fingerprint(splits: dict[str, list[File]], root: Path) -> str:
    """Over names below `root`, sizes and labels: the same wherever the folder lies; contents are not read."""
    digest = hashlib.sha256()
    for split, items in splits.items():
        for path, size, label in items:
            digest.update(os.fsencode(f"{split}\0{os.path.relpath(path, root)}\0{size}\0{label}\n"))
    return digest.hexdigest()


def file_split(items: list[File], root: Path, cfg: DataConfig) -> SourceSplit:
    """Files as samples; the key is a number and a digest of the path, so that any file name can be packed."""

    def get(i: int) -> Sample:
        name = hashlib.sha256(os.fsencode(os.path.relpath(items[i].path, root))).hexdigest()[:12]
        return read_file(items[i].path, f"{i:08d}-{name}", items[i].label, cfg)

    def name_of(i: int) -> str:
        return os.fsencode(os.path.relpath(items[i].path, root)).decode(errors="backslashreplace")

    return SourceSplit(len(items), get, name_of)


def read_file(path: str, key: str, label: int, cfg: DataConfig) -> Sample:
    """One file as a sample: converted by the rules of harness.data.images, short side as the data set stores it.

    Short sides up to 64 pixels are stored losslessly, larger ones as JPEG. The origin is the file's bytes: two copies
    of a file are one original.
    """
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise BadImageError("unreadable", str(error)) from error
    image, converted = read_image(data, cfg.channels)
    if cfg.image_size is not None:
        image = shrink(image, cfg.image_size)
    small = min(image.size) <= LOSSLESS_UP_TO_PIXELS
    encoded, extension = encode(image, "png" if small else "jpeg", JPEG_QUALITY)
    digest = digest_of(np.asarray(image if small else read_image(encoded, cfg.channels)[0]))
    origin = origin_of(hashlib.sha256(data).digest())
    return Sample(key, encoded, extension, label, digest, origin, tuple(converted))
