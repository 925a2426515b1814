"""Plain JPEGs through libjpeg-turbo (simplejpeg), about twice as fast as Pillow. Needs no torch.

Only where the result is what harness.data.images gives: grey or RGB JPEGs that are upright. Everything else (EXIF
rotation, CMYK, damage, other formats) is answered with None, and Pillow's path decides what becomes of it.
"""

import struct
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from harness.data.images import MAX_PIXELS, open_image, to_square

ORIENTATION = 0x0112
START_OF_SCAN = 0xDA
SEQUENTIAL = (0xC0, 0xC1)  # frames of one scan from top to bottom
MCU_ROWS = 16  # rows of pixels that are coded together, at most
LEFT_UNREAD = "extraneous bytes before marker 0xd9"  # libjpeg at the end of a picture that is shorter than its data

_memory: dict[str, np.ndarray] = {}


class Header(NamedTuple):
    """Of a JPEG that this module may decode."""

    height: int
    width: int
    colorspace: str  # to decode to: GRAY or RGB
    grey: bool  # stored without colour


def read_header(data: bytes | memoryview, channels: int) -> Header | None:
    """Size and colour space; None where Pillow must decide what becomes of the file."""
    if data[:2] != b"\xff\xd8" or not is_upright(data):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    wanted = {("Gray", 1): "GRAY", ("Gray", 3): "RGB", ("YCbCr", 3): "RGB", ("RGB", 3): "RGB"}.get(
        (colorspace, channels)
    )
    if wanted is None or height * width > MAX_PIXELS:
        return None
    return Header(height, width, wanted, colorspace == "Gray")


def decode_jpeg(data: bytes | memoryview, header: Header, shrink: int = 1, exact: bool = True) -> np.ndarray | None:
    """uint8 (H, W, C) in memory that the next call overwrites; None for a damaged file, which Pillow judges.

    Args:
        shrink: 1, 2, 4 or 8: decode at this fraction of the size, rounded up (an inverse cosine transform of fewer
            coefficients).
        exact: colours interpolated as Pillow does, to the bit; else the nearest colour, a tenth faster (brightness is
            the same; 0.2 of 255 on average).
    """
    height, width = -(-header.height // shrink), -(-header.width // shrink)
    pixels = scratch(height * width * (1 if header.colorspace == "GRAY" else 3))
    try:
        return simplejpeg.decode_jpeg(
            data,
            header.colorspace,
            fastupsample=not exact,
            min_height=height,
            min_width=width,
            min_factor=shrink,
            buffer=pixels,
            strict=True,
        )
    except ValueError:  # truncated or damaged
        return None


def decode_top(data: bytes | memoryview, header: Header, rows: int, shrink: int) -> np.ndarray | None:
    """The first `rows` of a picture or a few more, as `decode_jpeg` gives them, in nearest colours, without decoding
    what lies below; the whole picture where that cannot be told apart. Pixels are the same.

    The header is made to say that the picture ends there. libjpeg then complains, at the very end, of data that it did
    not read, and of nothing before: any other complaint is damage.
    """
    rows = -(-rows // MCU_ROWS) * MCU_ROWS
    place = height_field(data) if rows < header.height else None
    if place is None:
        return decode_jpeg(data, header, shrink, exact=False)
    shorter = bytearray(data)
    shorter[place : place + 2] = struct.pack(">H", rows)
    height, width = -(-rows // shrink), -(-header.width // shrink)
    shape = (height, width, 1 if header.colorspace == "GRAY" else 3)
    pixels = scratch(height * width * shape[2])
    try:
        simplejpeg.decode_jpeg(
            shorter,
            header.colorspace,
            fastupsample=True,
            min_height=height,
            min_width=width,
            min_factor=shrink,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        if LEFT_UNREAD not in str(error):
            return decode_jpeg(data, header, shrink, exact=False)
    return pixels.reshape(shape)


def height_field(data: bytes | memoryview) -> int | None:
    """Where the frame header says the height; None for a picture that is coded in several scans (ITU T.81 B.2.2)."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker, size = struct.unpack(">xBH", data[position : position + 4])
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return position + 5 if marker in SEQUENTIAL else None
        position += 2 + size
    return None


def decode_square(data: bytes | memoryview, size: int, channels: int) -> np.ndarray:
    """Encoded bytes to uint8 (channels, size, size): harness.data.images.decode, faster. Raises BadImageError."""
    header = read_header(data, channels)
    pixels = decode_jpeg(data, header) if header else None
    if pixels is None:
        return to_square(open_image(data, channels), size)
    return to_square(Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels), size)


def scratch(size: int, purpose: str = "picture") -> np.ndarray:
    """`size` bytes of this process's own memory, the same at every call: fresh memory for every picture costs as much
    time as decoding it (the system hands it out page by page)."""
    memory = _memory.get(purpose)
    if memory is None or memory.size < size:
        memory = _memory[purpose] = np.empty(size, np.uint8)
    return memory[:size]


def is_upright(data: bytes | memoryview) -> bool:
    """Whether this is one picture that no EXIF orientation asks to turn. Segments before the picture are walked
    (ITU T.81 annex B; CIPA DC-007 for files of several pictures)."""
    position = 2
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker, size = struct.unpack(">xBH", data[position : position + 4])
        if marker == START_OF_SCAN:
            return True
        if marker == 0xE1 and data[position + 4 : position + 10] == b"Exif\x00\x00":
            return exif_orientation(bytes(data[position + 4 : position + 2 + size])) in (0, 1)
        if marker == 0xE2 and data[position + 4 : position + 8] == b"MPF\x00":
            return False
        position += 2 + size
    return False  # an odd order of segments: Pillow's business


def exif_orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment, 1 where it says none; what cannot be read says nothing about the pixels."""
    exif = Image.Exif()
    try:
        exif.load(segment)
        return int(exif.get(ORIENTATION, 1))
    except Exception:  # damaged EXIF makes Pillow raise nearly anything
        return 1
