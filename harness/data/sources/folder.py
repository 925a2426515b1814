"""A tree of class folders: the user's own images.

`DIR/class/…/image.jpg`, any nesting below the class; or `DIR/train/class/…` with `val` and `test` beside it, whose
split is then kept. What is missing is cut from the training images by data.val_samples and data.test_samples.
Side files (`._x`, hidden files, `.DS_Store`, `Thumbs.db`, `__MACOSX`) are no images and are passed over; so is every
file whose extension is not an image's, both counted. Links to folders are followed once.
"""

import hashlib
import os
from collections import Counter
from pathlib import Path

import numpy as np

from harness.config import DataConfig
from harness.data.images import BadImageError, encode, open_image, shrink
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import count_or_none, cut, digest_of, origin_of
from harness.errors import DatasetError

EXTENSIONS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jfif"}
SPLITS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
LOSSLESS_UP_TO_PIXELS = 64
JPEG_QUALITY = 95


def open_folder(cfg: DataConfig) -> Source:
    """Raises DatasetError naming the folder, or the class, that holds no image."""
    if cfg.path is None:
        raise DatasetError("data.path is not given: harness data pack folder data.path=DIR data.name=mine")
    root = Path(cfg.path)
    if not root.is_dir():
        raise DatasetError(f"data.path={root}: there is no such folder")
    passed: Counter[str] = Counter()
    named = {name: SPLITS[name] for name in names_in(root) if name in SPLITS and (root / name).is_dir()}
    if "train" in named.values():
        files = {split: list_classes(root / name, passed) for name, split in named.items()}
    else:
        files = {"train": list_classes(root, passed)}
    classes = sorted(files["train"])
    if not classes:
        raise DatasetError(f"{root}: no class folder with images in it (wanted {root}/CLASS/IMAGE.jpg)")
    for split, by_class in files.items():
        for name, paths in by_class.items():
            if name not in files["train"]:
                raise DatasetError(f"{root / split / name}: a class that the training images do not have")
            if not paths:
                raise DatasetError(f"{root}: class folder {name} ({split}) holds no image; remove it or fill it")
    labelled = {split: label_files(by_class, classes) for split, by_class in files.items()}
    splits = cut_splits(labelled, cfg)
    listing = "\n".join(
        f"{split}\t{path}\t{label}\t{path.stat().st_size}" for split in splits for path, label in splits[split]
    )
    return Source(
        class_names=classes,
        splits={split: file_split(items, root, cfg) for split, items in splits.items() if items},
        fingerprint=hashlib.sha256(os.fsencode(listing)).hexdigest(),
        notes={"origins": "distinct images", "passed_over": dict(passed)},
    )


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def list_classes(root: Path, passed: Counter[str]) -> dict[str, list[Path]]:
    """Sorted image files of each class folder below `root`; everything else is counted by kind."""
    return {
        name: list_images(root / name, passed)
        for name in names_in(root)
        if (root / name).is_dir() and not is_hidden(name)
    }


def list_images(folder: Path, passed: Counter[str]) -> list[Path]:
    """Every image file below `folder`, sorted; a linked folder is entered once, so that loops end."""
    found, entered = [], {os.path.realpath(folder)}
    for where, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        fresh = []
        for name in folders:
            real = os.path.realpath(Path(where) / name)
            if real in entered or Path(os.path.realpath(where)).is_relative_to(real):
                passed["linked folder already entered"] += 1
            else:
                entered.add(real)
                fresh.append(name)
        folders[:] = fresh
        for name in sorted(names):
            if is_hidden(name):
                passed["hidden or side file"] += 1
            elif Path(name).suffix.lower() not in EXTENSIONS:
                passed[f"extension {Path(name).suffix.lower() or 'none'}"] += 1
            else:
                found.append(Path(where) / name)
    return found


def is_hidden(name: str) -> bool:
    """Hidden files, and what macOS and Windows leave beside images."""
    return name.startswith(".") or name in ("Thumbs.db", "__MACOSX")


def label_files(by_class: dict[str, list[Path]], classes: list[str]) -> list[tuple[Path, int]]:
    """(path, label) of every file; labels are positions in the sorted class names of the training images."""
    return [(path, classes.index(name)) for name, paths in by_class.items() for path in paths]


def cut_splits(labelled: dict[str, list[tuple[Path, int]]], cfg: DataConfig) -> dict[str, list[tuple[Path, int]]]:
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


def pick(items: list[tuple[Path, int]], chosen: np.ndarray) -> list[tuple[Path, int]]:
    """The items at the positions `chosen`."""
    return [items[i] for i in chosen]


def file_split(items: list[tuple[Path, int]], root: Path, cfg: DataConfig) -> SourceSplit:
    """Files as samples; the key is a number and a digest of the path, so that any file name can be packed."""

    def get(i: int) -> Sample:
        path, label = items[i]
        name = hashlib.sha256(os.fsencode(path.relative_to(root))).hexdigest()[:12]
        return read_file(path, f"{i:08d}-{name}", label, cfg)

    return SourceSplit(len(items), get, lambda i: os.fsencode(items[i][0].relative_to(root)).decode(errors="replace"))


def read_file(path: Path, key: str, label: int, cfg: DataConfig) -> Sample:
    """One file as a sample: converted by the rules of harness.data.images, short side as the data set stores it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadImageError("unreadable", str(error)) from error
    image = open_image(data, cfg.channels)
    if cfg.image_size is not None:
        image = shrink(image, cfg.image_size)
    small = min(image.size) <= LOSSLESS_UP_TO_PIXELS
    encoded, extension = encode(image, "png" if small else "jpeg", JPEG_QUALITY)
    digest = digest_of(np.asarray(image if small else open_image(encoded, cfg.channels)))
    return Sample(key, encoded, extension, label, digest, origin_of(hashlib.sha256(data).digest()))
