"""What `harness data …` prints."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.adopt import SOURCE as FOREIGN
from harness.data.adopt import Adoption, adopt
from harness.data.block_order import blocks_of, check_order
from harness.data.check import check_dataset
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.order import batch
from harness.data.pack import is_packed, pack, source_changed
from harness.data.pixels import Pixels
from harness.data.remote import RemoteShard
from harness.data.shard import member_key
from harness.data.shuffled import measure
from harness.data.subset import Window, parse_size, window
from harness.errors import ConfigError, DatasetError
from harness.paths import data_root

AT_ONCE = 1_000_000  # positions
CLASSES_SHOWN = 10  # of many: the commonest and the rarest
SHEET_COLUMNS, SHEET_ROWS, SHEET_PIXELS = 24, 12, 48


def pack_command(cfg: DataConfig, workers: int | None, force: bool) -> int:
    """Pack, or say that it is packed already.

    Raises DatasetError when the set is packed but the source's files have changed since then, ConfigError for a
    source of which nothing is packed.
    """
    if cfg.source == FOREIGN:
        raise ConfigError("foreign shards are not packed but adopted: harness data index PATTERN data.name=NAME")
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


def index_command(cfg: DataConfig, what: Adoption) -> int:
    """Adopt foreign shards, and say so where their labels show that their order is not shuffled."""
    start = time.monotonic()
    dataset = open_dataset(adopt(cfg, data_root(), what), allow_shell=cfg.allow_shell)
    print(f"{dataset.folder}: indexed in {time.monotonic() - start:.0f} s; the shards stay where they are")
    print_summary(dataset)
    found = measure(dataset.index("train")["label"])
    print(f"  packed order: {found}")
    if not found.shuffled:
        print(
            f"warning: {dataset.folder}: subsets are prefixes of an order that is not shuffled: small ones lack "
            "classes, and training sees a few classes at a time. For a study, pack the shards anew: "
            "harness data pack webdataset data.path=…",
            file=sys.stderr,
        )
    return 0


def check_command(folder: Path, allow_shell: bool) -> int:
    """Read everything again: sizes, digests, labels, index, decoding. Exit code 1 when anything is wrong."""
    dataset = open_dataset(folder, cheap_checks=False, allow_shell=allow_shell)
    problems = check_dataset(dataset)
    for problem in problems:
        print(problem)
    images = sum(split.samples for split in dataset.splits.values())
    print(f"{folder}: {images:,} images checked, {len(problems)} problems")
    return 1 if problems else 0


def show_command(folder: Path, subset: str | None, draw: int, sheet: Path | None, allow_shell: bool) -> int:
    """Sizes, class balance, how far the order is from shuffled, and a contact sheet on request."""
    dataset = open_dataset(folder, allow_shell=allow_shell)
    print(dataset.folder)
    print_summary(dataset)
    chosen = training_window(dataset, subset or "100%", draw)
    rows = dataset.index("train")
    counts = np.zeros(dataset.num_classes, np.int64)
    for positions in pieces(chosen):
        counts += np.bincount(rows["label"][positions], minlength=dataset.num_classes)
    low, middle, high = int(counts.min()), float(np.median(counts)), int(counts.max())
    print(f"  train subset of {chosen.size:,} (draw {draw}): {low:,} to {high:,} images a class, median {middle:g};")
    originals = "" if dataset.adopted else f"{distinct_origins(rows, chosen):,} distinct originals; "
    print(f"  {originals}{(counts == 0).sum()} classes without an image")
    print(f"  packed order: {measure(rows['label'])}")
    print_classes(dataset.class_names, counts, subset is not None)
    if sheet is not None:
        write_sheet(dataset, chosen, sheet)
        print(f"  contact sheet: {sheet}")
    return 0


def pieces(chosen: Window) -> Iterator[np.ndarray]:
    """A window's positions in the split, a bounded number at a time."""
    for start in range(0, chosen.size, AT_ONCE):
        yield chosen.split_positions(np.arange(start, min(chosen.size, start + AT_ONCE)))


def distinct_origins(rows: np.ndarray, chosen: Window) -> int:
    """Originals (outlines, photographs) behind a window."""
    return len(np.unique(np.concatenate([np.unique(rows["origin"][positions]) for positions in pieces(chosen)])))


def print_classes(names: list[str], counts: np.ndarray, all_of_them: bool) -> None:
    """Images of each class: of all classes, or of the rarest and commonest of many."""
    order = np.argsort(-counts, kind="stable")
    shown = order if all_of_them or len(order) <= 2 * CLASSES_SHOWN else order[:CLASSES_SHOWN]
    for number in shown:
        print(f"    {counts[number]:>12,}  {names[number]}")
    if len(shown) < len(order):
        print(f"    {'…':>12}  {len(order) - 2 * CLASSES_SHOWN:,} classes between (--subset 100% shows all)")
        for number in order[-CLASSES_SHOWN:]:
            print(f"    {counts[number]:>12,}  {names[number]}")


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


class KeyQuery(NamedTuple):
    """Which keys, and in what order."""

    split: str = "train"
    subset: str = "100%"
    draw: int = 0
    seed: int | None = None  # with epoch: a training order
    epoch: int | None = None
    order: str = "global"


def keys_command(folder: Path, query: KeyQuery, allow_shell: bool) -> int:
    """Sample keys of a subset: in packed order, or in the order in which an epoch of a seed visits them."""
    dataset = open_dataset(folder, allow_shell=allow_shell)
    if query.split not in dataset.splits:
        raise DatasetError(f"{folder}: no {query.split} split; it has {', '.join(dataset.splits)}")
    if (query.seed is None) != (query.epoch is None):
        raise ConfigError("--seed and --epoch go together: both for a training order, neither for the packed order")
    total = dataset.splits[query.split].samples
    chosen = window(total, parse_size(query.subset, total), query.draw)
    index, files = dataset.index(query.split), dataset.shards(query.split)
    for positions in visited(dataset, chosen, query):
        for row in index[positions]:
            file = files[int(row["shard"])]
            print(member_key(file.local() if isinstance(file, RemoteShard) else file, int(row["offset"])))
    return 0


def visited(dataset: Dataset, chosen: Window, query: KeyQuery) -> Iterator[np.ndarray]:
    """Positions in the split, in the order asked for, a bounded number at a time."""
    check_order(query.order)
    if query.seed is None or query.epoch is None:
        yield from pieces(chosen)
        return
    blocks = blocks_of(query.order, chosen, dataset.splits[query.split].shards, query.seed)
    first = query.epoch * chosen.size
    for start in range(first, first + chosen.size, AT_ONCE):
        count = min(AT_ONCE, first + chosen.size - start)
        ahead = blocks.batch(start, count) if blocks else batch(query.seed, start, count, chosen.size)
        yield chosen.split_positions(ahead)


def training_window(dataset: Dataset, subset: str, draw: int) -> Window:
    """The window of a subset as the user writes it."""
    total = dataset.splits["train"].samples
    return window(total, parse_size(subset, total), draw)
