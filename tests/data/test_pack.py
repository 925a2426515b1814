"""Packing: uniform shuffle, exact content, same bytes whatever the workers, resumable after SIGKILL."""

import csv
import dataclasses
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image

from harness.compose import compose
from harness.config import DataConfig
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.shard import member_key, tar_header
from harness.errors import ConfigError, DatasetError
from tests.conftest import TINY_DATA, harness


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "cache" not in path.parts
    }


def folder_of_images(root: Path, per_class: int = 30) -> Path:
    rng = np.random.default_rng(0)
    for name in ("cat", "dog", "ünïcode 类"):
        (root / name / "deeper").mkdir(parents=True)
        for i in range(per_class):
            pixels = rng.integers(0, 255, (20, 30, 3), dtype=np.uint8)
            where = root / name / ("deeper" if i % 2 else "") / f"{i}.{'JPEG' if i % 3 else 'png'}"
            Image.fromarray(pixels).save(where)
    return root


def folder_config(path: Path, **changes: object) -> DataConfig:
    base = compose(["data=folder", "data.name=mine", f"data.path='{path}'"]).data
    return dataclasses.replace(base, **{"image_size": 16, **changes})  # type: ignore[arg-type]


def test_any_webdataset_reader_reads_the_shards(tiny: Dataset) -> None:
    shards = [str(tiny.folder / shard["file"]) for shard in tiny.splits["train"].shards]
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode("l8"))
    index = tiny.index("train")
    assert [int(sample["cls"]) for sample in samples] == index["label"].tolist()
    assert len({sample["__key__"] for sample in samples}) == 600
    assert samples[0]["png"].shape == (16, 16)


def test_index_rows_point_at_the_image_bytes(tiny: Dataset) -> None:
    shard = tiny.folder / tiny.splits["train"].shards[1]["file"]
    rows = tiny.index("train")
    rows = rows[rows["shard"] == 1]
    with tarfile.open(shard) as tar:
        members = [member for member in tar.getmembers() if member.name.endswith(".png")]
        assert len(members) == len(rows)
        for member, row in zip(members, rows, strict=True):
            assert (member.offset_data, member.size) == (int(row["offset"]), int(row["size"]))
            assert member_key(shard, int(row["offset"])) + ".png" == member.name


def test_the_manifest_counts_what_is_there(tiny: Dataset) -> None:
    manifest = json.loads((tiny.folder / "manifest.json").read_text())
    for name, split in tiny.splits.items():
        index = tiny.index(name)
        assert split.samples == len(index) == sum(shard["samples"] for shard in split.shards)
        assert split.class_counts == np.bincount(index["label"], minlength=10).tolist()
        for shard in split.shards:
            data = (tiny.folder / shard["file"]).read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["bytes"], shard["sha256"])
    assert tiny.class_names == list("0123456789")
    assert manifest["splits"]["train"]["samples"] == 600


def test_the_same_bytes_with_one_worker_and_with_three(tmp_path: Path, data_folder: Path) -> None:
    pack(compose(TINY_DATA).data, tmp_path, workers=3, progress=False)
    assert tree(tmp_path / "tiny") == tree(data_folder / "tiny")


def test_another_seed_is_another_order_of_other_images_and_more_samples_keep_the_first_ones(tmp_path: Path) -> None:
    base = compose(TINY_DATA).data
    digests = set()
    for changes in ({}, {"seed": 1}):
        folder = pack(dataclasses.replace(base, name=f"s{len(digests)}", **changes), tmp_path, 1, progress=False)
        digests.add(open_dataset(folder).digest)
    assert len(digests) == 2


def test_a_second_pack_changes_nothing_and_another_configuration_is_refused(tmp_path: Path) -> None:
    cfg = compose(TINY_DATA).data
    folder = pack(cfg, tmp_path, 1, progress=False)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    pack(cfg, tmp_path, 1, progress=False)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    with pytest.raises(DatasetError, match=r"data\.samples is 600, wanted 700.*data\.name=NAME.*--force"):
        pack(dataclasses.replace(cfg, samples="700"), tmp_path, 1, progress=False)
    assert open_dataset(folder).splits["train"].samples == 600
    pack(dataclasses.replace(cfg, samples="700"), tmp_path, 1, force=True, progress=False)
    assert open_dataset(folder).splits["train"].samples == 700


def test_files_that_are_no_data_set_are_never_removed(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "thesis.tex").write_text("mine")
    for force in (False, True):
        with pytest.raises(DatasetError, match="no data set"):
            pack(compose(TINY_DATA).data, tmp_path, 1, force=force, progress=False)
    assert (tmp_path / "tiny" / "thesis.tex").read_text() == "mine"


def test_class_folders_become_a_set_with_splits_of_every_image_once(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    dataset = open_dataset(pack(folder_config(images), tmp_path, 2, progress=False))
    assert dataset.class_names == ["cat", "dog", "ünïcode 类"]
    assert {name: split.samples for name, split in dataset.splits.items()} == {"train": 72, "val": 9, "test": 9}
    origins = np.concatenate([dataset.index(name)["origin"] for name in dataset.splits])
    assert len(np.unique(origins)) == 90


def test_given_splits_are_kept(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        folder_of_images(tmp_path / "images" / split, per_class={"train": 8, "val": 2, "test": 3}[split])
    dataset = open_dataset(pack(folder_config(tmp_path / "images"), tmp_path, 1, progress=False))
    assert {name: split.samples for name, split in dataset.splits.items()} == {"train": 24, "val": 6, "test": 9}


def test_a_class_that_training_lacks_and_an_empty_class_are_errors(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    (images / "empty").mkdir()
    with pytest.raises(DatasetError, match="empty"):
        pack(folder_config(images), tmp_path, 1, progress=False)
    folder_of_images(tmp_path / "split" / "train", 4)
    folder_of_images(tmp_path / "split" / "test", 4)
    (tmp_path / "split" / "test" / "cat").rename(tmp_path / "split" / "test" / "cow")
    with pytest.raises(DatasetError, match="cow"):
        pack(folder_config(tmp_path / "split"), tmp_path / "out", 1, progress=False)


def test_bad_files_are_dropped_counted_and_named(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(buffer, "JPEG")
    (images / "cat" / "cut.jpg").write_bytes(buffer.getvalue()[: len(buffer.getvalue()) // 2])
    (images / "cat" / "zero.jpg").write_bytes(b"")
    (images / "dog" / "text.png").write_text("no image")
    (images / "dog" / "._side.jpg").write_text("no image either")
    (images / "dog" / "notes.txt").write_text("not counted as an image")
    (images / "dog" / "loop").symlink_to(images)
    with pytest.raises(DatasetError, match="max_dropped"):
        pack(folder_config(images, max_dropped=0.01), tmp_path / "strict", 1, progress=False)
    folder = pack(folder_config(images, max_dropped=0.1), tmp_path / "loose", 1, progress=False)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["dropped"] == {"truncated": 1, "empty": 1, "not_an_image": 1}
    assert sum(split["samples"] for split in manifest["splits"].values()) == 90
    with open(folder / "dropped.csv", newline="") as file:
        rows = {(row["image"], row["reason"]) for row in csv.DictReader(file)}
    assert rows == {("cat/cut.jpg", "truncated"), ("cat/zero.jpg", "empty"), ("dog/text.png", "not_an_image")}
    assert manifest["notes"]["passed_over"]["hidden or side file"] == 1
    assert manifest["notes"]["passed_over"]["extension .txt"] == 1


def test_fashion_mnist_that_is_nowhere_names_three_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.data.sources import arrays

    monkeypatch.setattr(arrays, "DEBIAN_FASHION_MNIST", tmp_path / "nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(DatasetError) as caught:
        pack(compose(["data=fashion_mnist"]).data, tmp_path, 1, progress=False)
    for way in ("data.path=DIR", "apt-get install dataset-fashion-mnist", "torchvision"):
        assert way in str(caught.value)


@pytest.mark.skipif(
    not Path("/usr/share/datasets/fashion-mnist").exists() and not os.environ.get("HARNESS_CI"),
    reason="Debian's dataset-fashion-mnist is not installed",
)
def test_fashion_mnist_keeps_its_test_images_and_cuts_validation_from_training(tmp_path: Path) -> None:
    dataset = open_dataset(pack(compose(["data=fashion_mnist"]).data, tmp_path, 2, progress=False))
    assert {name: split.samples for name, split in dataset.splits.items()} == {
        "train": 55_000,
        "val": 5_000,
        "test": 10_000,
    }
    assert dataset.splits["test"].class_counts == [1000] * 10
    total = np.array(dataset.splits["train"].class_counts) + np.array(dataset.splits["val"].class_counts)
    assert total.tolist() == [6000] * 10


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    folder = pack(compose(TINY_DATA).data, tmp_path, 1, progress=False)
    assert harness("data", "check", str(folder)).returncode == 0
    shard = folder / "train-000001.tar"
    whole = shard.read_bytes()
    row = open_dataset(folder).index("train")[300]
    flipped = bytearray(whole)
    flipped[int(row["offset"]) + 60] ^= 0xFF
    shard.write_bytes(flipped)
    done = harness("data", "check", str(folder), check=False)
    assert done.returncode == 1
    assert "train-000001.tar" in done.stdout
    shard.write_bytes(whole[:-512])
    with pytest.raises(DatasetError, match=r"train-000001\.tar"):
        open_dataset(folder)
    shard.unlink()
    with pytest.raises(DatasetError, match="missing"):
        open_dataset(folder)


def test_keys_list_what_a_run_sees(tiny: Dataset) -> None:
    packed = harness("data", "keys", str(tiny.folder), "--subset", "50").stdout.split()
    epoch = harness("data", "keys", str(tiny.folder), "--subset", "50", "--seed", "0", "--epoch", "3").stdout.split()
    assert len(packed) == 50
    assert sorted(packed) == sorted(epoch)
    assert packed != epoch
    shorter = harness("data", "keys", str(tiny.folder), "--subset", "20").stdout.split()
    assert shorter == packed[:20]


def test_a_setting_that_a_source_does_not_read_is_an_error(tmp_path: Path) -> None:
    for words, field in (
        (["data=fashion_mnist", "data.samples=1k"], "data.samples"),
        (["data=fashion_mnist", "data.test_samples=10%"], "data.test_samples"),
        (["data=digits", "data.path=/tmp"], "data.path"),
        (["data=glyphs", "data.channels=3"], "data.channels"),
        (["data=glyphs", "data.source=glyhps"], "glyphs"),
    ):
        with pytest.raises(ConfigError, match=field):
            pack(compose(words).data, tmp_path, 1, progress=False)


def test_arrays_are_stored_at_the_size_that_is_asked_for(tmp_path: Path) -> None:
    for size in (8, 12, 16):
        cfg = compose(["data=digits", f"data.name=d{size}", f"data.image_size={size}"]).data
        dataset = open_dataset(pack(cfg, tmp_path, 1, progress=False))
        row = dataset.index("test")[0]
        data = (dataset.folder / dataset.splits["test"].shards[0]["file"]).read_bytes()
        image = Image.open(io.BytesIO(data[int(row["offset"]) : int(row["offset"]) + int(row["size"])]))
        assert image.size == (size, size)
        assert {name: split.samples for name, split in dataset.splits.items()} == {"train": 899, "test": 898}


@pytest.mark.parametrize("name, size", [("a.png", 0), ("train000000123.png", 123_456), ("ü" * 48 + ".c", 8**11 - 1)])
def test_headers_are_those_of_tarfile(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert tar_header(name, size) == info.tobuf(tarfile.USTAR_FORMAT)


def test_a_damaged_or_foreign_manifest_is_an_error_that_names_it(tmp_path: Path, tiny: Dataset) -> None:
    whole = json.loads((tiny.folder / "manifest.json").read_text())
    for text, message in (
        ("{", "damaged"),
        ("[]", "damaged"),
        (json.dumps({k: v for k, v in whole.items() if k != "class_names"}), "class_names"),
        (json.dumps({**whole, "format_version": 99}), "format 99"),
        (json.dumps({**whole, "splits": []}), "damaged"),
    ):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(DatasetError, match=message):
            open_dataset(tmp_path)
    with pytest.raises(DatasetError, match="harness data pack glyphs`"):
        open_dataset(tmp_path / "glyphs")
    with pytest.raises(DatasetError, match=r"harness data pack folder data\.path=DIR data\.name=mine`"):
        open_dataset(tmp_path / "mine")


def test_fashion_mnist_files_that_are_not_whole_are_named(tmp_path: Path) -> None:
    def idx(array: np.ndarray) -> bytes:
        return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()

    images = np.random.default_rng(0).integers(0, 255, (50, 28, 28), dtype=np.uint8)
    labels = np.arange(50, dtype=np.uint8) % 10
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    cfg = compose(["data=fashion_mnist", f"data.path='{tmp_path}'", "data.val_samples=10"]).data
    dataset = open_dataset(pack(cfg, tmp_path / "out", 1, progress=False))
    assert {name: split.samples for name, split in dataset.splits.items()} == {"train": 40, "val": 10, "test": 50}
    labels_file = tmp_path / "train-labels-idx1-ubyte"
    for data, message in ((idx(labels)[:-3], "train-labels"), (idx(labels[:-1]), "49 labels"), (b"PK\3\4", "IDX")):
        labels_file.write_bytes(data)
        with pytest.raises(DatasetError, match=message):
            pack(dataclasses.replace(cfg, name="again"), tmp_path / "out", 1, progress=False)
    labels_file.write_bytes(idx(labels + 3))
    with pytest.raises(DatasetError, match="label 12"):
        pack(dataclasses.replace(cfg, name="again"), tmp_path / "out", 1, progress=False)
