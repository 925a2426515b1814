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
    warm: Callable[[], object] = lambda: None  # once, before workers are forked: they share what it makes
    done: Callable[[], object] = lambda: None  # once everything is packed: what was made on the way may go


class Reader(NamedTuple):
    """How a source is opened, and which optional fields of DataConfig it reads."""

    open: Callable[[DataConfig], Source]
    reads: frozenset[str]


# Fields that only some sources read. One that is set and not read would be a setting without effect: an error.
SPLITS = {"val_samples", "test_samples"}
ENCODED = {"codec", "quality", "verify", "max_pixels", "val_within_groups"}
COLUMNS = {"image_column", "label_column", "group_column"}
GENERATED = {"samples", "fonts", "fonts_left_out", "font_family", "characters", "min_characters"}
OPTIONAL = sorted(GENERATED | SPLITS | ENCODED | COLUMNS | {"path", "group_by", "classes", "torchvision"})


def readers() -> dict[str, Reader]:
    """Every source by its name."""
    from harness.data.sources import arrays, elpv, folder, glyphs, icons, lists, parquet, shards, vision

    return {
        "glyphs": Reader(glyphs.open_glyphs, frozenset(GENERATED | SPLITS)),
        "fashion_mnist": Reader(arrays.open_fashion_mnist, frozenset({"path", "val_samples"})),
        "mnist": Reader(arrays.open_mnist, frozenset({"path", "val_samples"})),
        "digits": Reader(arrays.open_digits, frozenset(SPLITS)),
        "folder": Reader(folder.open_folder, frozenset({"path", "group_by", "classes"} | SPLITS | ENCODED)),
        "list": Reader(lists.open_list, frozenset({"path", "group_by"} | COLUMNS | SPLITS | ENCODED)),
        "parquet": Reader(parquet.open_parquet, frozenset({"path"} | COLUMNS | SPLITS | ENCODED)),
        "webdataset": Reader(shards.open_shards, frozenset({"path", "label_column"} | SPLITS | ENCODED)),
        "torchvision": Reader(vision.open_torchvision, frozenset({"path", "torchvision"} | SPLITS | ENCODED)),
        "icons": Reader(icons.open_icons, frozenset({"path", "val_within_groups"} | SPLITS)),
        "elpv": Reader(elpv.open_elpv, frozenset({"path"} | SPLITS | ENCODED)),
    }


GREY = ("glyphs", "fashion_mnist", "mnist", "digits", "elpv")
CODECS = ("auto", "keep", "png", "jpeg", "webp")


def open_source(cfg: DataConfig) -> Source:
    """The source that `cfg.source` names.

    Raises ConfigError for an unknown one and for a field that it does not read, DatasetError when it is not there.
    """
    known = readers()
    if cfg.source not in known:
        raise ConfigError(f"data.source={cfg.source}.{near_matches(cfg.source, known)}")
    reader = known[cfg.source]
    defaults = DataConfig()
    for name in OPTIONAL:
        if name not in reader.reads and getattr(cfg, name) != getattr(defaults, name):
            raise ConfigError(
                f"data.{name}={getattr(cfg, name)}: the source {cfg.source} does not read it; take it away "
                f"(it reads {', '.join(sorted(reader.reads))})"
            )
    check_values(cfg)
    return reader.open(cfg)


def check_values(cfg: DataConfig) -> None:
    """Raises ConfigError for values that cannot work, before anything is read."""
    grey = cfg.source in GREY
    if cfg.channels not in ((1,) if grey else (1, 3)):
        raise ConfigError(
            f"data.channels={cfg.channels}: the source {cfg.source} is stored "
            + ("with 1: its images are grey" if grey else "with 1 (grey) or 3 (RGB)")
        )
    if cfg.font_family not in ("name", "folder"):
        raise ConfigError(f"data.font_family={cfg.font_family}: name or folder")
    if cfg.codec not in CODECS:
        raise ConfigError(f"data.codec={cfg.codec}.{near_matches(cfg.codec, CODECS)}")
    if cfg.verify not in ("pixels", "headers"):
        raise ConfigError(f"data.verify={cfg.verify}: pixels or headers")
    if cfg.codec == "keep" and cfg.image_size is not None:
        raise ConfigError("data.codec=keep: bytes cannot be kept and resized; take data.image_size=null")
    if not 1 <= cfg.quality <= 100:
        raise ConfigError(f"data.quality={cfg.quality}: from 1 to 100")
