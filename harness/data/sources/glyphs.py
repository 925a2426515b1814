"""Characters of real typefaces: images without a download, as many as wanted.

Every image is a deterministic function of (seed, split, index): its class (characters in turn), its face, and a
random position, scale, rotation, shear, contrast and noise. Whole type families are held out as `test`; `val` has
other images of the training faces. The original behind an image is its outline: that is what a larger subset has
more of, and the report counts them.
"""

import hashlib
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import freetype
import matplotlib
import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import png_sample
from harness.data.subset import parse_size
from harness.errors import DatasetError

FONT_SUFFIXES = {".ttf", ".otf", ".ttc", ".pfb"}
BANK_PIXELS = 64  # side of the bitmaps that images are sampled from
LATIN62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
TEST_SHARE = (0.15, 0.35)  # of the faces, in whole families
SPLIT_NUMBERS = {"train": 0, "val": 1, "test": 2}
LOAD = freetype.FT_LOAD_NO_HINTING | freetype.FT_LOAD_NO_BITMAP

# What varies between images, uniformly unless said otherwise. Shares are of the image's side.
ROTATION_DEGREES = 15.0
SHEAR = 0.25
SCALE = (0.65, 1.05)
SHIFT = 0.10
BRIGHT = (0.5, 1.0)  # ink
DARK = (0.0, 0.25)  # ground
NOISE = 0.08  # largest standard deviation


@dataclass(frozen=True)
class Face:
    """One font file: outline digests of its letters and digits, and the family it belongs to."""

    path: Path
    family: str  # first word of the family name: DejaVu Sans, DejaVu Serif and DejaVu Sans Mono are one design
    outlines: dict[str, bytes]  # character -> digest of its outline in font units


def open_glyphs(cfg: DataConfig) -> Source:
    """Raises DatasetError when the folder holds no usable font, or too few families to hold one out."""
    folder = Path(cfg.fonts) if cfg.fonts else Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    faces, left_out = read_faces(folder, cfg)
    characters = shared_characters(faces, cfg)
    classes = merge_equal(faces, characters)
    test_families = held_out([face.family for face in faces])
    by_split = {
        "train": [face for face in faces if face.family not in test_families],
        "test": [face for face in faces if face.family in test_families],
    }
    by_split["val"] = by_split["train"]
    sizes = {"train": cfg.samples or "100k", "val": cfg.val_samples, "test": cfg.test_samples}
    banks = {id(part): Bank(part, classes) for part in (by_split["train"], by_split["test"])}
    splits = {
        split: glyph_split(split, parse_size(sizes[split], None), banks[id(by_split[split])], cfg)
        for split in ("train", "val", "test")
    }
    listing = repr([(face.path.name, sorted(face.outlines.items())) for face in faces])
    return Source(
        class_names=[members[0] for members in classes],
        splits=splits,
        fingerprint=hashlib.sha256(listing.encode()).hexdigest(),
        notes={
            "origins": "distinct outlines",
            "faces": {split: sorted(face.path.name for face in part) for split, part in by_split.items()},
            "held_out_families": sorted(test_families),
            "faces_left_out": dict(left_out),
            "merged_characters": ["".join(members) for members in classes if len(members) > 1],
        },
    )


def read_faces(folder: Path, cfg: DataConfig) -> tuple[list[Face], Counter[str]]:
    """Every usable face below `folder`, sorted by name; others counted by reason."""
    if not folder.is_dir():
        raise DatasetError(f"data.fonts={folder}: there is no such folder")
    faces, seen, left_out = [], set(), Counter[str]()
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in FONT_SUFFIXES):
        try:
            font = freetype.Face(str(path))
            font.select_charmap(freetype.FT_ENCODING_UNICODE)
            alphabet = letters_and_digits(font)
            explicit = explicit_characters(cfg)
            outlines = read_outlines(font, [char for char in alphabet if not explicit or char in explicit])
            family = (font.family_name or b"?").decode("latin1").split()[0]
        except freetype.FT_Exception as error:
            left_out[f"unreadable: {error}"] += 1
            continue
        identity = hashlib.sha256(repr(sorted(outlines.items())).encode()).digest()
        if len(alphabet) < cfg.min_characters:  # a symbol face maps signs to a few letters' codes
            left_out["too few letters and digits"] += 1
        elif len(outlines) < len(explicit):
            left_out["lacks one of data.characters"] += 1
        elif identity in seen:
            left_out["same outlines as another face"] += 1
        else:
            seen.add(identity)
            faces.append(Face(path, family, outlines))
    if len(faces) < 2:
        raise DatasetError(f"{folder}: {len(faces)} usable text faces ({dict(left_out)}); at least 2 are needed")
    return faces, left_out


def explicit_characters(cfg: DataConfig) -> str:
    """The characters that the user asked for; '' = every letter and digit that all faces share."""
    if cfg.characters in (None, "auto"):
        return ""
    return LATIN62 if cfg.characters == "latin62" else "".join(sorted(set(str(cfg.characters))))


def letters_and_digits(font: freetype.Face) -> list[str]:
    """Characters of a face that Unicode calls letters or decimal digits, sorted."""
    codes = (chr(code) for code, _ in font.get_chars())
    return sorted(char for char in codes if unicodedata.category(char)[0] == "L" or unicodedata.category(char) == "Nd")


def read_outlines(font: freetype.Face, characters: list[str]) -> dict[str, bytes]:
    """Digest of each character's outline in font units; characters without ink are left out."""
    outlines = {}
    for char in characters:
        font.load_char(char, freetype.FT_LOAD_NO_SCALE)
        outline = font.glyph.outline
        if outline.n_points > 0:
            text = repr((outline.points, list(outline.tags), outline.contours))
            outlines[char] = hashlib.sha256(text.encode()).digest()
    return outlines


def shared_characters(faces: list[Face], cfg: DataConfig) -> list[str]:
    """Characters that every face has, sorted. Raises DatasetError when there are fewer than two."""
    shared = sorted(set.intersection(*(set(face.outlines) for face in faces)))
    if len(shared) < 2:
        raise DatasetError(
            f"{len(faces)} faces share {len(shared)} characters; ask for some with data.characters=latin62"
        )
    return shared


def merge_equal(faces: list[Face], characters: list[str]) -> list[list[str]]:
    """Classes: characters with equal outlines in more than half of the faces are one (Latin A, Greek Alpha)."""
    equal: Counter[tuple[str, str]] = Counter()
    for face in faces:
        by_outline: dict[bytes, list[str]] = {}
        for char in characters:
            by_outline.setdefault(face.outlines[char], []).append(char)
        for members in by_outline.values():
            equal.update(combinations(members, 2))
    parent = {char: char for char in characters}

    def root(char: str) -> str:
        while parent[char] != char:
            char = parent[char]
        return char

    for (first, second), count in sorted(equal.items()):
        if 2 * count > len(faces):
            low, high = sorted((root(first), root(second)))
            parent[high] = low
    classes: dict[str, list[str]] = {}
    for char in characters:
        classes.setdefault(root(char), []).append(char)
    return list(classes.values())


def held_out(families: list[str]) -> set[str]:
    """Families for `test`: in the order of their names' digests, each that keeps the share of faces in bounds.

    A family is held out whole, since its faces share a design. Raises DatasetError when no family fits.
    """
    counts = Counter(families)
    chosen: set[str] = set()
    faces = 0
    for family in sorted(counts, key=lambda name: hashlib.sha256(name.encode()).digest()):
        if faces >= TEST_SHARE[0] * len(families):
            break
        if faces + counts[family] <= TEST_SHARE[1] * len(families):
            chosen.add(family)
            faces += counts[family]
    if not chosen:
        raise DatasetError(f"no family of {dict(counts)} can be held out as test: give fonts of more families")
    return chosen


class Bank:
    """Bitmaps of every face and class, one scale and baseline a face, so that o and O keep their sizes."""

    def __init__(self, faces: list[Face], classes: list[list[str]]) -> None:
        self.classes = classes
        self.faces = len(faces)
        self.origins = [
            [int.from_bytes(face.outlines[members[0]][:8], "little") for members in classes] for face in faces
        ]
        self._files = [face.path for face in faces]
        self._bitmaps: np.ndarray | None = None

    def bitmap(self, face: int, label: int) -> Image.Image:
        """The glyph as a grey image of BANK_PIXELS squared, ink 255; rendered at first use."""
        if self._bitmaps is None:
            self._bitmaps = np.stack([render_face(path, [m[0] for m in self.classes]) for path in self._files])
        return Image.fromarray(self._bitmaps[face, label])


def render_face(path: Path, characters: list[str]) -> np.ndarray:
    """(classes, BANK_PIXELS, BANK_PIXELS) uint8; scaled so that most glyphs of the face fit in 85 % of the side."""
    font = freetype.Face(str(path))
    font.select_charmap(freetype.FT_ENCODING_UNICODE)
    font.set_pixel_sizes(0, 256)
    boxes = []
    for char in characters:
        font.load_char(char, LOAD)
        box = font.glyph.outline.get_bbox()
        boxes.append((box.xMin / 64, box.yMin / 64, box.xMax / 64, box.yMax / 64))
    edges = np.array(boxes)
    bottom, top = np.percentile(edges[:, 1], 10), np.percentile(edges[:, 3], 90)
    width = np.percentile(edges[:, 2] - edges[:, 0], 95)
    pixels = max(4, int(256 * 0.85 * BANK_PIXELS / max(top - bottom, width)))
    font.set_pixel_sizes(0, pixels)
    baseline = round(BANK_PIXELS / 2 + (top + bottom) / 2 * pixels / 256)
    bank = np.zeros((len(characters), BANK_PIXELS, BANK_PIXELS), np.uint8)
    for number, char in enumerate(characters):
        font.load_char(char, LOAD | freetype.FT_LOAD_RENDER)
        paste(bank[number], font.glyph, baseline)
    return bank


def paste(canvas: np.ndarray, glyph: freetype.GlyphSlot, baseline: int) -> None:
    """Put a rendered glyph on the canvas, centred sideways, on the baseline; what sticks out is cut."""
    bitmap = glyph.bitmap
    ink = np.array(bitmap.buffer, np.uint8).reshape(bitmap.rows, -1)[:, : bitmap.width]
    top, left = baseline - glyph.bitmap_top, (BANK_PIXELS - bitmap.width) // 2
    y, x = max(0, top), max(0, left)
    bottom, right = min(BANK_PIXELS, top + bitmap.rows), min(BANK_PIXELS, left + bitmap.width)
    if bottom > y and right > x:
        canvas[y:bottom, x:right] = ink[y - top : bottom - top, x - left : right - left]


def glyph_split(split: str, samples: int, bank: Bank, cfg: DataConfig) -> SourceSplit:
    """`samples` images of a split. More samples only add images: image i stays what it is."""
    size = cfg.image_size or 32

    def get(i: int) -> Sample:
        rng = np.random.Generator(np.random.Philox(key=[cfg.seed, SPLIT_NUMBERS[split] << 48 | i]))
        label, face = i % len(bank.classes), int(rng.integers(bank.faces))
        pixels = draw(bank.bitmap(face, label), rng, size)
        return png_sample(f"{split}{i:09d}", pixels, label, bank.origins[face][label])

    return SourceSplit(samples, get, lambda i: f"{split}{i:09d}")


def draw(glyph: Image.Image, rng: np.random.Generator, size: int) -> np.ndarray:
    """One image (size, size) uint8: the glyph under a random affine map, contrast and noise."""
    angle = np.deg2rad(rng.uniform(-ROTATION_DEGREES, ROTATION_DEGREES))
    scale, shear = rng.uniform(*SCALE), rng.uniform(-SHEAR, SHEAR)
    shift = rng.uniform(-SHIFT, SHIFT, 2) * BANK_PIXELS
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    inverse = rotation @ np.array([[1.0, shear], [0.0, 1.0]]) / scale
    centre = np.full(2, BANK_PIXELS / 2)
    offset = centre - inverse @ (centre + shift)
    moved = glyph.transform(
        glyph.size, Image.Transform.AFFINE, (*inverse[0], offset[0], *inverse[1], offset[1]), Image.Resampling.BILINEAR
    ).resize((size, size), Image.Resampling.BOX)
    ground, ink = rng.uniform(*DARK), rng.uniform(*BRIGHT)
    values = ground + (ink - ground) * (np.asarray(moved, np.float32) / 255)
    values += rng.uniform(0, NOISE) * rng.standard_normal((size, size), np.float32)
    return np.clip(np.round(values * 255), 0, 255).astype(np.uint8)
