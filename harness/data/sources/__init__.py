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
    converted: tuple[str, ...] = ()  # what odd images took to become pixels (harness.data.images), to be counted


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
    warm: Callable[[], object] = lambda: (
        None
    )  # called once before worker processes are forked: they share what it makes


class Reader(NamedTuple):
    """How a source is opened, and which optional fields of DataConfig it reads."""

    open: Callable[[DataConfig], Source]
    reads: frozenset[str]


# Fields that only some sources read. One that is set and not read would be a setting without effect: an error.
OPTIONAL = ("samples", "val_samples", "test_samples", "path", "fonts", "characters", "min_characters")


def open_source(cfg: DataConfig) -> Source:
    """The source that `cfg.source` names.

    Raises ConfigError for an unknown one and for a field that it does not read, DatasetError when it is not there.
    """
    from harness.data.sources import arrays, folder, glyphs

    splits = {"val_samples", "test_samples"}
    readers = {
        "glyphs": Reader(glyphs.open_glyphs, frozenset({"samples", "fonts", "characters", "min_characters"} | splits)),
        "fashion_mnist": Reader(arrays.open_fashion_mnist, frozenset({"path", "val_samples"})),
        "digits": Reader(arrays.open_digits, frozenset(splits)),
        "folder": Reader(folder.open_folder, frozenset({"path"} | splits)),
    }
    if cfg.source not in readers:
        raise ConfigError(f"data.source={cfg.source}.{near_matches(cfg.source, readers)}")
    reader = readers[cfg.source]
    defaults = DataConfig()
    for name in OPTIONAL:
        if name not in reader.reads and getattr(cfg, name) != getattr(defaults, name):
            raise ConfigError(
                f"data.{name}={getattr(cfg, name)}: the source {cfg.source} does not read it; take it away "
                f"(it reads {', '.join(sorted(reader.reads))})"
            )
    if cfg.channels not in ((1, 3) if cfg.source == "folder" else (1,)):
        raise ConfigError(
            f"data.channels={cfg.channels}: the source {cfg.source} is stored "
            + ("with 1 (grey) or 3 (RGB)" if cfg.source == "folder" else "with 1: its images are grey")
        )
    return reader.open(cfg)
