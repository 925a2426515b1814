"""The fast JPEG path gives what Pillow's gives, or leaves the file to Pillow; on real files of each kind."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from harness.data.images import BadImageError, decode, open_image
from harness.data.jpeg import decode_jpeg, decode_square, decode_top, is_upright, read_header

PHOTOGRAPH = Image.fromarray(load_sample_image("china.jpg")).crop((100, 20, 443, 327))  # 343 x 307


def jpeg(image: Image.Image = PHOTOGRAPH, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def rotated(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return jpeg(exif=exif)


@pytest.mark.parametrize("options", [{}, {"quality": 95, "subsampling": 0}, {"progressive": True}, {"quality": 20}])
def test_full_size_is_pillows_to_the_bit(options: dict[str, object]) -> None:
    data = jpeg(**options)
    header = read_header(data, 3)
    assert header is not None
    assert header[:2] == (307, 343)
    pixels = decode_jpeg(data, header)
    assert pixels is not None
    np.testing.assert_array_equal(pixels, np.asarray(open_image(data, 3)))
    np.testing.assert_array_equal(decode_square(data, 64, 3), decode(data, 64, 3))


@pytest.mark.parametrize("shrink", [2, 4, 8])
def test_scaled_decoding_is_the_picture_made_smaller(shrink: int) -> None:
    """Within 2 grey values on average of the full picture averaged over blocks: the transform has its own low pass."""
    data = jpeg(quality=95)
    header = read_header(data, 3)
    assert header is not None
    small = decode_jpeg(data, header, shrink)
    assert small is not None
    assert small.shape == (-(-307 // shrink), -(-343 // shrink), 3)
    rows, columns = 307 // shrink, 343 // shrink
    full = np.asarray(open_image(data, 3))[: rows * shrink, : columns * shrink].astype(float)
    mean = full.reshape(rows, shrink, columns, shrink, 3).mean((1, 3))
    assert np.abs(small[:rows, :columns] - mean).mean() < 2


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_jpegs(channels: int) -> None:
    data = jpeg(PHOTOGRAPH.convert("L"))
    assert read_header(data, channels) is not None
    np.testing.assert_array_equal(decode_square(data, 50, channels), decode(data, 50, channels))


LEFT_TO_PILLOW: dict[str, tuple[Callable[[], bytes], int]] = {
    "colour in a grey set": (jpeg, 1),
    "cmyk": (lambda: jpeg(PHOTOGRAPH.convert("CMYK")), 3),
    "turned by exif": (lambda: rotated(6), 3),
    "png": (lambda: as_format("PNG"), 3),
    "webp": (lambda: as_format("WEBP"), 3),
}


def as_format(name: str) -> bytes:
    buffer = io.BytesIO()
    PHOTOGRAPH.save(buffer, name)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", list(LEFT_TO_PILLOW))
def test_what_has_a_rule_of_its_own_is_left_to_pillow(kind: str) -> None:
    make, channels = LEFT_TO_PILLOW[kind]
    data = make()
    assert read_header(data, channels) is None
    np.testing.assert_array_equal(decode_square(data, 40, channels), decode(data, 40, channels))


def test_exif_without_a_turn_stays_fast_and_damaged_exif_says_nothing() -> None:
    assert read_header(rotated(1), 3) is not None
    damaged = rotated(6).replace(b"Exif\x00\x00MM", b"Exif\x00\x00??").replace(b"Exif\x00\x00II", b"Exif\x00\x00??")
    assert is_upright(damaged)
    np.testing.assert_array_equal(decode_square(damaged, 40, 3), decode(damaged, 40, 3))


@pytest.mark.parametrize("cut", [2, 20, 400, 3000])
def test_a_truncated_file_is_the_same_error_as_without_the_fast_path(cut: int) -> None:
    data = jpeg()[:cut]
    with pytest.raises(BadImageError) as slow:
        decode(data, 40, 3)
    with pytest.raises(BadImageError) as fast:
        decode_square(data, 40, 3)
    assert fast.value.reason == slow.value.reason


def test_a_decoded_square_does_not_change_with_the_next_picture() -> None:
    """Pictures are decoded into memory that is used again."""
    side = PHOTOGRAPH.crop((0, 0, 64, 64))
    first = decode_square(jpeg(side.convert("L")), 64, 1)
    before = first.copy()
    decode_square(jpeg(side.convert("L").rotate(90)), 64, 1)
    np.testing.assert_array_equal(first, before)


@pytest.mark.parametrize("shrink", [1, 2, 4, 8])
@pytest.mark.parametrize("channels, options", [(3, {}), (3, {"subsampling": 0}), (3, {"subsampling": 1}), (1, {})])
def test_the_top_of_a_picture_is_that_of_the_whole(channels: int, options: dict[str, object], shrink: int) -> None:
    data = jpeg(PHOTOGRAPH.convert("L" if channels == 1 else "RGB"), **options)
    header = read_header(data, channels)
    assert header is not None
    whole = decode_jpeg(data, header, shrink, exact=False)
    assert whole is not None
    whole = whole.copy()
    for rows in (1, 16, 17, 100, 290, 306, 307):
        top = decode_top(data, header, rows, shrink)
        assert top is not None
        assert -(-rows // shrink) <= len(top) <= -(-(rows + 15) // shrink)  # what lies below was not decoded
        np.testing.assert_array_equal(top[: len(whole)], whole[: len(top)])


def test_several_scans_and_restart_marks_are_decoded_whole() -> None:
    for options in ({"progressive": True}, {"restart_marker_rows": 1}):
        data = jpeg(**options)
        header = read_header(data, 3)
        assert header is not None
        top = decode_top(data, header, 100, 1)
        whole = decode_jpeg(data, header, exact=False)
        assert top is not None
        assert whole is not None
        np.testing.assert_array_equal(top[:100], whole[:100])


@pytest.mark.parametrize("at", [0.2, 0.5, 0.9])
def test_damage_is_seen_above_and_below_the_rows_that_are_wanted(at: float) -> None:
    data = jpeg()
    header = read_header(data, 3)
    assert header is not None
    assert decode_top(data[: int(len(data) * at)], header, 150, 1) is None  # cut off
    if at < 0.3:  # a mark that is none, within the rows
        bad = bytearray(data)
        bad[int(len(data) * at) : int(len(data) * at) + 2] = b"\xff\xc0"
        assert decode_top(bytes(bad), header, 150, 1) is None
