"""Lists, parquet, WebDataset tars, torchvision, icons, IDX files, ELPV: small real files of each kind, packed."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from harness.compose import compose
from harness.data.check import check_dataset
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.pixels import Pixels
from harness.data.shard import member_key
from harness.data.sources import open_source
from harness.data.sources.icons import concept_of
from harness.errors import ConfigError, DatasetError, HarnessError

COLOURS = {"blue": (0, 0, 200), "green": (0, 200, 0), "red": (200, 0, 0)}


def picture(colour: str, number: int, form: str = "PNG", size: int = 20) -> bytes:
    """A square of one colour with a number of dots: no two are equal."""
    pixels = np.full((size, size, 3), COLOURS[colour], np.uint8)
    pixels.reshape(-1, 3)[:number] = 255
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form, quality=90)
    return buffer.getvalue()


def files(root: Path, each: int = 20) -> list[tuple[str, str]]:
    """(path below root, colour) of pictures written there."""
    found = []
    for colour in COLOURS:
        for number in range(each):
            name = f"pictures/{number:02d}-{colour}.png"
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(picture(colour, number))
            found.append((name, colour))
    return found


def packed(root: Path, source: str, *words: str, workers: int = 1) -> Dataset:
    """Packed into root/mine, checked, opened."""
    cfg = compose([f"data={source}", "data.name=mine", "data.max_dropped=0.5", *words]).data
    folder = pack(cfg, root, workers, progress=False)
    assert check_dataset(open_dataset(folder), 1) == []
    return open_dataset(folder)


def colour_of(dataset: Dataset, split: str, position: int) -> str:
    """The colour of a packed picture, from its last pixel."""
    pixel = Pixels(dataset, split, 20, 3)[position][:, -1, -1]
    return next(name for name, value in COLOURS.items() if np.abs(pixel.astype(int) - value).max() < 40)


def assert_labels_are_colours(dataset: Dataset) -> int:
    """Every sample's class is the colour it shows; how many there are."""
    total = 0
    for split, content in dataset.splits.items():
        for position, label in enumerate(dataset.index(split)["label"].tolist()):
            assert dataset.class_names[label] == colour_of(dataset, split, position)
        total += content.samples
    return total


class TestList:
    def table(self, root: Path, name: str, **columns: list[str]) -> Path:
        rows = files(root)
        frame = pd.DataFrame({"path": [path for path, _ in rows], "label": [colour for _, colour in rows]} | columns)
        path = root / name
        if path.suffix == ".parquet":
            frame.to_parquet(path)
        else:
            frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
        return path

    @pytest.mark.parametrize("name", ["list.csv", "list.tsv", "list.parquet"])
    def test_labels_and_counts(self, tmp_path: Path, name: str) -> None:
        dataset = packed(tmp_path, "list", f"data.path={self.table(tmp_path, name)}")
        assert dataset.class_names == ["blue", "green", "red"]
        assert assert_labels_are_colours(dataset) == 60
        assert {split: content.samples for split, content in dataset.splits.items()} == {
            "train": 48,
            "val": 6,
            "test": 6,
        }

    def test_groups_are_never_cut_and_splits_are_kept(self, tmp_path: Path) -> None:
        groups = [f"author {number % 20 // 2}" for number in range(60)]
        path = self.table(tmp_path, "list.csv", group=groups)
        source = open_source(compose(["data=list", "data.name=mine", f"data.path={path}"]).data)
        of = dict(zip([name for name, _ in files(tmp_path)], groups, strict=True))
        seen = {
            split: {of[content.name_of(i)] for i in range(content.samples)} for split, content in source.splits.items()
        }
        assert not seen["train"] & (seen["val"] | seen["test"])
        assert not seen["val"] & seen["test"]
        assert source.splits["test"].samples == source.splits["val"].samples == 6  # one author has 2 x 3 pictures
        assert source.notes["groups"] == {"train": 8, "val": 1, "test": 1}
        split = ["val" if number % 20 == 3 else "train" for number in range(60)]
        path = self.table(tmp_path, "split.csv", split=split)
        source = open_source(compose(["data=list", "data.name=mine", f"data.path={path}", "data.test_samples=0"]).data)
        assert source.splits["val"].samples == 3
        assert all("03-" in source.splits["val"].name_of(i) for i in range(3))

    def test_whole_numbers_are_classes_in_their_order(self, tmp_path: Path) -> None:
        path = tmp_path / "list.csv"
        rows = files(tmp_path)[:12]
        path.write_text("path,label\n" + "".join(f"{name},{number}\n" for number, (name, _) in enumerate(rows)))
        cfg = compose(["data=list", "data.name=mine", f"data.path={path}", "data.val_samples=0", "data.test_samples=0"])
        assert open_source(cfg.data).class_names == [str(number) for number in range(12)]

    def test_missing_files_are_dropped_by_name(self, tmp_path: Path) -> None:
        path = self.table(tmp_path, "list.csv")
        (tmp_path / "pictures" / "07-red.png").unlink()
        dataset = packed(tmp_path, "list", f"data.path={path}")
        assert sum(content.samples for content in dataset.splits.values()) == 59
        assert "pictures/07-red.png,unreadable" in (dataset.folder / "dropped.csv").read_text()

    @pytest.mark.parametrize(
        "text, words, message",
        [
            ("path,label\n", [], "no rows"),
            ("path,label\na.png,\n", [], "line 2 has no label"),
            ("file,kind\na.png,red\n", [], "data.label_column"),
            ("file,kind\na.png,red\n", ["data.label_column=knd"], "Did you mean"),
            ("path,label,split\na.png,red,dev\n", [], "split 'dev'"),
            ("path,label,split\na.png,red,test\n", [], "no row of the train split"),
            ("path,label,file\na.png,red,b.png\n", [], "several: path, file"),
        ],
    )
    def test_odd_tables_are_errors_that_name_what_is_wrong(
        self, tmp_path: Path, text: str, words: list[str], message: str
    ) -> None:
        (tmp_path / "list.csv").write_text(text)
        cfg = compose(["data=list", "data.name=mine", f"data.path={tmp_path / 'list.csv'}", *words]).data
        with pytest.raises(HarnessError, match=message):
            open_source(cfg)


class TestParquet:
    def write(self, path: Path, rows: list[tuple[bytes | None, object]], names: list[str] | None = None) -> None:
        table = pa.table(
            {"image": [{"bytes": data, "path": None} for data, _ in rows], "label": [label for _, label in rows]}
        )
        if names:
            info = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
            table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=7)

    def test_the_hubs_layout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Splits by file name, class names from the schema, an empty cell dropped, nothing left beside the set."""
        monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
        names = ["red", "blue", "green"]
        rows = [(picture(names[label], number), label) for number in range(20) for label in range(3)]
        self.write(tmp_path / "hub/train-00000-of-00002.parquet", rows[:30], names)
        self.write(tmp_path / "hub/train-00001-of-00002.parquet", [*rows[30:51], (None, 1)], names)
        self.write(tmp_path / "hub/test-00000-of-00001.parquet", rows[51:], names)
        dataset = packed(tmp_path, "parquet", f"data.path={tmp_path / 'hub'}", workers=2)
        assert dataset.class_names == names
        assert assert_labels_are_colours(dataset) == 60
        assert dataset.splits["test"].samples == 9
        assert "train-00001-of-00002.parquet:21,empty" in (dataset.folder / "dropped.csv").read_text()
        assert list((tmp_path / "cache/spool").iterdir()) == []

    def test_names_in_place_of_numbers_and_plain_bytes(self, tmp_path: Path) -> None:
        rows = files(tmp_path)
        table = {"jpg": [(tmp_path / name).read_bytes() for name, _ in rows], "class": [colour for _, colour in rows]}
        pq.write_table(pa.table(table), tmp_path / "all.parquet")
        dataset = packed(tmp_path, "parquet", f"data.path={tmp_path / 'all.parquet'}")
        assert assert_labels_are_colours(dataset) == 60

    def test_damage_and_missing_columns(self, tmp_path: Path) -> None:
        path = tmp_path / "hub" / "train.parquet"
        self.write(path, [(picture("red", 1), 0), (picture("red", 2), 7)], ["red"])
        cfg = compose(["data=parquet", "data.name=mine", f"data.path={path.parent}"]).data
        with pytest.raises(ConfigError, match="label 7: the schema names 1 classes"):
            open_source(cfg)
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(DatasetError, match=r"train\.parquet: not a whole parquet file"):
            open_source(cfg)
        cfg.path = str(tmp_path / "nowhere")
        with pytest.raises(DatasetError, match="no parquet file there"):
            open_source(cfg)


class TestShards:
    def write(self, path: Path, members: list[tuple[str, bytes]]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))

    def samples(self, numbers: range) -> list[tuple[str, bytes]]:
        return [
            item
            for number in numbers
            for colour in COLOURS
            for item in ((f"{number}{colour}.png", picture(colour, number)), (f"{number}{colour}.cls", colour.encode()))
        ]

    def test_repacked_and_unsafe_names_dropped(self, tmp_path: Path) -> None:
        """Paths that are absolute or climb out are counted; nothing is ever written where they point."""
        escape = f"../{tmp_path.name}-escaped"
        bad = [
            ("/etc/evil.png", picture("red", 30)),
            ("/etc/evil.cls", b"red"),
            (f"{escape}.png", picture("red", 31)),
            (f"{escape}.cls", b"red"),
            ("lonely.png", picture("red", 32)),
            ("broken.png", picture("red", 33)[:50]),
            ("broken.cls", b"red"),
        ]
        self.write(tmp_path / "in/train-0.tar", self.samples(range(10)) + bad)
        self.write(tmp_path / "in/train-1.tar", self.samples(range(10, 20)))
        self.write(tmp_path / "in/val-0.tar", self.samples(range(20, 24)))
        dataset = packed(tmp_path, "webdataset", f"data.path={tmp_path / 'in'}", "data.test_samples=6")
        assert dataset.class_names == ["blue", "green", "red"]
        assert assert_labels_are_colours(dataset) == 72
        assert dataset.splits["val"].samples == 12
        manifest = json.loads((dataset.folder / "manifest.json").read_text())
        assert manifest["dropped"] == {"no_label": 1, "truncated": 1, "unsafe_name": 2}
        assert not list(tmp_path.parent.glob("*-escaped*"))

    def test_a_brace_pattern_and_a_cut_tar(self, tmp_path: Path) -> None:
        for number in (0, 1):
            self.write(tmp_path / f"in/x-{number}.tar", self.samples(range(10 * number, 10 * number + 10)))
        pattern = f'data.path="{tmp_path}/in/x-{{0..1}}.tar"'
        assert open_source(compose(["data=webdataset", "data.name=mine", pattern]).data).splits["train"].samples == 48
        whole = (tmp_path / "in/x-1.tar").read_bytes()
        (tmp_path / "in/x-1.tar").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(DatasetError, match=r"x-1.tar: not a whole, uncompressed tar.*the last sample read"):
            open_source(compose(["data=webdataset", "data.name=mine", pattern]).data)


def write_idx(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    path.write_bytes(head + values.astype(np.uint8).tobytes())


def write_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """60 training and 20 test images as MNIST's four files; returns the test images and labels."""
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (80, 28, 28)), np.arange(80) % 10
    for name, part in (("train", slice(0, 60)), ("t10k", slice(60, 80))):
        write_idx(folder / f"{name}-images-idx3-ubyte", images[part])
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels[part])
    return images[60:], labels[60:]


def test_mnist_keeps_its_test_images(tmp_path: Path) -> None:
    images, labels = write_mnist(tmp_path / "idx")
    dataset = packed(tmp_path, "mnist", f"data.path={tmp_path / 'idx'}", "data.val_samples=5")
    assert {split: content.samples for split, content in dataset.splits.items()} == {"train": 55, "val": 5, "test": 20}
    rows = dataset.index("test")
    pixels = Pixels(dataset, "test", 28, 1)
    for position in range(20):
        number = int(member_key(dataset.folder / "test-000000.tar", int(rows[position]["offset"])).removeprefix("test"))
        np.testing.assert_array_equal(pixels[position][0], images[number])
        assert rows[position]["label"] == labels[number]


def test_a_set_of_torchvision_keeps_its_splits_and_class_names(tmp_path: Path) -> None:
    """torchvision's own MNIST reader, on files of its layout."""
    write_mnist(tmp_path / "root/MNIST/raw")
    words = ["data.torchvision=MNIST", f"data.path={tmp_path / 'root'}", "data.channels=1", "data.image_size=null"]
    dataset = packed(tmp_path, "torchvision", *words)
    assert dataset.class_names[3] == "3 - three"
    assert {split: content.samples for split, content in dataset.splits.items()} == {"train": 54, "val": 6, "test": 20}
    with pytest.raises(ConfigError, match=r"MNST.*Did you mean"):
        packed(tmp_path, "torchvision", "data.torchvision=MNST")
    with pytest.raises(DatasetError, match="CIFAR10 is not in"):
        packed(tmp_path, "torchvision", "data.torchvision=CIFAR10", f"data.path={tmp_path}")


def test_elpv_as_it_is_published(tmp_path: Path) -> None:
    lines = []
    for number in range(40):
        kind, probability = ("mono", "poly")[number % 2], (0.0, 0.3333, 0.6667, 1.0)[number // 2 % 4]
        buffer = io.BytesIO()
        Image.fromarray(np.full((30, 30), 6 * number, np.uint8)).save(buffer, "PNG")
        path = tmp_path / f"elpv/images/cell{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(buffer.getvalue())
        lines.append(f"images/{path.name}  {probability}   {kind}")
    (tmp_path / "elpv/labels.csv").write_text("\n".join(lines) + "\n")
    dataset = packed(tmp_path, "elpv", f"data.path={tmp_path / 'elpv'}", "data.image_size=null")
    assert dataset.class_names == ["mono-sound", "mono-defective", "poly-sound", "poly-defective"]
    for split in dataset.splits:
        for position, label in enumerate(dataset.index(split)["label"].tolist()):
            number = int(Pixels(dataset, split, 30, 1)[position][0, 0, 0]) // 6
            assert label == 2 * (number % 2) + (number // 2 % 4 >= 2)
    (tmp_path / "elpv/labels.csv").write_text("images/a.png 0.3\n")
    with pytest.raises(DatasetError, match="line 1: wanted IMAGE PROBABILITY"):
        packed(tmp_path / "other", "elpv", f"data.path={tmp_path / 'elpv'}")


class TestIcons:
    def package(self, root: Path, sets: int = 12) -> Path:
        """A package in Iconify's layout: `sets` authors draw a circle and a bar, in sizes of their own."""
        about = {}
        for number in range(sets):
            prefix = f"set{chr(97 + number)}"
            about[prefix] = {"author": {"name": f"author {number // 2}"}, "license": {"spdx": "MIT"}}
            icons = {
                "circle-shape-outline": {"body": f'<circle cx="12" cy="12" r="{3 + number * 0.5}"/>'},
                "bar-24": {"body": f'<path d="M{number} 2h4v20h-4z"/>'},
                "rare-thing": {"body": "<path d='M0 0h9v9z'/>"} if number < 3 else {"body": "", "hidden": True},
                "bar-filled": {"body": '<path d="M1 1h2v2h-2z"/>'},  # one drawing, the same in every set
            }
            (root / "json").mkdir(parents=True, exist_ok=True)
            text = json.dumps({"prefix": prefix, "icons": icons, "width": 24, "height": 24})
            (root / "json" / f"{prefix}.json").write_text(text)
        about["setl"]["license"] = {"spdx": "CC-BY-NC-4.0"}
        (root / "collections.json").write_text(json.dumps(about))
        return root

    def test_concepts_licences_authors_and_equal_drawings(self, tmp_path: Path) -> None:
        package = self.package(tmp_path / "package")
        dataset = packed(tmp_path, "icons", f"data.path={package}", "data.val_samples=2", "data.test_samples=5")
        assert dataset.class_names == ["bar", "shape"]
        notes = json.loads((dataset.folder / "manifest.json").read_text())["notes"]
        assert notes["sets_left_out"] == {"setl": "CC-BY-NC-4.0"}
        assert notes["equal_drawings_left_out"] == 10  # of 11 sets
        assert notes["groups"] == {"train": 5, "val": 2, "test": 1}
        assert notes["icon_sets"] == 11
        assert sum(content.samples for content in dataset.splits.values()) == 23
        corner = Pixels(dataset, "train", 32, 3)[0][:, 31, 31]
        assert corner.tolist() == [255, 255, 255]

    def test_what_is_no_package(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetError, match="harness data fetch icons"):
            open_source(compose(["data=icons"]).data)
        with pytest.raises(DatasetError, match="not the npm package"):
            packed(tmp_path, "icons", f"data.path={tmp_path}")

    @pytest.mark.parametrize(
        "name, concept",
        [("arrow-left-outline-24", "arrow-left"), ("outline", ""), ("24-hours", "hours"), ("Home_Filled", "home")],
    )
    def test_words_of_style_are_no_part_of_a_concept(self, name: str, concept: str) -> None:
        assert concept_of(name) == concept
