"""Bytes to pixels, by one documented rule each, the same at packing and in training.

    format          decided by content, never by the file's name; one of FORMATS
    animation       first frame
    EXIF            orientation applied; damaged EXIF is passed over
    16-bit grey     scaled to 8 bits; integers beyond 16 bits and floats have no known scale: not usable
    CMYK, LAB, …    to RGB by Pillow; colour profiles are not applied
    transparency    composited on white, alpha channel or palette entry
    channels        grey or RGB, as the data set says
    squares         the largest square in the centre, resized

Every conversion of an odd image has a name, so that the packer can count it.
"""

import io
import struct
import warnings
import zlib

import numpy as np
from PIL import Image, ImageOps

from harness.errors import HarnessError

MAX_PIXELS = 100_000_000
ORIENTATION = 0x0112  # the EXIF tag
Image.MAX_IMAGE_PIXELS = None  # our own limit below names the file; Pillow's would only warn
# Pillow reads more, some by starting other programs (EPS: Ghostscript); images for training are one of these.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # JPEG includes MPO, JPEGs of several pictures
LARGEST_16_BIT = 65535


class BadImageError(HarnessError):
    """An image that cannot be used; `reason` is the word it is counted under."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def open_image(data: bytes | memoryview, channels: int) -> Image.Image:
    """Encoded bytes to a fully decoded image of mode 'L' (1 channel) or 'RGB' (3).

    Raises BadImageError with reason empty | not_an_image | too_large | truncated | unknown_scale.
    """
    return read_image(data, channels)[0]


def read_image(data: bytes | memoryview, channels: int, max_pixels: int = MAX_PIXELS) -> tuple[Image.Image, list[str]]:
    """`open_image`, and the names of the conversions that it took: first_frame, exif_orientation, … ."""
    if not data:
        raise BadImageError("empty", "no bytes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow on odd metadata, once a file; ours are counted instead
        try:
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        except Exception as error:  # damaged files make Pillow's readers raise nearly anything
            raise BadImageError("not_an_image", str(error)) from error
        if image.width * image.height > max_pixels:
            raise BadImageError("too_large", f"{image.width} x {image.height} pixels")
        try:
            image.seek(0)
            image.load()
        except Exception as error:
            raise BadImageError("truncated", str(error)) from error
        converted = ["first_frame"] if getattr(image, "is_animated", False) else []
        image = upright(image, converted)
        try:
            return to_mode(image, "L" if channels == 1 else "RGB", converted), converted
        except ValueError as error:  # a colour space that Pillow cannot convert
            raise BadImageError("unknown_scale", str(error)) from error


def upright(image: Image.Image, converted: list[str]) -> Image.Image:
    """EXIF orientation applied; EXIF that cannot be read says nothing about the pixels."""
    if image.format == "PNG" and not image.info:  # nothing to look through, which takes longer than a small picture
        return image
    try:
        if image.getexif().get(ORIENTATION, 1) in (0, 1):
            return image
        turned = ImageOps.exif_transpose(image)
    except Exception:
        return image
    converted.append("exif_orientation")
    return turned


def to_mode(image: Image.Image, mode: str, converted: list[str] | None = None) -> Image.Image:
    """Any Pillow image to 'L' or 'RGB'; what it took is added to `converted`. Raises BadImageError, ValueError."""
    names = converted if converted is not None else []
    if image.mode == mode and "transparency" not in image.info:
        return image
    if image.mode in ("I;16", "I;16L", "I;16B", "I"):
        names.append("sixteen_bit")
        image = eight_bits(image)
    elif image.mode == "F":
        raise BadImageError("unknown_scale", "floating-point pixels")
    elif image.mode in ("CMYK", "LAB", "YCbCr", "HSV"):
        names.append(image.mode.lower())
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        names.append("transparency")
        image = on_white(image)
    if mode == "L" and image.mode == "RGB":
        names.append("colour_to_grey")
    elif mode == "RGB" and image.mode == "L":
        names.append("grey_to_rgb")
    return image.convert(mode)


def eight_bits(image: Image.Image) -> Image.Image:
    """16-bit grey to 8 bits, 65535 to 255. Raises BadImageError for integers that are not 16 bits."""
    pixels = np.asarray(image).astype(np.float64)
    if pixels.min() < 0 or pixels.max() > LARGEST_16_BIT:
        raise BadImageError("unknown_scale", f"32-bit pixels from {pixels.min():g} to {pixels.max():g}")
    return Image.fromarray(np.round(pixels / 257).astype(np.uint8))


def on_white(image: Image.Image) -> Image.Image:
    """Composited on white: what hides under transparent pixels is not seen. Grey stays grey."""
    grey = image.mode in ("L", "LA", "La", "1")
    rgba = image.convert("LA").convert("RGBA") if image.mode in ("La", "LA") else image.convert("RGBA")
    white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, rgba).convert("L" if grey else "RGB")


def shrink(image: Image.Image, short_side: int) -> Image.Image:
    """Short side to `short_side` pixels, aspect ratio kept; smaller images are enlarged.

    Raises BadImageError too_narrow for a strip that would grow beyond MAX_PIXELS.
    """
    width, height = image.size
    scale = short_side / min(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    if size[0] * size[1] > MAX_PIXELS:
        raise BadImageError("too_narrow", f"{width} x {height} pixels would become {size[0]} x {size[1]}")
    return image if size == image.size else image.resize(size, resample_for(scale))


def resample_for(scale: float) -> Image.Resampling:
    """Area averaging when shrinking by 2 or more, antialiased bilinear otherwise."""
    return Image.Resampling.BOX if scale <= 0.5 else Image.Resampling.BILINEAR


def to_square(image: Image.Image, size: int) -> np.ndarray:
    """The largest square in the centre, resized: uint8 (C, size, size)."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    box = (left, top, left + side, top + side)
    square = image.crop(box) if side == size else image.resize((size, size), resample_for(size / side), box=box)
    pixels = np.asarray(square)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def decode(data: bytes, size: int, channels: int) -> np.ndarray:
    """Encoded bytes to uint8 (channels, size, size). Raises BadImageError."""
    return to_square(open_image(data, channels), size)


def encode(image: Image.Image, codec: str, quality: int) -> tuple[bytes, str]:
    """Image to bytes and file extension: png (lossless), jpeg or webp at a quality."""
    buffer = io.BytesIO()
    if codec == "png":
        image.save(buffer, "PNG", compress_level=1)
        return buffer.getvalue(), "png"
    image.save(buffer, "JPEG" if codec == "jpeg" else "WEBP", quality=quality)
    return buffer.getvalue(), "jpg" if codec == "jpeg" else "webp"


def png_bytes(pixels: np.ndarray) -> bytes:
    """uint8 (H, W) or (H, W, 3) as PNG, without filters: several times faster than Pillow's encoder on small images.

    PNG (Portable Network Graphics) Specification, W3C: signature, IHDR, IDAT, IEND.
    """
    height, width = pixels.shape[:2]
    colour = 0 if pixels.ndim == 2 else 2
    lines = np.zeros((height, 1 + pixels.nbytes // height), np.uint8)  # a line begins with its filter: 0, none
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )
