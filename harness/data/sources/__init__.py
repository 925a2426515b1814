"""Where images come from: every source is class names and splits of samples that can be read in any order.

Random access is what makes packing simple: the global shuffle is a permutation of indices, and a shard is a pure
function of the indices that fall into it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.config import DataConfig
from harness.errors import ConfigError, near_matches


class Sample(NamedTuple):
    """One image as it goes into a shard."""

    key: str  # unique in its split; names the image at its source
    data: bytes  # encoded
    extension: str  # png | jpg | webp
    label: int
    pixels_digest: bytes  # of the decoded pixels
    origin: int  # distinct originals behind images: equal numbers, equal original


@dataclass(frozen=True)
class SourceSplit:
    """`samples` images; get(i) raises BadImageError for one that cannot be used."""

    samples: int
    get: Callable[[int], Sample]
    name_of: Callable[[int], str]  # what to call image i in a list of dropped ones


@dataclass(frozen=True)
class Source:
    """An opened source. `fingerprint` changes when what it would give changes."""

    class_names: list[str]
    splits: dict[str, SourceSplit]
    fingerprint: str
    notes: dict[str, Any] = field(default_factory=dict)


def open_source(cfg: DataConfig) -> Source:
    """The source that `cfg.source` names. Raises ConfigError for an unknown one, DatasetError when it is not there."""
    from harness.data.sources import arrays, folder, glyphs

    readers: dict[str, Callable[[DataConfig], Source]] = {
        "glyphs": glyphs.open_glyphs,
        "fashion_mnist": arrays.open_fashion_mnist,
        "digits": arrays.open_digits,
        "folder": folder.open_folder,
    }
    if cfg.source not in readers:
        raise ConfigError(f"data.source={cfg.source}.{near_matches(cfg.source, readers)}")
    return readers[cfg.source](cfg)
