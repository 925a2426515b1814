"""Glyphs: what is drawn, what is one class, and that no outline of the test split is ever trained on."""

import shutil
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from fontTools.ttLib import TTCollection, TTFont

from harness.compose import compose
from harness.config import DataConfig
from harness.data.manifest import open_dataset
from harness.data.pack import pack
from harness.data.pixels import Pixels
from harness.data.sources import Source, open_source
from harness.data.sources.fonts import held_out
from harness.errors import DatasetError

SHIPPED = Path(matplotlib.get_data_path()) / "fonts" / "ttf"


def config(*words: str) -> DataConfig:
    sizes = ["data.samples=400", "data.val_samples=100", "data.test_samples=100", "data.image_size=16"]
    return compose(["data=glyphs", *sizes, *words]).data


@pytest.fixture(scope="module")
def shipped() -> Source:
    return open_source(config())


def fonts(folder: Path, *names: str) -> Path:
    folder.mkdir()
    for name in names:
        shutil.copy(SHIPPED / name, folder)
    return folder


def renamed(source: Path, target: Path, family: str) -> None:
    """The same outlines under another family's name."""
    font = TTFont(source)
    for record in font["name"].names:
        if record.nameID in (1, 16):
            record.string = family
    font.save(target)


def digits_of(folder: Path) -> Source:
    return open_source(config(f"data.fonts='{folder}'", "data.characters=0123456789", "data.min_characters=10"))


def test_the_shipped_faces_and_classes(shipped: Source) -> None:
    notes = shipped.notes
    assert len(notes["faces"]["train"]) >= 12
    assert all(name.startswith("DejaVu") for name in notes["faces"]["train"])
    assert all(name.startswith("STIXGeneral") for name in notes["faces"]["test"])
    assert notes["faces"]["val"] == notes["faces"]["train"]
    assert len(shipped.class_names) > 500
    assert "AΑА" in notes["merged_characters"]  # Latin, Greek, Cyrillic
    assert len(set(shipped.class_names)) == len(shipped.class_names)
    assert {"a", "0", "ж", "Ω"} <= set(shipped.class_names)


def test_no_outline_of_test_is_in_training_and_validation_shares_them(tmp_path: Path) -> None:
    dataset = open_dataset(pack(config(), tmp_path, 1, progress=False))
    origins = {split: set(dataset.index(split)["origin"].tolist()) for split in ("train", "val", "test")}
    assert not origins["train"] & origins["test"]
    assert dataset.shared_originals["test"] == 0
    assert origins["val"] & origins["train"]


def test_images_have_ink_and_no_two_are_equal(tmp_path: Path) -> None:
    dataset = open_dataset(pack(config(), tmp_path, 1, progress=False))
    pixels = Pixels(dataset, "train", 16, 1)
    images = np.stack([pixels[i] for i in range(400)])
    assert len(np.unique(images.reshape(400, -1), axis=0)) == 400
    contrast = np.percentile(images, 99, axis=(1, 2, 3)) - np.percentile(images, 20, axis=(1, 2, 3))
    assert (contrast > 25).mean() > 0.98  # bright on dark; a dot or a dash may be fainter


def test_more_images_keep_the_first_ones_and_classes_are_balanced(shipped: Source) -> None:
    more = open_source(config("data.samples=5000"))
    for i in (0, 17, 399):
        assert shipped.splits["train"].get(i) == more.splits["train"].get(i)
    labels = [more.splits["train"].get(i).label for i in range(len(more.class_names) * 2)]
    assert np.bincount(labels).tolist() == [2] * len(more.class_names)


def test_another_seed_draws_other_images(shipped: Source) -> None:
    other = open_source(config("data.seed=1"))
    assert shipped.splits["train"].get(3).pixels_digest != other.splits["train"].get(3).pixels_digest


def test_a_renamed_copy_is_not_held_out_from_its_original(tmp_path: Path) -> None:
    """One glyph of the copy differs, so it is no exact duplicate; by its name alone it would be another family."""
    folder = fonts(tmp_path / "fonts", "DejaVuSans.ttf", "cmr10.ttf")
    renamed(SHIPPED / "DejaVuSans-Bold.ttf", folder / "copy.ttf", "Aardvark")
    shutil.copy(SHIPPED / "DejaVuSans-Bold.ttf", folder / "original.ttf")
    font = TTFont(folder / "copy.ttf")
    font["glyf"]["seven"] = font["glyf"]["eight"]
    font.save(folder / "copy.ttf")
    notes = digits_of(folder).notes
    assert notes["faces"]["test"] == ["cmr10.ttf"]
    assert set(notes["faces"]["train"]) == {"DejaVuSans.ttf", "copy.ttf", "original.ttf"}


def test_an_exact_copy_is_left_out(tmp_path: Path) -> None:
    folder = fonts(tmp_path / "fonts", "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "cmr10.ttf", "cmss10.ttf")
    renamed(SHIPPED / "DejaVuSans.ttf", folder / "z.ttf", "Zebra")
    assert digits_of(folder).notes["faces_left_out"] == {"same outlines as another face": 1}


def test_every_face_of_a_collection_is_used(tmp_path: Path) -> None:
    folder = fonts(tmp_path / "fonts", "cmr10.ttf")
    collection = TTCollection()
    collection.fonts = [TTFont(SHIPPED / name) for name in ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf")]
    collection.save(folder / "all.ttc")
    notes = digits_of(folder).notes
    assert notes["faces"]["train"] == ["all.ttc", "all.ttc#1", "all.ttc#2"]


def test_damaged_fonts_are_counted_and_side_files_passed_over(tmp_path: Path) -> None:
    folder = fonts(tmp_path / "fonts", "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", "DejaVuSerif.ttf", "cmr10.ttf")
    (folder / "broken.otf").write_bytes(b"no font")
    (folder / "._DejaVuSans.ttf").write_bytes(b"of macOS")
    left_out = digits_of(folder).notes["faces_left_out"]
    assert sum(left_out.values()) == 1
    assert next(iter(left_out)).startswith("unreadable")


def test_folders_that_cannot_make_a_set(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such folder"):
        digits_of(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="1 usable text faces"):
        digits_of(fonts(tmp_path / "one", "DejaVuSans.ttf"))
    with pytest.raises(DatasetError, match="more families"):
        digits_of(fonts(tmp_path / "family", "DejaVuSans.ttf", "DejaVuSans-Bold.ttf"))


def test_families_are_held_out_whole_and_about_a_quarter() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        families = [f"family{rng.integers(12)}" for _ in range(100)]
        chosen = held_out(families)
        share = sum(family in chosen for family in families) / len(families)
        assert 0.15 <= share <= 0.35
        assert held_out(list(reversed(families))) == chosen
