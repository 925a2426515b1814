"""What `harness data …` prints."""

import time
from pathlib import Path

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.check import check_dataset
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.order import batch
from harness.data.pack import is_packed, pack, source_changed
from harness.data.pixels import Pixels
from harness.data.shard import member_key
from harness.data.subset import Window, parse_size, window
from harness.errors import ConfigError, DatasetError
from harness.paths import data_root

SHEET_COLUMNS, SHEET_ROWS, SHEET_PIXELS = 24, 12, 48


def pack_command(cfg: DataConfig, workers: int | None, force: bool) -> int:
    """Pack, or say that it is packed already.

    Raises DatasetError when the set is packed but the source's files have changed since then.
    """
    root = data_root()
    folder = dataset_folder(cfg, root)
    if is_packed(folder, cfg) and not force:
        changed = source_changed(folder, cfg)
        if changed:
            raise DatasetError(
                f"{folder}: packed with this configuration, but the source's files have changed since then: pack again "
                "with --force, or under another name (data.name=NAME)"
            )
        unseen = "; its source is not here to compare with" if changed is None else ""
        print(f"{folder}: already packed with this configuration{unseen}")
    else:
        start = time.monotonic()
        pack(cfg, root, workers, force)
        print(f"{folder}: packed in {time.monotonic() - start:.0f} s")
    print_summary(open_dataset(folder))
    return 0


def print_summary(dataset: Dataset) -> None:
    """Sizes, classes, what stands behind the images."""
    print(f"  {dataset.title or dataset.name}; {dataset.num_classes} classes; digest {dataset.digest[:12]}")
    for name, split in dataset.splits.items():
        size = sum(int(shard["bytes"]) for shard in split.shards)
        print(f"  {name:6s} {split.samples:>12,} images  {len(split.shards):>5} shards  {size / 1e6:,.1f} MB")
    for title, counts in (("dropped (see dropped.csv)", dataset.dropped), ("converted", dataset.converted)):
        if counts:
            print(f"  {title}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")
    if dataset.shared_originals.get("test"):
        print(f"  mind: {dataset.shared_originals['test']:,} test images are copies of training images")
    for name, value in dataset.notes.items():
        if name in ("held_out_families", "faces_left_out", "passed_over") and value:
            print(f"  {name.replace('_', ' ')}: {value}")


def check_command(folder: Path) -> int:
    """Read everything again: sizes, digests, labels, index, decoding. Exit code 1 when anything is wrong."""
    dataset = open_dataset(folder, cheap_checks=False)
    problems = check_dataset(dataset)
    for problem in problems:
        print(problem)
    images = sum(split.samples for split in dataset.splits.values())
    print(f"{folder}: {images:,} images checked, {len(problems)} problems")
    return 1 if problems else 0


def show_command(folder: Path, subset: str | None, draw: int, sheet: Path | None) -> int:
    """Sizes, class balance, and a contact sheet on request."""
    dataset = open_dataset(folder)
    print(dataset.folder)
    print_summary(dataset)
    chosen = training_window(dataset, subset or "100%", draw)
    rows = dataset.index("train")[chosen.split_positions(np.arange(chosen.size))]
    counts = np.bincount(rows["label"], minlength=dataset.num_classes)
    low, middle, high = int(counts.min()), float(np.median(counts)), int(counts.max())
    print(f"  train subset of {chosen.size:,} (draw {draw}): {low} to {high} images a class, median {middle:g};")
    print(f"  {len(np.unique(rows['origin'])):,} distinct originals; {(counts == 0).sum()} classes without an image")
    repeats = neighbours(dataset.index("train")["label"])
    print(f"  packed order: {repeats:.2f} of the class repeats that a uniform shuffle would have (1 = shuffled)")
    if sheet is not None:
        write_sheet(dataset, chosen, sheet)
        print(f"  contact sheet: {sheet}")
    return 0


def neighbours(labels: np.ndarray) -> float:
    """How often neighbours share a class, against what a uniform shuffle of these labels would give."""
    if len(labels) < 2:
        return 1.0
    shares = np.bincount(labels) / len(labels)
    expected = float((shares**2).sum())
    return float((labels[1:] == labels[:-1]).mean()) / expected


def write_sheet(dataset: Dataset, chosen: Window, path: Path) -> None:
    """The first training images of a subset as one PNG."""
    pixels = Pixels(dataset, "train", SHEET_PIXELS, dataset.channels)
    positions = chosen.split_positions(np.arange(min(chosen.size, SHEET_COLUMNS * SHEET_ROWS)))
    canvas = Image.new(
        "L" if dataset.channels == 1 else "RGB", (SHEET_COLUMNS * SHEET_PIXELS, SHEET_ROWS * SHEET_PIXELS)
    )
    for number, position in enumerate(positions):
        image = pixels[position].transpose(1, 2, 0).squeeze()
        row, column = divmod(number, SHEET_COLUMNS)
        canvas.paste(Image.fromarray(image), (column * SHEET_PIXELS, row * SHEET_PIXELS))
    canvas.save(path)


def keys_command(folder: Path, split: str, subset: str, draw: int, seed: int | None, epoch: int | None) -> int:
    """Sample keys of a subset: in packed order, or in the order in which an epoch of a seed visits them."""
    dataset = open_dataset(folder)
    if split not in dataset.splits:
        raise DatasetError(f"{folder}: no {split} split; it has {', '.join(dataset.splits)}")
    if (seed is None) != (epoch is None):
        raise ConfigError("--seed and --epoch go together: both for a training order, neither for the packed order")
    total = dataset.splits[split].samples
    chosen = window(total, parse_size(subset, total), draw)
    order = np.arange(chosen.size)
    if seed is not None and epoch is not None:
        order = batch(seed, epoch * chosen.size, chosen.size, chosen.size)
    index, shards = dataset.index(split), dataset.splits[split].shards
    for position in chosen.split_positions(order):
        row = index[position]
        print(member_key(dataset.folder / shards[int(row["shard"])]["file"], int(row["offset"])))
    return 0


def training_window(dataset: Dataset, subset: str, draw: int) -> Window:
    """The window of a subset as the user writes it."""
    total = dataset.splits["train"].samples
    return window(total, parse_size(subset, total), draw)
