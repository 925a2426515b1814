"""Random resized crops and flips, drawn from (seed, position): the same whoever decodes, and after every restart.

A position is a place in the order of a run's samples (epoch x N + place in the epoch), so that an image is cut anew
each time it comes. The crop is 'inception crop' of the authors' input pipeline (big_vision pp/ops_image.py: 5 to 100 %
of the area, aspect ratio 3/4 to 4/3), retried and given up as torchvision.transforms.RandomResizedCrop does; resizing
is plain bilinear, as tf.image.resize there. Needs no torch.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import cv2
import numpy as np

from harness.data.images import open_image
from harness.data.jpeg import decode_top, read_header, scratch

ATTEMPTS = 10
DRAWS = 4 * ATTEMPTS + 1  # area, ratio, top, left an attempt; the flip

cv2.setNumThreads(1)  # a decoding worker is one thread


@dataclass(frozen=True)
class Augmentation:
    """What is done to training images."""

    seed: int
    crop: bool = False  # random resized crop; without, the largest square in the centre
    min_area: float = 0.05  # share of the picture that a crop covers at least
    flip: bool = False  # left to right, every second time


class Crop(NamedTuple):
    """A rectangle in pixels, and whether it is mirrored."""

    top: int
    left: int
    height: int
    width: int
    flip: bool


def random_numbers(seed: int, positions: np.ndarray) -> np.ndarray:
    """float64 (N, DRAWS) uniform in [0, 1), a pure function of (seed, position).

    SplitMix64's finaliser (Steele, Lea, Flood 2014) over a counter: no generator to set up for every image.
    """
    with np.errstate(over="ignore"):
        counters = positions.astype(np.uint64)[:, None] * np.uint64(DRAWS) + np.arange(DRAWS, dtype=np.uint64)
        values = mix(counters + mix(np.array([seed], np.uint64)))
    return (values >> np.uint64(11)) * 2.0**-53


def mix(values: np.ndarray) -> np.ndarray:
    """SplitMix64 of each number."""
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def choose_crop(numbers: np.ndarray, height: int, width: int, augmentation: Augmentation) -> Crop:
    """The crop of a picture from its random numbers (DRAWS,)."""
    flip = augmentation.flip and bool(numbers[-1] < 0.5)
    if not augmentation.crop:
        return Crop(*centre_square(height, width), flip)
    for area, ratio, top, left in numbers[:-1].reshape(ATTEMPTS, 4).tolist():
        target = height * width * (augmentation.min_area + area * (1 - augmentation.min_area))
        aspect = math.exp(math.log(3 / 4) + ratio * 2 * math.log(4 / 3))
        crop_width, crop_height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            places = int(top * (height - crop_height + 1)), int(left * (width - crop_width + 1))
            return Crop(*places, crop_height, crop_width, flip)
    return Crop(*centre_of_ratio(height, width), flip)


def centre_square(height: int, width: int) -> tuple[int, int, int, int]:
    """(top, left, height, width) of the largest square in the centre."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side


def centre_of_ratio(height: int, width: int) -> tuple[int, int, int, int]:
    """The largest centred rectangle of an allowed ratio: for strips that no drawn crop fits."""
    crop_width = min(width, round(height * 4 / 3))
    crop_height = min(height, round(width * 4 / 3))
    return (height - crop_height) // 2, (width - crop_width) // 2, max(1, crop_height), max(1, crop_width)


def cut(image: np.ndarray, crop: Crop, size: int, out: np.ndarray) -> None:
    """The crop of `image`, uint8 (H, W, C), resized, into `out`, (size, size, C) and contiguous."""
    part = image[crop.top : crop.top + crop.height, crop.left : crop.left + crop.width]
    if part.shape[:2] == (size, size):
        out[:] = cv2.flip(part, 1).reshape(out.shape) if crop.flip else part
        return
    # area averaging where bilinear would pass over more than half of the pixels
    method = cv2.INTER_AREA if min(part.shape[:2]) >= 2 * size else cv2.INTER_LINEAR
    if crop.flip:
        small = cv2.resize(
            part, (size, size), dst=scratch(out.size, "resized").reshape(out.shape), interpolation=method
        )
        cv2.flip(small, 1, dst=out)  # a reversed numpy view would be copied thirty times slower
    else:
        cv2.resize(part, (size, size), dst=out, interpolation=method)


def cut_batch(
    stored: np.ndarray, positions: np.ndarray, visit: int, augmentation: Augmentation, size: int
) -> np.ndarray:
    """Augmented pictures (N, C, size, size) of decoded ones, uint8 (all, C, H, W), first visited at `visit`."""
    numbers = random_numbers(augmentation.seed, visit + np.arange(len(positions)))
    images = np.empty((len(positions), size, size, stored.shape[1]), np.uint8)
    for number, position in enumerate(positions.tolist()):
        image = np.ascontiguousarray(stored[position].transpose(1, 2, 0))
        cut(image, choose_crop(numbers[number], image.shape[0], image.shape[1], augmentation), size, images[number])
    return images.transpose(0, 3, 1, 2)


def decode_crop(
    data: bytes | memoryview, numbers: np.ndarray, augmentation: Augmentation, size: int, channels: int, out: np.ndarray
) -> None:
    """Encoded bytes to an augmented picture in `out`, uint8 (size, size, channels). Raises BadImageError.

    A plain JPEG is decoded at a half, a quarter or an eighth of its size where the crop still has `size` pixels then.
    """
    header = read_header(data, channels)
    if header is not None:
        crop = choose_crop(numbers, header.height, header.width, augmentation)
        times = min(crop.height, crop.width) // size
        shrink = 8 if times >= 8 else 4 if times >= 4 else 2 if times >= 2 else 1
        image = decode_top(data, header, crop.top + crop.height, shrink)
        if image is not None:
            height, width = -(-header.height // shrink), -(-header.width // shrink)
            cut(image, shrunk(crop, shrink, height, width), size, out)
            return
    image = np.asarray(open_image(data, channels))
    image = image.reshape(*image.shape[:2], channels)
    cut(image, choose_crop(numbers, image.shape[0], image.shape[1], augmentation), size, out)


def shrunk(crop: Crop, shrink: int, height: int, width: int) -> Crop:
    """The crop in a picture decoded at 1/shrink, which is height x width."""
    crop_height, crop_width = max(1, crop.height // shrink), max(1, crop.width // shrink)
    top, left = min(crop.top // shrink, height - crop_height), min(crop.left // shrink, width - crop_width)
    return Crop(top, left, crop_height, crop_width, crop.flip)
