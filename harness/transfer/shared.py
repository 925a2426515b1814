"""Images that a transfer target shares with the pre-training set, found by digest; and class names in common.

The paper's sets are de-duplicated against the test sets of their targets (arXiv 2010.11929 §4.1). Two digests: the
original's, which the packed index holds, and that of the pixels as the network sees them, where both splits are small
enough for the cache of decoded pixels. Pictures of one plain colour are no image.
"""

import hashlib

import numpy as np

from harness.data.cache import open_pixels
from harness.data.manifest import Dataset
from harness.errors import DatasetError
from harness.paths import cache_root
from harness.run_folder import write_atomic

SEAL_BYTES = 32  # sha256 of what follows in a file of digests
SEEN_IN_PRETRAINING = ("train", "val")


def refuse_shared(pretraining: Dataset, target: Dataset, image_size: int, channels: int, allowed: str) -> None:
    """Raise DatasetError with the number of shared images in each split of the target, unless they are allowed.

    Args:
        allowed: 'refuse', or 'train': the target's training images may be shared (the paper fine-tunes networks
            pre-trained on ImageNet on ImageNet again, at a higher resolution); its test images never.
    """
    found = {}
    for split in target.splits if allowed == "refuse" else ["test"]:
        seen = [shared(pretraining, one, target, split, image_size, channels) for one in SEEN_IN_PRETRAINING]
        found[split] = int(np.logical_or.reduce(seen).sum())
    if any(found.values()):
        counts = ", ".join(f"{count:,} of {target.splits[name].samples:,} in {name}" for name, count in found.items())
        raise DatasetError(
            f"transfer target {target.name} shares images with the pre-training set {pretraining.name} ({counts}): its "
            "result would be no transfer. Take another target; where only its training images are shared, "
            "transfer.shared_images=train allows that"
        )


def shared(
    pretraining: Dataset, split: str, target: Dataset, target_split: str, image_size: int, channels: int
) -> np.ndarray:
    """Which images of the target's split the pre-training set's split has too, as booleans in packed order."""
    if target_split not in target.splits:
        return np.zeros(0, bool)
    if split not in pretraining.splits:
        return np.zeros(target.splits[target_split].samples, bool)
    same = np.isin(target.index(target_split)["origin"], pretraining.index(split)["origin"])
    ours = pixel_digests(target, target_split, image_size, channels)
    theirs = pixel_digests(pretraining, split, image_size, channels)
    if ours is not None and theirs is not None:
        same |= np.isin(ours, theirs[theirs != 0])
    return same


def pixel_digests(dataset: Dataset, split: str, image_size: int, channels: int) -> np.ndarray | None:
    """uint64 of each image's pixels as a network sees them, 0 for plain ones; None for a split over the cache limit."""
    path = cache_root() / "digests" / f"{dataset.name}-{split}-{image_size}px-{channels}ch-{dataset.digest[:16]}-v2.bin"
    kept = path.read_bytes() if path.exists() else b""
    seal, content = kept[:SEAL_BYTES], kept[SEAL_BYTES:]
    if seal == hashlib.sha256(content).digest() and len(content) == dataset.splits[split].samples * 8:
        return np.frombuffer(content, np.uint64)
    if path.exists():
        print(f"warning: {path}: damaged; made again", flush=True)
    pixels = open_pixels(dataset, split, image_size, channels)
    if not isinstance(pixels, np.ndarray):
        return None
    digests = np.array([digest_of(image) for image in pixels], np.uint64)
    try:
        write_atomic(path, hashlib.sha256(digests.tobytes()).digest() + digests.tobytes())
    except OSError as error:
        print(f"warning: digests of {dataset.name} are not kept ({error})", flush=True)
    return digests


def digest_of(image: np.ndarray) -> int:
    """The head of sha256 over uint8 pixels (C, H, W); 0 where each channel has one value."""
    if (image.reshape(len(image), -1) == image.reshape(len(image), -1)[:, :1]).all():
        return 0
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(image).tobytes()).digest()[:8], "little")


def shared_classes(pretraining: Dataset, target: Dataset) -> list[str]:
    """Names of the target's classes that the pre-training set has too, whatever their case and hyphens."""
    known = {plain(name) for name in pretraining.class_names}
    return [name for name in target.class_names if plain(name) in known]


def plain(name: str) -> str:
    """A class name for comparison."""
    return name.casefold().replace("_", " ").replace("-", " ").strip()
