"""An encoded image as a sample: its bytes kept, or resized and encoded anew, and what its digest covers."""

import hashlib
import io

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.images import FORMATS, MAX_PIXELS, encode, read_image, shrink
from harness.data.jpeg import decode_jpeg, read_header
from harness.data.sources import Sample
from harness.data.sources.common import digest_of, origin_of

LOSSLESS_UP_TO_PIXELS = 64
KEPT_AS = {b"\xff\xd8\xff": "jpg", b"\x89PNG\r\n\x1a\n": "png", b"RIFF": "webp"}  # formats whose bytes may be kept
JPEG_END, PNG_END = b"\xff\xd9", b"IEND\xaeB`\x82"


def encoded_sample(data: bytes, key: str, label: int, cfg: DataConfig) -> Sample:
    """Encoded bytes as a sample: converted by the rules of harness.data.images, short side and codec as cfg says.

    data.codec=auto keeps the bytes where data.image_size is null, else stores short sides up to 64 pixels losslessly
    and larger ones as JPEG. Bytes are kept only where every reader sees the same picture in them: odd ones (turned by
    EXIF, CMYK, animated, of another format) are stored as JPEG. With data.verify=headers, kept JPEGs and PNGs are not
    decoded: their headers and their ends are looked at, and digests are over bytes. The origin is the original bytes:
    two copies of a file are one original. Raises BadImageError.
    """
    keep = cfg.codec == "keep" or (cfg.codec == "auto" and cfg.image_size is None)
    extension = next((name for magic, name in KEPT_AS.items() if data.startswith(magic)), None)
    content = hashlib.sha256(data).digest()
    origin = origin_of(content)
    by_bytes = cfg.verify == "headers"
    if keep and by_bytes and extension and whole_by_header(data, cfg.channels, cfg.max_pixels):
        return Sample(key, data, extension, label, content, origin, ())
    pixels, converted = read_pixels(data, cfg.channels, cfg.max_pixels)
    if keep and extension and not set(converted) - {"colour_to_grey", "grey_to_rgb"}:
        return Sample(key, data, extension, label, content if by_bytes else digest_of(pixels), origin, tuple(converted))
    image = Image.fromarray(pixels)
    if cfg.image_size is not None:
        image = shrink(image, cfg.image_size)
    codec = cfg.codec
    if codec in ("auto", "keep"):
        codec = "png" if min(image.size) <= LOSSLESS_UP_TO_PIXELS else "jpeg"
    encoded, extension = encode(image, codec, cfg.quality)
    digest = hashlib.sha256(encoded).digest() if by_bytes else digest_of(read_pixels(encoded, cfg.channels)[0])
    return Sample(key, encoded, extension, label, digest, origin, tuple(converted))


def read_pixels(data: bytes, channels: int, max_pixels: int = MAX_PIXELS) -> tuple[np.ndarray, list[str]]:
    """uint8 (H, W) or (H, W, 3) and the conversions it took: harness.data.images.read_image, faster for plain JPEGs.

    The memory may be overwritten by the next call. Raises BadImageError.
    """
    header = read_header(data, channels)
    if header and header.height * header.width <= max_pixels:
        pixels = decode_jpeg(data, header)
        if pixels is not None:
            names = ["grey_to_rgb"] if header.grey and channels == 3 else []
            return pixels[:, :, 0] if channels == 1 else pixels, names
    image, converted = read_image(data, channels, max_pixels)
    return np.asarray(image), converted


def whole_by_header(data: bytes, channels: int, max_pixels: int) -> bool:
    """Whether a JPEG or PNG is by its header one that is kept as it is, of the channels wanted, and has its end."""
    if data.endswith(JPEG_END):
        header = read_header(data, channels)
        return header is not None and header.grey == (channels == 1) and header.height * header.width <= max_pixels
    if not data.endswith(PNG_END):
        return False
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception:  # judged where it is decoded
        return False
    plain = image.mode == ("L" if channels == 1 else "RGB") and not {"transparency", "exif"} & set(image.info)
    return plain and not getattr(image, "is_animated", False) and image.width * image.height <= max_pixels
