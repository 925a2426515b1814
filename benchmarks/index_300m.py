"""What a set of 300 million samples costs to open and to seek in: an index and a manifest of that size, no images.

    python benchmarks/index_300m.py [--folder DIR]       (8.4 GB of disk for a minute)

Measured in a fresh process, with the code that training uses: open_dataset (manifest of 30,000 shards, each of them
looked at on disk), labels, and the order of a 9M subset and of the whole; then seeks to random places: the order's
position, its index row, its label. Appends to benchmarks/results/data.md.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from table import machine, write_section

from harness.data.block_order import BlockOrder
from harness.data.loader import Labels
from harness.data.manifest import FORMAT_VERSION, INDEX, index_path, open_dataset
from harness.data.order import batch
from harness.data.subset import window

SAMPLES, SHARDS, CLASSES = 300_000_000, 30_000, 18_291  # the last as JFT-300M has (arXiv 2010.11929 section 4.1)
WANTED = {
    "global, 9M subset": "< 1 ms",
    "global, all": "< 1 ms",
    "block, within an epoch": "< 1 ms",
    "block, over epochs": "once an epoch",
}
IMAGE_BYTES = 8_000
AT_ONCE = 5_000_000  # rows written at a time
SEEKS = 2_000
RESULTS = Path(__file__).resolve().parent / "results" / "data.md"
TITLE = "300 million samples: an index made without images"


def make(folder: Path) -> None:
    """A manifest and an index of every sample, written out; the shards are empty files of the right length."""
    each, member = SAMPLES // SHARDS, IMAGE_BYTES + 1536
    shards = [
        {"file": f"train-{number:06d}.tar", "samples": each, "bytes": each * member, "sha256": "0" * 64}
        for number in range(SHARDS)
    ]
    for shard in shards:
        with open(folder / str(shard["file"]), "wb") as file:
            file.truncate(each * member)
    random = np.random.default_rng(0)
    with open(index_path(folder, "train"), "wb") as file:
        header = {"descr": INDEX.descr, "fortran_order": False, "shape": (SAMPLES,)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, SAMPLES, AT_ONCE):
            rows = np.zeros(min(AT_ONCE, SAMPLES - start), INDEX)
            number = np.arange(start, start + len(rows))
            rows["shard"], rows["offset"] = number // each, number % each * member + 512
            rows["size"], rows["origin"] = IMAGE_BYTES, number
            rows["label"] = random.integers(0, CLASSES, len(rows))
            file.write(rows.tobytes())
    manifest = {
        "format_version": FORMAT_VERSION,
        "name": "index_300m",
        "title": "300 million samples without images",
        "licence": "",
        "class_names": [str(number) for number in range(CLASSES)],
        "channels": 3,
        "image_size": 224,
        "digest": "0" * 64,
        "splits": {"train": {"samples": SAMPLES, "shards": shards, "class_counts": []}},
        "notes": {},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))


def measure(folder: Path) -> dict[str, float]:
    """Seconds to open, seconds a seek (median and 99th percentile), and megabytes more than before opening."""
    before = peak_megabytes()
    start = time.perf_counter()
    dataset = open_dataset(folder)
    index, labels = dataset.rows("train"), Labels(dataset, "train")
    small, whole = window(SAMPLES, 9_000_000, 3), window(SAMPLES, SAMPLES, 0)
    blocks = BlockOrder(whole, [shard["samples"] for shard in dataset.splits["train"].shards], seed=0)
    opened = time.perf_counter() - start
    random = np.random.default_rng(1)
    found = {"open_seconds": opened}
    for kind in WANTED:
        seconds = []
        first = 0 if "within" in kind else 10 * SAMPLES
        for position in random.integers(first, first + (1 if "within" in kind else 10) * SAMPLES, SEEKS).tolist():
            start = time.perf_counter()
            if kind.startswith("block"):
                row = whole.split_positions(blocks.batch(position, 1))
            else:
                chosen = small if "9M" in kind else whole
                row = chosen.split_positions(batch(0, position, 1, chosen.size))
            sample = index[row]
            assert sample["offset"][0] >= 512
            assert 0 <= labels[row][0] < CLASSES
            seconds.append(time.perf_counter() - start)
        found[f"{kind}: median_seconds"] = float(np.median(seconds))
        found[f"{kind}: p99_seconds"] = float(np.quantile(seconds, 0.99))
    found["resident_megabytes"] = peak_megabytes() - before
    found["process_megabytes"] = peak_megabytes()
    return found


def peak_megabytes() -> float:
    """The most that this program has had resident; getrusage would count the process that started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def table(found: dict[str, float]) -> str:
    """The section of data.md."""
    rows = [
        ("open: manifest, 30,000 shards looked at, index, labels, orders", f"{found['open_seconds']:.2f} s", "< 1 s"),
        (
            f"resident, more than before opening ({found['process_megabytes']:.0f} MB with Python and torch)",
            f"{found['resident_megabytes']:.0f} MB",
            "< 200 MB",
        ),
    ]
    for kind in WANTED:
        median, high = found[f"{kind}: median_seconds"] * 1e3, found[f"{kind}: p99_seconds"] * 1e3
        rows.append((f"seek, order {kind}", f"{median:.2f} ms ({high:.2f} ms at the 99th percentile)", WANTED[kind]))
    lines = [f"| {name} | {value} | {wanted} |" for name, value, wanted in rows]
    return "\n".join(
        [
            f"`python benchmarks/index_300m.py`: {SAMPLES:,} rows ({SAMPLES * INDEX.itemsize / 1e9:.1f} GB), "
            f"{SHARDS:,} shards, {SEEKS:,} seeks to random positions of ten epochs. The global order has no state; the "
            "block order makes a table of the shards when it comes to another epoch. "
            f"{machine('numpy')}",
            "",
            "| | measured | wanted |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )


def run(folder: Path | None = None) -> dict[str, float]:
    """Make the set below `folder` (default: the temporary folder), measure it in a fresh process, remove it."""
    place = Path(tempfile.mkdtemp(prefix="index-300m-", dir=folder))
    try:
        make(place)
        words = [sys.executable, __file__, "--measure", str(place)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        found: dict[str, float] = json.loads(done.stdout)
        return found
    finally:
        shutil.rmtree(place)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where 8.4 GB are free (default: the temporary folder)")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options: Any = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    section = table(run(options.folder))
    write_section(RESULTS, TITLE, section)
    print(section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
