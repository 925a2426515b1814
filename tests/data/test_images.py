"""Odd images, each converted by its documented rule or refused with its reason."""

import io

import numpy as np
import pytest
from PIL import Image

from harness.data.images import BadImageError, decode, encode, open_image, png_bytes, read_image, shrink


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


def test_a_bomb_is_refused_before_it_is_decoded() -> None:
    data = saved(Image.new("1", (10, 10)), "PNG")
    with pytest.raises(BadImageError, match="10 x 10") as caught:
        read_image(data, 3, max_pixels=99)
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


def test_every_conversion_of_an_odd_image_is_named() -> None:
    grey, colour = Image.new("L", (8, 8), 9), Image.new("RGB", (8, 8), "red")
    exif = Image.Exif()
    exif[0x0112] = 3
    two = {"save_all": True, "append_images": [Image.new("RGB", (8, 8), "blue")]}
    cases = [
        (saved(colour, "PNG"), 3, []),
        (saved(colour, "PNG"), 1, ["colour_to_grey"]),
        (saved(grey, "PNG"), 3, ["grey_to_rgb"]),
        (saved(colour.convert("CMYK"), "JPEG"), 3, ["cmyk"]),
        (saved(colour, "JPEG", exif=exif), 3, ["exif_orientation"]),
        (saved(colour, "MPO", **two), 3, ["first_frame"]),
        (saved(Image.new("LA", (8, 8), (5, 0)), "PNG"), 1, ["transparency"]),
        (saved(Image.fromarray(np.zeros((8, 8), np.uint16)), "PNG"), 1, ["sixteen_bit"]),
    ]
    for data, channels, names in cases:
        image, converted = read_image(data, channels)
        assert converted == names
        assert image.mode == ("L" if channels == 1 else "RGB")


def test_damaged_exif_says_nothing_about_the_pixels() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "a description"
    data = bytearray(saved(Image.new("RGB", (20, 10)), "JPEG", exif=exif))
    start = data.index(b"MM\x00*") if b"MM\x00*" in data else data.index(b"II*\x00")
    data[start + 10 : start + 22] = b"\xff" * 12
    assert open_image(bytes(data), 3).size in ((20, 10), (10, 20))


@pytest.mark.parametrize("pixels", [np.full((4, 4), 0.5, np.float32), np.full((4, 4), 70_000, np.int32)])
def test_pixels_of_no_known_scale_are_not_guessed(pixels: np.ndarray) -> None:
    with pytest.raises(BadImageError) as caught:
        open_image(saved(Image.fromarray(pixels), "TIFF"), 1)
    assert caught.value.reason == "unknown_scale"


def test_postscript_is_not_run() -> None:
    """Pillow would hand it to Ghostscript."""
    with pytest.raises(BadImageError) as caught:
        open_image(saved(Image.new("RGB", (8, 8)), "EPS"), 3)
    assert caught.value.reason == "not_an_image"


def test_a_strip_does_not_blow_up_the_memory() -> None:
    strip = saved(Image.new("L", (1, 60_000)), "PNG")
    with pytest.raises(BadImageError) as caught:
        shrink(open_image(strip, 1), 224)
    assert caught.value.reason == "too_narrow"
    assert decode(strip, 224, 1).shape == (1, 224, 224)


def test_whatever_bytes_are_damaged_only_a_bad_image_is_raised(capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 255, (24, 31, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = [saved(image, form) for form in ("GIF", "BMP", "TIFF", "PPM")]
    whole += [saved(image, form, exif=exif) for form in ("JPEG", "PNG", "WEBP")]
    whole += [saved(image.convert("P"), "PNG", transparency=3), saved(image, "TIFF", compression="tiff_lzw")]
    outcomes = set()
    for turn in range(3000):
        data = bytearray(whole[turn % len(whole)])
        reach = 60 if turn % 2 else len(data)
        for _ in range(1 + turn % 5):
            data[rng.integers(min(reach, len(data)))] = rng.integers(256)
        if turn % 7 == 0:
            del data[rng.integers(len(data)) :]
        try:
            assert decode(bytes(data), 16, 3).shape == (3, 16, 16)
            outcomes.add("decoded")
        except BadImageError as error:
            outcomes.add(error.reason)
    capfd.readouterr()  # libtiff writes to stderr
    assert {"decoded", "not_an_image", "truncated", "too_large"} <= outcomes


@pytest.mark.parametrize("shape", [(1, 1), (5, 9), (32, 32), (7, 3, 3), (28, 28, 3)])
def test_our_png_is_read_back_by_pillow(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    image = Image.open(io.BytesIO(png_bytes(pixels)))
    image.verify()
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(pixels)))), pixels)
