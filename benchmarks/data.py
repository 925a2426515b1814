"""`make bench-data`: images a second and core, ours beside webdataset, timm, torchvision and datasets.

One process, one thread, every loader over the same pictures, in rounds of changing order. Rates are by CPU time, since
the clock counts what else the machine does. Every loader gives uint8 crops of 224 pixels; ours draws its crops as the
others do (area 5 to 100 %, ratio 3/4 to 4/3, mirrored half of the time).
"""

import importlib.util
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import webdataset as wds
from photographs import write_jpegs
from table import machine, markdown, race, write_section
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

from harness.compose import compose
from harness.data.augment import Augmentation
from harness.data.jpeg import decode_jpeg as fast_jpeg
from harness.data.jpeg import read_header
from harness.data.loader import train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.subset import window

RESULTS = Path(__file__).parent / "results" / "data.md"
JPEGS = 5000
ROUND = 1000  # pictures a loader and round
ROUNDS = 5
BATCH = 100
FLOOR = "floor: decoding alone, libjpeg-turbo"
CROP = v2.Compose([v2.RandomResizedCrop(224, scale=(0.05, 1.0)), v2.RandomHorizontalFlip(), v2.PILToTensor()])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        photographs(Path(name))
        small_images(Path(name))
    here = Path(__file__).parent
    for script in ("pack.py", "index_300m.py"):
        if (here / script).exists():
            subprocess.run([sys.executable, here / script], check=True)
    print(f"\n{RESULTS}")


def photographs(folder: Path) -> None:
    """5,000 JPEGs of about 500 x 400 into crops of 224."""
    print(f"writing {JPEGS:,} JPEGs", flush=True)
    write_jpegs(folder / "raw", JPEGS)
    dataset = packed(folder, "photographs")
    contestants: dict[str, Callable[[], int]] = {
        "harness": batches(dataset, 224, Augmentation(0, crop=True, flip=True)),
        "webdataset + PIL": through_webdataset(dataset, CROP),
        "timm's WebDataset reader + PIL": through_timm(dataset),
        "torchvision ImageFolder + PIL": through_imagefolder(folder / "raw"),
        "torchvision's decoder, crops on tensors": through_torchvision(folder / "raw"),
        "datasets (parquet) + PIL": through_datasets(folder),
        FLOOR: floor(folder / "raw", exact=True),
        f"{FLOOR}, nearest colours": floor(folder / "raw", exact=False),
    }
    speeds = race(contestants, ROUNDS)
    ratios = {"to webdataset": "webdataset + PIL", "to the floor": FLOOR}
    sizes = [path.stat().st_size for path in (folder / "raw").rglob("*.jpg")]
    ffcv = "installed and not measured" if importlib.util.find_spec("ffcv") else "not measured: its build fails here"
    text = (
        f"{JPEGS:,} JPEGs of about 500 x 400 ({np.mean(sizes) / 1000:.0f} kB on average) into crops of 224; "
        f"one thread, median of {ROUNDS} rounds of {ROUND:,}. ffcv is {ffcv}.\n\n{markdown(speeds, ratios)}\n\n"
        + machine("torch", "torchvision", "timm", "webdataset", "datasets", "pillow", "simplejpeg")
    )
    write_section(RESULTS, "Photographs into crops of 224", text)
    print(text, flush=True)


def small_images(folder: Path) -> None:
    """32-pixel images, decoded once into the cache."""
    words = ["data=glyphs", "data.name=small", "data.samples=20000", "data.val_samples=100", "data.test_samples=100"]
    pack(compose(words).data, folder, workers=1, progress=False)
    dataset = open_dataset(folder / "small")
    contestants: dict[str, Callable[[], int]] = {
        "harness, cached": batches(dataset, 32, None, images=20_000, batch_size=128),
        "harness, cached, random crops and flips": batches(
            dataset, 32, Augmentation(0, crop=True, flip=True), images=5000, batch_size=128
        ),
        "webdataset + PIL": through_webdataset(dataset, v2.PILToTensor(), images=5000, picture="png", batch_size=128),
    }
    text = (
        "20,000 grey PNGs of 32 pixels, uint8 batches of 128, one thread; median of 5 rounds.\n\n"
        + markdown(race(contestants, ROUNDS), {"to webdataset": "webdataset + PIL"})
        + "\n\n"
        + machine("webdataset", "pillow", "numpy")
    )
    write_section(RESULTS, "Images of 32 pixels", text)
    print(text, flush=True)


def packed(folder: Path, name: str) -> Dataset:
    """The raw folder packed, bytes kept."""
    words = ["data=folder", f"data.path={folder / 'raw'}", f"data.name={name}", "data.val_samples=50"]
    pack(
        compose([*words, "data.test_samples=50", "data.shard_samples=1000", "data.image_size=null"]).data,
        folder,
        progress=False,
    )
    return open_dataset(folder / name)


def take(stream: Iterator[Any], images: int, batch_size: int) -> int:
    """Draw `images` pictures in whole batches; what each loader is asked for in a round."""
    return sum(batch_size for _ in islice(stream, images // batch_size))


def batches(
    dataset: Dataset, size: int, augmentation: Augmentation | None, images: int = ROUND, batch_size: int = BATCH
) -> Callable[[], int]:
    total = dataset.splits["train"].samples
    stream = train_batches(
        dataset,
        window(total, total, 0),
        seed=0,
        batch_size=batch_size,
        start_samples_seen=0,
        image_size=size,
        channels=dataset.channels,
        augmentation=augmentation,
    )
    return lambda: take(stream, images, batch_size)


def through_webdataset(
    dataset: Dataset, transform: Any, images: int = ROUND, picture: str = "jpg", batch_size: int = BATCH
) -> Callable[[], int]:
    shards = [str(dataset.folder / shard["file"]) for shard in dataset.splits["train"].shards]
    pipeline = (
        wds.WebDataset(shards, shardshuffle=len(shards), seed=0)
        .shuffle(1000)
        .decode("pil")
        .to_tuple(picture, "cls")
        .map_tuple(transform, lambda label: label)
        .batched(batch_size)
        .repeat()
    )
    stream = iter(pipeline)
    return lambda: take(stream, images, batch_size)


def through_timm(dataset: Dataset) -> Callable[[], int]:
    from timm.data import create_dataset

    count = len(dataset.splits["train"].shards)
    split = f"train-{{000000..{count - 1:06d}}}.tar"
    reader = create_dataset(
        "wds/photographs",
        root=str(dataset.folder),
        split=split,
        is_training=True,
        batch_size=BATCH,
        num_samples=dataset.splits["train"].samples,
        repeats=1_000_000,
    )
    reader.transform = CROP
    stream = collated(itertools.chain.from_iterable(itertools.repeat(reader)))
    return lambda: take(stream, ROUND, BATCH)


def through_imagefolder(raw: Path) -> Callable[[], int]:
    folder = ImageFolder(str(raw), CROP)
    stream = collated(folder[i] for i in endless(len(folder)))
    return lambda: take(stream, ROUND, BATCH)


def through_torchvision(raw: Path) -> Callable[[], int]:
    paths = sorted(raw.rglob("*.jpg"))
    crop = v2.Compose([v2.RandomResizedCrop(224, scale=(0.05, 1.0), antialias=True), v2.RandomHorizontalFlip()])

    def picture(i: int) -> tuple[torch.Tensor, int]:
        data = torch.frombuffer(bytearray(paths[i].read_bytes()), dtype=torch.uint8)
        return crop(decode_jpeg(data, ImageReadMode.RGB)), 0

    stream = collated(picture(i) for i in endless(len(paths)))
    return lambda: take(stream, ROUND, BATCH)


def through_datasets(folder: Path) -> Callable[[], int]:
    import datasets

    paths = sorted((folder / "raw").rglob("*.jpg"))
    rows = {"image": [{"bytes": path.read_bytes(), "path": None} for path in paths], "label": [0] * len(paths)}
    pq.write_table(pa.table(rows), folder / "photographs.parquet")
    table = datasets.Dataset.from_parquet(str(folder / "photographs.parquet"), cache_dir=str(folder / "hf"))
    table = table.cast_column("image", datasets.Image())
    stream = collated((CROP(table[i]["image"]), 0) for i in endless(len(table)))
    return lambda: take(stream, ROUND, BATCH)


def floor(raw: Path, exact: bool) -> Callable[[], int]:
    """Every picture decoded whole into memory that is used again, and nothing else: no files, no crops."""
    pictures = [path.read_bytes() for path in sorted(raw.rglob("*.jpg"))[:ROUND]]

    def decode_all() -> int:
        for data in pictures:
            header = read_header(data, 3)
            assert header is not None
            fast_jpeg(data, header, exact=exact)
        return len(pictures)

    return decode_all


def endless(count: int) -> Iterator[int]:
    """Random access in random order, for ever."""
    rng = np.random.default_rng(0)
    while True:
        yield from rng.permutation(count).tolist()


def collated(samples: Iterator[Any]) -> Iterator[torch.Tensor]:
    """Batches of images."""
    while True:
        yield torch.stack([image for image, *_ in islice(samples, BATCH)])


if __name__ == "__main__":
    main()
