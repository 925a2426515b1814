"""Metrics on cases that can be counted by hand, and ReaL from its file on a packed set."""

import io
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.cell import transfer_id
from harness.compose import compose
from harness.data.manifest import open_dataset
from harness.errors import DatasetError
from harness.transfer.metrics import average_5, mean_per_class, measure, read_real, real_accuracy, top1, top_k
from tests.conftest import harness

SCORES = np.array([[9, 8, 7, 6, 5, 4], [1, 2, 3, 4, 5, 6], [0, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1]], float)


def test_top1_top5_and_mean_per_class() -> None:
    labels = np.array([0, 0, 1, 5])
    assert top1(SCORES, labels) == 0.5
    assert top_k(SCORES, labels, 5) == 0.5  # of the second and the last the label is sixth
    assert top_k(SCORES, labels, 6) == top_k(SCORES[:, :3], np.array([0, 1, 2, 0]), 5) == 1.0
    assert mean_per_class(SCORES, labels) == pytest.approx((0.5 + 1 + 0) / 3)
    assert dict(measure(["top5", "top1"], SCORES, labels, None)) == {"top5": 0.5, "top1": 0.5}


def test_real_leaves_images_without_labels_out() -> None:
    assert real_accuracy(SCORES, [[0, 3], [], [2], [0]]) == pytest.approx(2 / 3)
    with pytest.raises(DatasetError, match="no image has a label"):
        real_accuracy(SCORES, [[], [], [], []])


def test_average_5_needs_all_five_each_by_its_own_metric() -> None:
    """ViT-B/32 of Table 6, ReaL apart."""
    values = {("imagenet", "top1"): 0.8073, ("cifar10", "top1"): 0.9861, ("cifar100", "top1"): 0.9049}
    values |= {("pets", "mean_per_class"): 0.9340, ("flowers102", "top1"): 0.5, ("imagenet", "real"): 0.8627}
    assert average_5(values) is None
    assert average_5({**values, ("flowers102", "mean_per_class"): 0.9927}) == pytest.approx(0.925)


def test_real_labels_are_found_by_an_images_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards as ImageNet's are made, adopted where they lie: their keys are the files' names."""
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    for split, names in {
        "train": [f"other{number}" for number in range(6)],
        "test": [f"ILSVRC2012_val_{number:08d}" for number in (3, 1, 6, 2, 5, 4)],
    }.items():
        with tarfile.open(tmp_path / f"{split}-000000.tar", "w") as tar:
            for number, name in enumerate(names):
                buffer = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(buffer, "PNG")
                for extension, data in (("png", buffer.getvalue()), ("cls", str(number % 2).encode())):
                    info = tarfile.TarInfo(f"{name}.{extension}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))
    train, test = (str(tmp_path / f"{split}-000000.tar") for split in ("train", "test"))
    harness("data", "index", train, "--test", test, "data.name=val", "data.val_samples=2")
    packed = open_dataset(tmp_path / "val")
    file = tmp_path / "real.json"
    listed: list[list[int]] = [[0], [1], [], [0, 1], [1, 0], [1, 1]]
    file.write_text(json.dumps(listed))
    assert read_real(file, packed) == [listed[number - 1] for number in (3, 1, 6, 2, 5, 4)]
    file.write_text(json.dumps([[0], [2]]))
    with pytest.raises(DatasetError, match="class 2 is none of the 2 of val"):
        read_real(file, packed)
    file.write_text(json.dumps([[1]]))
    with pytest.raises(DatasetError, match="not one of the 1 images"):
        read_real(file, packed)
    for text, why in (("[1]", "list of lists"), (100_000 * "[", "recursion")):
        file.write_text(text)
        with pytest.raises(DatasetError, match=why):
            read_real(file, packed)


def test_a_real_file_below_the_home_folder_counts_by_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = replace(compose(["transfer=digits", "transfer.metrics=[real]"]).transfer, real_labels="~/real.json")
    ids = set()
    for labels in ("[[0]]", "[[1]]"):
        (tmp_path / "real.json").write_text(labels)
        ids |= {transfer_id(config), transfer_id(replace(config, real_labels=str(tmp_path / "real.json")))}
    assert len(ids) == 2


def test_top_1_is_one_setting_however_it_is_written() -> None:
    ids = {transfer_id(compose(["transfer=digits", *words]).transfer) for words in TOP_1}
    assert len(ids) == 1
    assert transfer_id(compose(["transfer=digits", "transfer.metrics=[top5]"]).transfer) not in ids


TOP_1 = ([], ["transfer.metrics=null"], ["transfer.metrics=[]"], ["transfer.metrics=[top1]"])
