"""What sources share: cutting splits, digests of pixels, samples from pixels."""

import hashlib
from pathlib import Path

import numpy as np

from harness.config import DataConfig
from harness.data.images import png_bytes
from harness.data.order import permute
from harness.data.sources import Sample
from harness.data.subset import parse_size
from harness.errors import ConfigError, DatasetError
from harness.paths import data_root


def digest_of(pixels: np.ndarray) -> bytes:
    """sha256 over shape and bytes of uint8 pixels."""
    digest = hashlib.sha256(str(pixels.shape).encode())
    digest.update(np.ascontiguousarray(pixels).data)
    return digest.digest()


def origin_of(digest: bytes) -> int:
    """A 64-bit number for an original: the head of its digest."""
    return int.from_bytes(digest[:8], "little")


def png_sample(key: str, pixels: np.ndarray, label: int, origin: int | None = None) -> Sample:
    """(H, W) or (H, W, 3) uint8 to a lossless sample; without an origin of its own the pixels are it."""
    digest = digest_of(pixels)
    return Sample(key, png_bytes(pixels), "png", label, digest, origin_of(digest) if origin is None else origin)


def raw_folder(cfg: DataConfig) -> Path:
    """Where a source's files are: data.path, else what `harness data fetch` has put below the data root.

    Raises DatasetError that says how to get them.
    """
    if cfg.path is not None:
        folder = Path(cfg.path).expanduser()
        if not folder.is_dir():
            raise DatasetError(f"data.path={folder}: there is no such folder")
        return folder
    folder = fetched_folder(cfg.name) / cfg.raw
    if cfg.fetch and folder.is_dir():
        return folder
    if cfg.fetch:
        raise DatasetError(
            f"{cfg.name} is not here ({folder}): `harness data fetch {cfg.name}` gets it ({cfg.fetch}), or name a "
            "folder that holds it (data.path=DIR)"
        )
    raise DatasetError(
        f"data.path is not given: harness data pack {cfg.source} data.path=DIR data.name={cfg.name or 'mine'}"
    )


def fetched_folder(name: str) -> Path:
    """Where `harness data fetch NAME` unpacks: below the data root."""
    return data_root() / "raw" / name


def count_or_none(text: str, total: int, field: str) -> int:
    """A size of a split to cut off `total` images; '0' cuts none. Raises ConfigError when nothing would be left."""
    if text.strip() in ("0", "0%"):
        return 0
    count = parse_size(text, total)
    if count >= total:
        raise ConfigError(f"{field}={text}: {total:,} images are all there are; nothing is left to train on")
    return count


def cut(total: int, sizes: list[int], seed: int) -> list[np.ndarray]:
    """Indices of a uniformly random partition of range(total): one array a size, then the rest; each sorted."""
    shuffled = permute(np.arange(total), total, seed)
    edges = np.cumsum(sizes)
    return [np.sort(part) for part in np.split(shuffled, edges)]
