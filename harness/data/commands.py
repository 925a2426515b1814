"""What `harness data …` prints."""

import time
from pathlib import Path

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.images import BadImageError, open_image
from harness.data.loader import Pixels
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.order import batch
from harness.data.pack import is_packed, pack
from harness.data.shard import file_sha256, member_key
from harness.data.subset import Window, parse_size, window
from harness.errors import ConfigError, DatasetError
from harness.paths import data_root

SHEET_COLUMNS, SHEET_ROWS, SHEET_PIXELS = 24, 12, 48


def pack_command(cfg: DataConfig, workers: int | None, force: bool) -> int:
    """Pack, or say that it is packed already."""
    root = data_root()
    folder = dataset_folder(cfg, root)
    if is_packed(folder, cfg) and not force:
        print(f"{folder}: already packed with this configuration")
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
    for name, value in dataset.notes.items():
        if name in ("held_out_families", "faces_left_out", "passed_over") and value:
            print(f"  {name.replace('_', ' ')}: {value}")


def check_command(folder: Path) -> int:
    """Read everything again: sizes, digests, counts, decoding. Exit code 1 when anything is wrong."""
    dataset = open_dataset(folder)
    problems = [problem for split in dataset.splits for problem in check_split(dataset, split)]
    for problem in problems:
        print(problem)
    images = sum(split.samples for split in dataset.splits.values())
    print(f"{folder}: {images:,} images checked, {len(problems)} problems")
    return 1 if problems else 0


def check_split(dataset: Dataset, split: str) -> list[str]:
    """Problems of one split, each naming the shard and, where there is one, the key."""
    problems = []
    for shard in dataset.splits[split].shards:
        path = dataset.folder / shard["file"]
        if file_sha256(path) != shard["sha256"]:
            problems.append(f"{path}: sha256 differs from the manifest's")
    index = dataset.index(split)
    counts = np.bincount(index["label"], minlength=dataset.num_classes).tolist()
    if counts != dataset.splits[split].class_counts:
        problems.append(f"{dataset.folder}: class counts of {split} in the index differ from the manifest's")
    files = Pixels(dataset, split, 1, dataset.channels).files
    for number, path in enumerate(files):
        data = path.read_bytes()
        for row in index[index["shard"] == number]:
            start = int(row["offset"])
            try:
                open_image(data[start : start + int(row["size"])], dataset.channels)
            except BadImageError as error:
                problems.append(f"{path}: sample {member_key(path, start)}: {error}")
    return problems


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
