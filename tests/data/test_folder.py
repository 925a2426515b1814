"""The user's own folders, with what is really found in them."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.config import DataConfig
from harness.data.manifest import open_dataset
from harness.data.pack import pack
from harness.data.sources.folder import open_folder
from harness.errors import DatasetError
from tests.conftest import ROOT, harness
from tests.data.test_pack import folder_config, folder_of_images


def packed(images: Path, root: Path, **changes: object) -> dict[str, object]:
    folder = pack(folder_config(images, **changes), root, 1, progress=False)
    return dict(json.loads((folder / "manifest.json").read_text()))


def picture(path: Path, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 30, 3), dtype=np.uint8)).save(path)


def test_links_that_lead_nowhere_and_pipes_are_passed_over_and_counted(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    (images / "cat" / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(images / "cat" / "pipe.jpg")
    (images / "readme.txt").write_text("not in a class folder")
    source = open_folder(folder_config(images))
    assert sum(split.samples for split in source.splits.values()) == 90
    assert source.notes["passed_over"] == {
        "file outside class folders": 1,
        "link that leads nowhere": 1,
        "pipe, socket or device": 1,
    }


def test_names_of_every_kind_can_be_packed(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    picture(images / "cat" / ("x" * 240 + ".PNG"), 1)
    picture(images / "cat" / 'a, b "c"; {d,e}::f.jpeg', 2)
    raw = Path(os.fsdecode(os.fsencode(images / "dog") + b"/caf\xe9.png"))
    picture(images / "dog" / "plain.png", 3)
    (images / "dog" / "plain.png").rename(raw)
    with open(os.fsencode(images / "dog") + b'/\xe9, "broken".png', "wb") as file:
        file.write(b"no image")
    manifest = packed(images, tmp_path, max_dropped=0.5)
    assert sum(split["samples"] for split in manifest["splits"].values()) == 93  # type: ignore[attr-defined]
    with open(tmp_path / "mine" / "dropped.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image"], row["reason"]) for row in rows] == [('dog/\\xe9, "broken".png', "not_an_image")]


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("bus", "train"):
        for i in range(10):
            picture(tmp_path / "images" / name / f"{i}.png", i)
    assert open_folder(folder_config(tmp_path / "images")).class_names == ["bus", "train"]
    picture(tmp_path / "images" / "train" / "steam" / "loco.png")
    assert open_folder(folder_config(tmp_path / "images")).class_names == ["bus", "train"]


def test_split_folders_in_any_case_and_two_of_one_split(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "images" / "Train", 4)
    folder_of_images(tmp_path / "images" / "Valid", 2)
    source = open_folder(folder_config(tmp_path / "images", test_samples="0"))
    assert {name: split.samples for name, split in source.splits.items()} == {"train": 12, "val": 6}
    folder_of_images(tmp_path / "images" / "val", 2)
    with pytest.raises(DatasetError, match="both Valid and val"):
        open_folder(folder_config(tmp_path / "images"))


def test_splits_beside_something_else_are_not_guessed(tmp_path: Path) -> None:
    for split in ("train", "val", "annotations"):
        folder_of_images(tmp_path / "images" / split, 2)
    with pytest.raises(DatasetError, match="annotations"):
        open_folder(folder_config(tmp_path / "images"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_an_error(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    (images / "cat" / "deeper").chmod(0)
    try:
        with pytest.raises(DatasetError, match="deeper"):
            open_folder(folder_config(images))
    finally:
        (images / "cat" / "deeper").chmod(0o755)


def test_copies_in_training_and_test_are_counted(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "images" / "train", 4)
    shutil.copytree(tmp_path / "images" / "train", tmp_path / "images" / "test")
    for i in range(3):
        picture(tmp_path / "images" / "test" / "cat" / f"new{i}.png", 100 + i)
    manifest = packed(tmp_path / "images", tmp_path, val_samples="0")
    assert manifest["shared_originals"] == {"test": 12}
    assert "12 test images are copies of training images" in harness("data", "show", str(tmp_path / "mine")).stdout


def test_conversions_are_counted(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    Image.new("L", (20, 20), 7).save(images / "cat" / "grey.png")
    Image.new("RGBA", (20, 20), (1, 2, 3, 0)).save(images / "cat" / "clear.png")
    Image.new("CMYK", (20, 20), (0, 255, 255, 0)).save(images / "dog" / "print.jpg")
    assert packed(images, tmp_path)["converted"] == {"cmyk": 1, "grey_to_rgb": 1, "transparency": 1}


def test_a_moved_folder_is_the_same_set_and_a_changed_one_is_not(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "images")
    words = ["data", "pack", "folder", "data.name=mine", "data.image_size=16"]
    env = {**os.environ, "HARNESS_DATA": str(tmp_path / "data"), "PYTHONPATH": str(ROOT)}

    def run(where: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness.cli", *words, f"data.path={where}"]
        return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)

    assert run("images").returncode == 0
    (tmp_path / "images").rename(tmp_path / "elsewhere")
    assert "already packed" in run("elsewhere").stdout
    assert "not here to compare" in run("images").stdout
    picture(tmp_path / "elsewhere" / "cat" / "another.png", 77)
    changed = run("elsewhere")
    assert changed.returncode == 2
    assert "files have changed" in changed.stderr


def test_a_killed_pack_does_not_go_on_with_other_files(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    for i in range(3):
        (images / "cat" / f"bad{i}.jpg").write_text("no image")
    with pytest.raises(DatasetError, match="max_dropped"):
        pack(folder_config(images), tmp_path, 1, progress=False)
    picture(images / "cat" / "new.png", 5)
    with pytest.raises(DatasetError, match="files have changed"):
        pack(folder_config(images, max_dropped=0.5), tmp_path, 1, progress=False)


def test_raising_the_limit_goes_on_from_the_shards_that_are_there(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    for i in range(3):
        (images / "cat" / f"bad{i}.jpg").write_text("no image")
    with pytest.raises(DatasetError, match=r"3 of 93 .*3 not_an_image.*max_dropped"):
        pack(folder_config(images), tmp_path, 1, progress=False)
    shard = next((tmp_path / "mine").glob("train-*.tar"))
    before = shard.stat().st_mtime_ns
    folder = pack(folder_config(images, max_dropped=0.5), tmp_path, 1, progress=False)
    assert shard.stat().st_mtime_ns == before
    assert open_dataset(folder).dropped == {"not_an_image": 3}


def test_a_shard_of_which_nothing_is_left_is_no_shard(tmp_path: Path) -> None:
    images = tmp_path / "images"
    for name in ("a", "b"):
        picture(images / name / "good.png", ord(name))
        for i in range(20):
            (images / name / f"{i}.png").write_text("no image")
    cfg = folder_config(images, max_dropped=1.0, val_samples="0", test_samples="0", shard_samples=2)
    dataset = open_dataset(pack(cfg, tmp_path, 1, progress=False))
    assert dataset.splits["train"].samples == 2
    assert all(shard["samples"] for shard in dataset.splits["train"].shards)
    on_disk = {path.name for path in dataset.folder.glob("*.tar")}
    assert on_disk == {shard["file"] for shard in dataset.splits["train"].shards}
    assert sorted(np.unique(dataset.index("train")["shard"])) == list(range(len(on_disk)))


def test_a_split_of_which_nothing_is_left_is_an_error_that_names_it(tmp_path: Path) -> None:
    folder_of_images(tmp_path / "images" / "train", 4)
    for name in ("cat", "dog", "ünïcode 类"):
        (tmp_path / "images" / "test" / name).mkdir(parents=True)
        (tmp_path / "images" / "test" / name / "x.png").write_text("no image")
    with pytest.raises(DatasetError, match="split test: none of its 3"):
        pack(folder_config(tmp_path / "images", max_dropped=1.0, val_samples="0"), tmp_path, 1, progress=False)
    assert (tmp_path / "mine" / "dropped.csv").exists()


def test_channels_are_grey_or_rgb(tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images", 10)
    for channels, mode in ((1, "L"), (3, "RGB")):
        cfg: DataConfig = folder_config(images, channels=channels, name=f"c{channels}")
        dataset = open_dataset(pack(cfg, tmp_path, 1, progress=False))
        row = dataset.index("train")[0]
        data = (dataset.folder / dataset.splits["train"].shards[0]["file"]).read_bytes()
        start = int(row["offset"])
        (tmp_path / "one.png").write_bytes(data[start : start + int(row["size"])])
        assert Image.open(tmp_path / "one.png").mode == mode
