"""Every kind of odd file that image folders hold, packed for real: kept, converted by a named rule, or dropped."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.data.check import check_dataset
from harness.data.manifest import open_dataset
from harness.data.pack import pack
from harness.data.pixels import Pixels
from harness.data.sources.encoded import encoded_sample
from harness.errors import DatasetError
from tests.data.test_pack import folder_config, folder_of_images

NOISE = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def palette_with_alpha() -> bytes:
    image = Image.fromarray(NOISE).quantize(16)
    return encoded(image, "PNG", transparency=3)


PHOTO = Image.fromarray(NOISE)
JPEG, PNG = encoded(PHOTO, "JPEG"), encoded(PHOTO, "PNG")
DROPPED: dict[str, tuple[bytes, str]] = {
    "truncated.jpg": (JPEG[: len(JPEG) // 2], "truncated"),
    "truncated.png": (PNG[: len(PNG) // 2], "truncated"),
    "zero.jpg": (b"", "empty"),
    "page.jpg": (b"<html>404 Not Found</html>", "not_an_image"),
    "bomb.png": (encoded(Image.new("1", (700, 700)), "PNG"), "too_large"),
    "float.tif": (encoded(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "unknown_scale"),
}
CONVERTED: dict[str, tuple[bytes, str | None]] = {
    "turned.jpg": (encoded(PHOTO, "JPEG", exif=exif(6)), "exif_orientation"),
    "print.jpg": (encoded(PHOTO.convert("CMYK"), "JPEG"), "cmyk"),
    "sixteen.png": (encoded(Image.fromarray(NOISE[:, :, 0].astype(np.uint16) * 257), "PNG"), "sixteen_bit"),
    "palette.png": (palette_with_alpha(), "transparency"),
    "film.gif": (
        encoded(PHOTO, "GIF", save_all=True, append_images=[Image.fromarray(255 - NOISE)]),
        "first_frame",
    ),
    "two.jpg": (  # as telephones write them: EXIF first, then the index of pictures
        encoded(PHOTO, "MPO", exif=exif(1), save_all=True, append_images=[Image.fromarray(255 - NOISE)]),
        "first_frame",
    ),
    "grey.jpg": (encoded(PHOTO.convert("L"), "JPEG"), "grey_to_rgb"),
    "png called.jpg": (PNG, None),
    "UPPER.JPG": (JPEG, None),
    "日本 ünï.jpeg": (JPEG, None),
    "x" * 250 + ".jpg": (JPEG, None),
}


def manifest_of(folder: Path) -> dict[str, Any]:
    """manifest.json, and how many samples it counts under `samples`."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return {**manifest, "samples": sum(split["samples"] for split in manifest["splits"].values())}


def put(images: Path, name: str, data: bytes) -> None:
    (images / "cat" / name).write_bytes(data)


@pytest.fixture(params=["pixels", "headers"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Pack a folder by both ways of looking at its files."""

    def run(images: Path, **changes: object) -> Path:
        settings = {"max_dropped": 0.5, "max_pixels": 400_000, "val_samples": "10", "test_samples": "10"}
        return pack(folder_config(images, verify=request.param, **(settings | changes)), tmp_path, 1, progress=False)

    return run


@pytest.mark.parametrize("name", DROPPED)
def test_unusable_files_are_dropped_by_reason_and_name(name: str, packed: Callable[..., Path], tmp_path: Path) -> None:
    data, reason = DROPPED[name]
    images = folder_of_images(tmp_path / "images")
    put(images, name, data)
    folder = packed(images, image_size=None)
    manifest = manifest_of(folder)
    assert manifest["dropped"] == {reason: 1}
    assert manifest["samples"] == 90
    with open(folder / "dropped.csv", newline="", encoding="utf-8") as file:
        assert [(row["image"], row["reason"]) for row in csv.DictReader(file)] == [(f"cat/{name}", reason)]
    with pytest.raises(DatasetError, match="max_dropped"):
        pack(folder_config(images, max_dropped=0.001, max_pixels=400_000), tmp_path / "strict", 1, progress=False)


@pytest.mark.parametrize("name", CONVERTED)
def test_odd_images_are_converted_by_a_named_rule(name: str, packed: Callable[..., Path], tmp_path: Path) -> None:
    data, rule = CONVERTED[name]
    images = folder_of_images(tmp_path / "images")
    put(images, name, data)
    folder = packed(images, image_size=None)
    manifest = manifest_of(folder)
    assert manifest["dropped"] == {}
    assert manifest["samples"] == 91
    assert rule is None or manifest["converted"].get(rule) == 1
    dataset = open_dataset(folder)
    assert check_dataset(dataset) == []
    assert all(Pixels(dataset, "train", 16, 3)[position].shape == (3, 16, 16) for position in range(71))


def test_a_file_that_cannot_be_read_is_dropped(packed: Callable[..., Path], tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    (images / "cat" / "broken disk.jpg").symlink_to("/proc/self/mem")  # a regular file; reading it is an I/O error
    assert manifest_of(packed(images))["dropped"] == {"unreadable": 1}


def test_equal_names_in_two_folders_are_two_samples(packed: Callable[..., Path], tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    for name in ("cat/x.jpg", "cat/deeper/x.jpg", "cat/x.png", "dog/x.jpg"):
        (images / name).parent.mkdir(exist_ok=True)
        (images / name).write_bytes(JPEG if name.endswith("jpg") else PNG)
    folder = packed(images, image_size=None)
    assert sum(split.samples for split in open_dataset(folder).splits.values()) == 94
    assert check_dataset(open_dataset(folder)) == []  # it names keys that occur twice


def test_hidden_files_loops_and_empty_classes(packed: Callable[..., Path], tmp_path: Path) -> None:
    images = folder_of_images(tmp_path / "images")
    for name in ("._a.jpg", ".hidden.jpg", "Thumbs.db"):
        put(images, name, JPEG)
    (images / "cat" / "loop").symlink_to(images)
    manifest = manifest_of(packed(images))
    assert manifest["samples"] == 90
    assert manifest["notes"]["passed_over"] == {"hidden or side file": 3, "linked folder already entered": 1}
    (images / "empty").mkdir()
    with pytest.raises(DatasetError, match="empty: this class folder holds no image"):
        packed(images, name="other")


def test_headers_keep_the_same_bytes_and_damage_inside_is_found_by_the_check(tmp_path: Path) -> None:
    """What verify=headers gives up: bytes that are damaged between a good header and a good end are packed."""
    images = folder_of_images(tmp_path / "images")
    inside = bytearray(PNG)
    inside[len(PNG) // 2] ^= 255
    put(images, "inside.png", bytes(inside))
    settings = {"image_size": None, "max_dropped": 0.1}
    looked = pack(folder_config(images, name="pixels", **settings), tmp_path, 1, progress=False)
    trusted = pack(folder_config(images, name="headers", verify="headers", **settings), tmp_path, 1, progress=False)
    assert manifest_of(looked)["dropped"] == {"truncated": 1}
    assert open_dataset(looked).digest != open_dataset(trusted).digest
    problems = check_dataset(open_dataset(trusted))
    assert len(problems) == 1
    assert "truncated" in problems[0]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", [*CONVERTED, "plain.jpg", "plain.png"])
def test_headers_store_what_decoding_stores(name: str, channels: int) -> None:
    data = CONVERTED[name][0] if name in CONVERTED else {"plain.jpg": JPEG, "plain.png": PNG}[name]
    settings = {"image_size": None, "channels": channels}
    first = encoded_sample(data, "k", 0, folder_config(Path("x"), **settings))
    second = encoded_sample(data, "k", 0, folder_config(Path("x"), verify="headers", **settings))
    assert (first.data, first.extension, first.origin) == (second.data, second.extension, second.origin)
    assert first.converted == second.converted
