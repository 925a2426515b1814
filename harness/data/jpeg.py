"""Plain JPEGs through libjpeg-turbo (simplejpeg), about twice as fast as Pillow. Needs no torch.

Only where the result is what harness.data.images gives: grey or RGB JPEGs that are upright. Everything else (EXIF
rotation, CMYK, damage, other formats) is answered with None, and Pillow's path decides what becomes of it.
"""

import struct
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from harness.data.images import MAX_PIXELS, ORIENTATION, open_image, to_square

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
    height_at: int  # where the file says the height; 0 for a picture that is coded in several scans


def read_header(data: bytes | memoryview, channels: int) -> Header | None:
    """Size and colour space; None where Pillow must decide what becomes of the file."""
    place = upright_frame(data) if data[:2] == b"\xff\xd8" else None
    if place is None:
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
    return Header(height, width, wanted, colorspace == "Gray", place)


def decode_jpeg(data: bytes | memoryview, header: Header, shrink: int = 1, exact: bool = True) -> np.ndarray | None:
    """uint8 (H, W, C) in memory that the next call overwrites; None for a damaged file, which Pillow judges.

    Args:
        shrink: 1, 2, 4 or 8: decode at this fraction of the size, rounded up (an inverse cosine transform of fewer
            coefficients).
        exact: colours interpolated as Pillow does, to the bit; else the nearest colour, a tenth faster (brightness is
            the same; 0.2 of 255 on average).
    """
    pixels, complaint = decode_rows(data, header, header.height, shrink, exact)
    return None if complaint else pixels  # truncated or damaged


def decode_top(data: bytes | memoryview, header: Header, rows: int, shrink: int) -> np.ndarray | None:
    """The first `rows` of a picture or a few more, as `decode_jpeg` gives them, in nearest colours, without decoding
    what lies below; the whole picture where that cannot be told apart. Pixels are the same.

    The header is made to say that the picture ends there. libjpeg then complains, at the very end, of data that it did
    not read, and of nothing before: any other complaint is damage.
    """
    rows = -(-rows // MCU_ROWS) * MCU_ROWS
    if rows >= header.height or not header.height_at:
        return decode_jpeg(data, header, shrink, exact=False)
    shorter = bytearray(data)
    shorter[header.height_at : header.height_at + 2] = struct.pack(">H", rows)
    pixels, complaint = decode_rows(shorter, header, rows, shrink, exact=False)
    return pixels if not complaint or LEFT_UNREAD in complaint else decode_jpeg(data, header, shrink, exact=False)


def decode_rows(
    data: bytes | bytearray | memoryview, header: Header, rows: int, shrink: int, exact: bool
) -> tuple[np.ndarray, str]:
    """uint8 (rows / shrink, W / shrink, C), both rounded up, in memory that the next call overwrites, and libjpeg's
    complaint: '' for none."""
    height, width = -(-rows // shrink), -(-header.width // shrink)
    shape = (height, width, 1 if header.colorspace == "GRAY" else 3)
    pixels = scratch(height * width * shape[2])
    complaint = ""
    try:
        simplejpeg.decode_jpeg(
            data,
            header.colorspace,
            fastupsample=not exact,
            min_height=height,
            min_width=width,
            min_factor=shrink,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        complaint = str(error) or "damaged"
    return pixels.reshape(shape), complaint


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
    """Whether this is one picture that no EXIF orientation asks to turn."""
    return upright_frame(data) is not None


def upright_frame(data: bytes | memoryview) -> int | None:
    """Where the frame header says the height of one picture that no EXIF orientation asks to turn; 0 where it is coded
    in several scans, None where it is several pictures, or turned, or the segments are odd: Pillow's business.

    Segments before the picture are walked (ITU T.81 annex B; CIPA DC-007 for files of several pictures).
    """
    position, place = 2, 0
    while position + 4 <= len(data) and data[position] == 0xFF:
        marker, size = struct.unpack(">xBH", data[position : position + 4])
        if marker == START_OF_SCAN:
            return place
        if marker in SEQUENTIAL:
            place = position + 5
        if marker == 0xE1 and data[position + 4 : position + 10] == b"Exif\x00\x00":
            segment = bytes(data[position + 4 : position + 2 + size])
            if exif_orientation(segment) not in (0, 1):
                return None
        if marker == 0xE2 and data[position + 4 : position + 8] == b"MPF\x00":
            return None
        position += 2 + size
    return None


def exif_orientation(segment: bytes) -> int:
    """The orientation in an EXIF segment, 1 where it says none; what cannot be read says nothing about the pixels."""
    exif = Image.Exif()
    try:
        exif.load(segment)
        return int(exif.get(ORIENTATION, 1))
    except Exception:  # damaged EXIF makes Pillow raise nearly anything
        return 1
