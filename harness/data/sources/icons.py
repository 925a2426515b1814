"""Icons by concept: drawings of one thing by many authors, from the npm package @iconify/json.

The label is the icon's name without the words that say how it is drawn (outline, filled, 24). A concept counts when
at least MIN_SETS icon sets draw it. The group is the author of the icon's set, so that a test author was never trained
on. Sets whose licence forbids commercial use are left out; equal drawings are kept once. Dark on white, as they are.
"""

import hashlib
import io
import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.images import BadImageError, on_white
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import png_sample, raw_folder
from harness.data.sources.entries import Entries, cut_splits, fingerprint, group_counts
from harness.errors import DatasetError

MIN_SETS = 10  # icon sets that draw a concept at least
MAX_CLASSES = 1000  # the concepts with most icons
BLANK = 3.0  # standard deviation of the grey values below which nothing is to be seen
# Words of an icon's name that say how it is drawn, not what.
STYLE_WORDS = frozenset(
    [
        "outline",
        "outlined",
        "fill",
        "filled",
        "bold",
        "light",
        "thin",
        "duotone",
        "twotone",
        "two",
        "tone",
        "linear",
        "broken",
        "sharp",
        "rounded",
        "round",
        "regular",
        "solid",
        "line",
        "lined",
        "lines",
        "stroke",
        "stroked",
        "fas",
        "far",
        "fal",
        "sm",
        "md",
        "lg",
        "xl",
        "small",
        "large",
        "big",
        "mini",
        "micro",
        "alt",
        "variant",
        "box",
        "o",
        "s",
        "b",
        "ui",
        "bulk",
        "dash",
        "dashed",
        "color",
        "colored",
        "colour",
        "colours",
        "flat",
        "rtl",
        "ltr",
        "circle",
        "circled",
        "square",
        "squared",
        "wght",
        "px",
        "ios",
        "logo",
        "icon",
        "icons",
        "medium",
        "semi",
        "semibold",
        "remix",
        "doodle",
        "duo",
        "glyph",
        "free",
    ]
)
# Sets that redraw or carry on one another: their first words, and the group that they form.
LINEAGES = {
    **{word: word for word in ("noto", "emojione", "fa", "fluent", "twemoji", "openmoji", "line")},
    **dict.fromkeys(("material", "ic", "mdi"), "material"),
}


class Icon(NamedTuple):
    """Where an icon is: its set's prefix and its name there."""

    prefix: str
    name: str


def open_icons(cfg: DataConfig) -> Source:
    """Raises DatasetError where the package is not there, is another one, or resvg-py is not installed."""
    package = raw_folder(cfg)
    try:
        import resvg_py  # noqa: F401
    except ImportError as error:
        raise DatasetError("drawing icons needs resvg-py: pip install resvg-py") from error
    about = read_json_file(package / "collections.json")
    sets, left_out = read_sets(package, about)
    concepts, repeated = find_concepts(sets)
    names = sorted(sorted(concepts, key=lambda name: (-len(concepts[name]), name))[:MAX_CLASSES])
    entries, icons = Entries(), []
    for label, name in enumerate(names):
        for icon in concepts[name]:
            entries.add(f"{icon.prefix}:{icon.name}", 0, label, group_of_set(icon.prefix, about))
            icons.append(icon)
    splits = cut_splits(entries, {"train": np.arange(len(entries))}, cfg)
    return Source(
        class_names=names,
        splits={split: icon_split(sets, icons, entries, rows, cfg) for split, rows in splits.items() if len(rows)},
        fingerprint=fingerprint(entries, splits),
        notes={
            "origins": "distinct drawings",
            "groups": group_counts(entries, splits),
            "icon_sets": len({icon.prefix for icon in icons}),
            "sets_left_out": left_out,
            "equal_drawings_left_out": repeated,
            "licences": dict(Counter(licence_of(icon.prefix, about) for icon in icons).most_common()),
        },
    )


def read_json_file(path: Path) -> dict[str, Any]:
    """Raises DatasetError for a file that is not there or no JSON object."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path}: not the npm package @iconify/json ({error})") from error
    if not isinstance(value, dict):
        raise DatasetError(f"{path}: not a JSON object")
    return value


def read_sets(package: Path, about: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Every icon set by its prefix, and why others are left out."""
    sets, left_out = {}, {}
    for path in sorted((package / "json").glob("*.json")):
        content = read_json_file(path)
        prefix = str(content.get("prefix", path.stem))
        licence = licence_of(prefix, about)
        if "NC" in re.split(r"[^A-Za-z]", licence):
            left_out[prefix] = licence
        else:
            sets[prefix] = content
    if not sets:
        raise DatasetError(f"{package / 'json'}: no icon set there")
    return sets, left_out


def licence_of(prefix: str, about: dict[str, Any]) -> str:
    """SPDX name of a set's licence."""
    licence = about.get(prefix, {}).get("license") or {}
    return str(licence.get("spdx") or licence.get("title") or "unknown")


def find_concepts(sets: dict[str, dict[str, Any]]) -> tuple[dict[str, list[Icon]], int]:
    """{concept: its icons}, of those that MIN_SETS sets draw; and how many equal drawings are left out."""
    concepts: defaultdict[str, list[Icon]] = defaultdict(list)
    for prefix, content in sets.items():
        for name, icon in content["icons"].items():
            concept = concept_of(name)
            if concept and not icon.get("hidden"):
                concepts[concept].append(Icon(prefix, name))
    wide = {name: icons for name, icons in concepts.items() if len({icon.prefix for icon in icons}) >= MIN_SETS}
    seen: set[bytes] = set()
    repeated = 0
    for name in sorted(wide):
        fresh = []
        for icon in wide[name]:
            digest = hashlib.sha256(svg_of(sets, icon, 32).encode()).digest()
            if digest in seen:
                repeated += 1
            else:
                seen.add(digest)
                fresh.append(icon)
        wide[name] = fresh
    return wide, repeated


def concept_of(name: str) -> str:
    """'arrow-left-outline-24' -> 'arrow-left'; '' where only words of style are left."""
    words = (word for word in re.split(r"[-_]", name.lower()) if word and not word.isdigit())
    return "-".join(word for word in words if word not in STYLE_WORDS)


def group_of_set(prefix: str, about: dict[str, Any]) -> str:
    """Sets of one author, or of one lineage, are one group."""
    first = prefix.split("-")[0].rstrip("0123456789")
    if first in LINEAGES:
        return LINEAGES[first]
    author = about.get(prefix, {}).get("author") or {}
    return str(author.get("name") or prefix)


def svg_of(sets: dict[str, dict[str, Any]], icon: Icon, size: int) -> str:
    """The icon as an SVG of size x size pixels."""
    content = sets[icon.prefix]
    drawing = content["icons"][icon.name]

    def value(name: str, default: int) -> Any:
        return drawing.get(name, content.get(name, default))

    box = f"{value('left', 0)} {value('top', 0)} {value('width', 16)} {value('height', 16)}"
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box}" width="{size}" height="{size}">{drawing["body"]}</svg>'
    )


def icon_split(
    sets: dict[str, dict[str, Any]], icons: list[Icon], entries: Entries, rows: np.ndarray, cfg: DataConfig
) -> SourceSplit:
    """Icons drawn when they are asked for."""
    size = cfg.image_size or 32

    def get(k: int) -> Sample:
        i = int(rows[k])
        pixels = draw(svg_of(sets, icons[i], size), size, cfg.channels)
        name = hashlib.sha256(entries.names[i].encode()).hexdigest()[:12]
        return png_sample(f"{k:08d}-{name}", pixels, entries.labels[i])

    return SourceSplit(len(rows), get, lambda k: entries.names[int(rows[k])])


def draw(svg: str, size: int, channels: int) -> np.ndarray:
    """uint8 (size, size) or (size, size, 3) on white. Raises BadImageError for a drawing of nothing."""
    import resvg_py

    try:
        data = bytes(resvg_py.svg_to_bytes(svg_string=svg, width=size, height=size))
        image = on_white(Image.open(io.BytesIO(data), formats=("PNG",)).convert("RGBA"))
    except Exception as error:  # resvg raises ValueError and its own kinds for drawings that it cannot read
        raise BadImageError("not_an_image", str(error)) from error
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    if pixels.shape[:2] != (size, size):
        raise BadImageError("not_square", f"{pixels.shape[1]} x {pixels.shape[0]}")
    if pixels.std() < BLANK:
        raise BadImageError("blank", "nothing is to be seen")
    return pixels
