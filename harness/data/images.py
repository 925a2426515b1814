"""Bytes to pixels, by one documented rule each, the same at packing and in training.

First frame of an animation; EXIF orientation applied; 16-bit grey scaled to 8 bits; CMYK and others to RGB; alpha and
palette transparency composited on white; grey or RGB as the data set says. Squares are cut from the centre.
"""

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from harness.errors import HarnessError

MAX_PIXELS = 100_000_000
Image.MAX_IMAGE_PIXELS = None  # our own limit below names the file; Pillow's would only warn


class BadImageError(HarnessError):
    """An image that cannot be used; `reason` is the word it is counted under."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


def open_image(data: bytes, channels: int) -> Image.Image:
    """Encoded bytes to a fully decoded image of mode 'L' (1 channel) or 'RGB' (3).

    Raises BadImageError with reason empty | not_an_image | too_large | truncated.
    """
    if not data:
        raise BadImageError("empty", "no bytes")
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise BadImageError("not_an_image", str(error)) from error
    if image.width * image.height > MAX_PIXELS:
        raise BadImageError("too_large", f"{image.width} x {image.height} pixels")
    try:
        image.seek(0)
        image.load()
        image = ImageOps.exif_transpose(image)
    except (OSError, EOFError, ValueError, SyntaxError) as error:
        raise BadImageError("truncated", str(error)) from error
    return to_mode(image, "L" if channels == 1 else "RGB")


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Any Pillow image to 'L' or 'RGB': 16 bits scaled, transparency composited on white."""
    if image.mode == mode:
        return image
    if image.mode in ("I;16", "I;16L", "I;16B", "I"):
        pixels = np.asarray(image).astype(np.float64) / 257.0
        image = Image.fromarray(np.clip(np.round(pixels), 0, 255).astype(np.uint8))
    elif image.mode == "F":
        image = Image.fromarray(np.clip(np.round(np.asarray(image)), 0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        image = Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert(mode)


def shrink(image: Image.Image, short_side: int) -> Image.Image:
    """Short side to `short_side` pixels, aspect ratio kept; smaller images are enlarged."""
    width, height = image.size
    scale = short_side / min(width, height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return image if size == image.size else image.resize(size, resample_for(scale))


def resample_for(scale: float) -> Image.Resampling:
    """Area averaging when shrinking by 2 or more, antialiased bilinear otherwise."""
    return Image.Resampling.BOX if scale <= 0.5 else Image.Resampling.BILINEAR


def to_square(image: Image.Image, size: int) -> np.ndarray:
    """Short side to `size`, centre cut: uint8 (C, size, size)."""
    image = shrink(image, size)
    left, top = (image.width - size) // 2, (image.height - size) // 2
    pixels = np.asarray(image.crop((left, top, left + size, top + size)))
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
