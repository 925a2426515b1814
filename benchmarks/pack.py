"""Packing throughput beside a plain ShardWriter loop and resharding by processes; its memory at two million files.

    python benchmarks/pack.py [--two-million]

The same 20,000 small files (PNGs) and 4,000 photographs (500 x 400 JPEGs), on all cores:

    harness           decodes every image, digests its pixels, shuffles, hashes shards, writes index and manifest
    verify=headers    the same, but looks at headers and ends of the files alone, and digests bytes
    ShardWriter       one loop over the files in their order: read, write with webdataset.ShardWriter
    by processes      a process a part of the files, each with a ShardWriter, as img2dataset and datacomp's resharder do

bytes kept, and the photographs also with the short side made 256 pixels (Pillow, JPEG of quality 95, in all of them).

--two-million links two million names to the small files and packs them: peak resident memory of all processes.
"""

import argparse
import io
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import webdataset as wds
from photographs import write_jpegs
from PIL import Image
from table import machine, write_section

from harness.compose import compose
from harness.data.pack import pack

RESULTS = Path(__file__).parent / "results" / "data.md"
SMALL, PHOTOGRAPHS, SHARD, ROUNDS = 20_000, 4_000, 1_000, 3
MILLIONS = 2_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--two-million", action="store_true", help="also memory of packing 2 million files (minutes)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_small(folder / "small", SMALL)
        write_jpegs(folder / "photographs", PHOTOGRAPHS)
        lines = ["| files | packed by | files/s | to ShardWriter |", "|---|---|--:|--:|"]
        for kind in ("small", "photographs"):
            lines += compare(folder, kind, None)
        lines += compare(folder, "photographs", 256)
        write_section(RESULTS, "Packing", report(lines))
        if options.two_million:
            write_section(RESULTS, "Packing two million files", two_million(folder))
    print(RESULTS.read_text()[-2500:])


def report(lines: list[str]) -> str:
    about = (
        f"{SMALL:,} PNGs of about 2 kB and {PHOTOGRAPHS:,} JPEGs of about 500 x 400 in class folders, bytes kept, "
        f"shards of {SHARD:,}; median of {ROUNDS} rounds. harness also decodes and digests every image, shuffles, "
        "hashes and indexes; the others do not."
    )
    return f"{about}\n\n" + "\n".join(lines) + "\n\n" + machine("webdataset", "pillow", "numpy")


def write_small(folder: Path, count: int) -> None:
    """PNGs of 32 x 32 noise, about 2 kB."""
    rng = np.random.default_rng(0)
    for number in range(count):
        path = folder / f"{number % 10}" / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 128, (26, 26, 3), dtype=np.uint8)).save(buffer, "PNG")
        path.write_bytes(buffer.getvalue())


def compare(folder: Path, kind: str, size: int | None) -> list[str]:
    """Rows of the table for one kind of file; rounds interleaved."""
    paths = sorted((folder / kind).rglob("*.*"))
    contestants: dict[str, Callable[[Path], None]] = {
        "harness": lambda out: ours(folder / kind, out, size, "pixels"),
        "harness, verify=headers": lambda out: ours(folder / kind, out, size, "headers"),
        "ShardWriter": lambda out: shard_writer(paths, out, 0, size),
        f"ShardWriter, {os.cpu_count()} processes": lambda out: by_processes(paths, out, size),
    }
    if size:
        del contestants["harness, verify=headers"]  # nothing is kept as it is
    label = f"{kind} to {size}" if size else kind
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(ROUNDS):
        for name, run in contestants.items():
            out = folder / f"out-{label}-{number}-{name.replace(' ', '_')}"
            start = time.perf_counter()
            run(out)
            seconds[name].append(time.perf_counter() - start)
    base = median(seconds["ShardWriter"])
    return [
        f"| {label} | {name} | {len(paths) / median(times):,.0f} | {base / median(times):.2f} |"
        for name, times in seconds.items()
    ]


def ours(raw: Path, out: Path, size: int | None, verify: str) -> None:
    words = ["data=folder", f"data.path={raw}", "data.name=x", f"data.image_size={size or 'null'}"]
    words += [f"data.shard_samples={SHARD}", f"data.verify={verify}", "data.val_samples=0", "data.test_samples=0"]
    pack(compose(words).data, out, progress=False)


def shard_writer(paths: list[Path], out: Path, part: int, size: int | None) -> None:
    """A plain loop, as webdataset's documentation has it; with a size, img2dataset's work on each picture."""
    out.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(f"{out}/{part}-%06d.tar", maxcount=SHARD, verbose=0) as writer:
        for path in paths:
            extension = path.suffix[1:]
            data = path.read_bytes()
            writer.write(
                {"__key__": path.stem, extension: resized(data, size) if size else data, "cls": path.parent.name}
            )


def resized(data: bytes, size: int) -> bytes:
    """Short side to `size` pixels, JPEG of quality 95."""
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    scale = size / min(picture.size)
    buffer = io.BytesIO()
    picture.resize((round(picture.width * scale), round(picture.height * scale)), Image.Resampling.BILINEAR).save(
        buffer, "JPEG", quality=95
    )
    return buffer.getvalue()


def by_processes(paths: list[Path], out: Path, size: int | None) -> None:
    count = os.cpu_count() or 1
    parts = [paths[part::count] for part in range(count)]
    with ProcessPoolExecutor(count) as pool:
        list(pool.map(shard_writer, parts, [out] * count, range(count), [size] * count))


def two_million(folder: Path) -> str:
    """Names of two million files, packed by the command; the peak of what it and its workers hold together."""
    paths = sorted((folder / "small").rglob("*.png"))
    raw = folder / "millions"
    for number in range(MILLIONS):
        path = paths[number % len(paths)]
        target = raw / path.parent.name / f"{number // 2000:04d}" / f"{number:08d}.png"
        if number % 2000 < 10:
            target.parent.mkdir(parents=True, exist_ok=True)
        os.link(path, target)
    start = time.perf_counter()
    words = ["data", "pack", "folder", f"data.path={raw}", "data.name=millions", "data.image_size=null"]
    command = psutil.Popen(
        [sys.executable, "-m", "harness.cli", *words], env={**os.environ, "HARNESS_DATA": str(folder / "packed")}
    )
    peak = 0
    while command.poll() is None:
        peak = max(peak, resident(command))
        time.sleep(0.25)
    seconds = time.perf_counter() - start
    if command.returncode:
        raise SystemExit(command.returncode)
    size = np.mean([path.stat().st_size for path in paths[:1000]])
    return (
        f"{MILLIONS:,} names of files of {size / 1000:.1f} kB (links to {len(paths):,} files) packed in "
        f"{seconds:,.0f} s, {MILLIONS / seconds:,.0f} a second. Peak of all processes together: "
        f"**{peak / 1e6:,.0f} MB** proportional set size (pages that processes share count once). Wanted: under 1 GB."
        "\n\n" + machine("pillow", "numpy")
    )


def resident(command: psutil.Process) -> int:
    """Bytes of a process and its children, shared pages in equal parts."""
    total = 0
    try:
        for process in [command, *command.children(recursive=True)]:
            total += process.memory_full_info().pss
    except psutil.Error:  # one of them has just ended
        pass
    return total


if __name__ == "__main__":
    main()
