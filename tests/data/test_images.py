"""Odd images, each converted by its documented rule or refused with its reason."""

import io

import numpy as np
import pytest
from PIL import Image

from harness.data import images
from harness.data.images import BadImageError, decode, encode, open_image, shrink


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)  # type: ignore[arg-type]
    return buffer.getvalue()


def test_exif_orientation_is_applied() -> None:
    image = Image.new("RGB", (20, 10))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert open_image(saved(image, "JPEG", exif=exif), 3).size == (10, 20)


def test_red_in_cmyk_stays_red() -> None:
    data = saved(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100)
    red, green, blue = open_image(data, 3).getpixel((4, 4))  # type: ignore[misc]
    assert red > 240
    assert max(green, blue) < 20


def test_sixteen_bit_grey_is_scaled_not_cut() -> None:
    pixels = np.array([[0, 257 * 100, 65535]], np.uint16)
    assert np.asarray(open_image(saved(Image.fromarray(pixels), "PNG"), 1)).tolist() == [[0, 100, 255]]


def test_transparency_is_white_whatever_colour_hides_under_it() -> None:
    hidden_red = saved(Image.new("RGBA", (4, 4), (255, 0, 0, 0)), "PNG")
    assert open_image(hidden_red, 3).getpixel((1, 1)) == (255, 255, 255)
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0] * 256)
    assert open_image(saved(palette, "PNG", transparency=0), 3).getpixel((1, 1)) == (255, 255, 255)


def test_the_first_frame_of_an_animation() -> None:
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("blue", "red")]
    data = saved(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert open_image(data, 3).getpixel((2, 2)) == (0, 0, 255)


def test_content_decides_not_the_name() -> None:
    assert open_image(saved(Image.new("RGB", (5, 5), "lime"), "GIF"), 3).getpixel((0, 0)) == (0, 255, 0)


@pytest.mark.parametrize("data, reason", [(b"", "empty"), (b"hello", "not_an_image")])
def test_no_image(data: bytes, reason: str) -> None:
    with pytest.raises(BadImageError) as caught:
        open_image(data, 3)
    assert caught.value.reason == reason


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_half_an_image_is_truncated(form: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
    data = saved(noise, form)
    with pytest.raises(BadImageError) as caught:
        open_image(data[: len(data) // 2], 3)
    assert caught.value.reason == "truncated"


def test_a_bomb_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MAX_PIXELS", 99)
    with pytest.raises(BadImageError, match="10 x 10") as caught:
        open_image(saved(Image.new("L", (10, 10)), "PNG"), 1)
    assert caught.value.reason == "too_large"


def test_halving_is_the_mean_of_four_and_the_square_is_cut_from_the_centre() -> None:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) * 3
    half = decode(saved(Image.fromarray(pixels), "PNG"), 4, 1)
    expected = pixels.reshape(4, 2, 4, 2).mean((1, 3))
    assert np.abs(half[0] - expected).max() <= 0.5
    wide = Image.fromarray(np.repeat(np.arange(12, dtype=np.uint8)[None], 4, 0))
    assert decode(saved(wide, "PNG"), 4, 1)[0, 0].tolist() == [4, 5, 6, 7]
    assert shrink(Image.new("L", (200, 100)), 50).size == (100, 50)


@pytest.mark.parametrize("codec, extension", [("png", "png"), ("jpeg", "jpg"), ("webp", "webp")])
def test_codecs_read_back(codec: str, extension: str) -> None:
    data, found = encode(Image.new("RGB", (9, 7), (10, 200, 30)), codec, 95)
    assert found == extension
    assert decode(data, 7, 3).shape == (3, 7, 7)
