"""Characters of real typefaces: images without a download, as many as wanted.

Every image is a deterministic function of (seed, split, index): its class (characters in turn), its face, and a
random position, scale, rotation, shear, contrast and noise. Whole type families are held out as `test`; `val` has
other images of the training faces. The original behind an image is its outline: that is what a larger subset has
more of, and the report counts them.
"""

import ctypes
import hashlib
from pathlib import Path

import freetype
import matplotlib
import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import png_sample, raw_folder
from harness.data.sources.fonts import (
    Face,
    designs,
    held_out,
    merge_equal,
    open_font,
    read_faces,
    shared_characters,
)
from harness.data.subset import parse_size

BANK_PIXELS = 64  # side of the bitmaps that images are sampled from
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


def open_glyphs(cfg: DataConfig) -> Source:
    """Raises DatasetError when the folder holds no usable font, or too few families to hold one out."""
    shipped = raw_folder(cfg) if cfg.fetch and not cfg.fonts else Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    folder = Path(cfg.fonts) if cfg.fonts else shipped
    faces, left_out = read_faces(folder, cfg)
    characters = shared_characters(faces, cfg)
    classes = merge_equal(faces, characters)
    design = designs(faces)
    test_designs = held_out(design)
    is_test = [name in test_designs for name in design]
    by_split = {
        "train": [face for face, test in zip(faces, is_test, strict=True) if not test],
        "test": [face for face, test in zip(faces, is_test, strict=True) if test],
    }
    by_split["val"] = by_split["train"]
    sizes = {"train": cfg.samples or "100k", "val": cfg.val_samples, "test": cfg.test_samples}
    banks = {id(part): Bank(part, classes) for part in (by_split["train"], by_split["test"])}
    splits = {
        split: glyph_split(split, parse_size(sizes[split], None), banks[id(by_split[split])], cfg)
        for split in ("train", "val", "test")
    }
    listing = repr([(face.name, sorted(face.outlines.items())) for face in faces])
    return Source(
        class_names=[members[0] for members in classes],
        splits=splits,
        fingerprint=hashlib.sha256(listing.encode()).hexdigest(),
        warm=lambda: [bank.render() for bank in banks.values()],
        notes={
            "origins": "distinct outlines",
            "faces": {split: sorted(face.name for face in part) for split, part in by_split.items()},
            "held_out_families": sorted({face.family for face in by_split["test"]}),
            "faces_left_out": dict(left_out),
            "merged_characters": ["".join(members) for members in classes if len(members) > 1],
        },
    )


class Bank:
    """Bitmaps of every face and class, one scale and baseline a face, so that o and O keep their sizes."""

    def __init__(self, faces: list[Face], classes: list[list[str]]) -> None:
        self.classes = classes
        self.faces = len(faces)
        self.origins = [
            [int.from_bytes(face.outlines[members[0]][:8], "little") for members in classes] for face in faces
        ]
        self._files = [(face.path, face.number) for face in faces]
        self._bitmaps: np.ndarray | None = None

    def render(self) -> np.ndarray:
        """(faces, classes, BANK_PIXELS, BANK_PIXELS) uint8, rendered at first use."""
        if self._bitmaps is None:
            characters = [members[0] for members in self.classes]
            self._bitmaps = np.empty((self.faces, len(characters), BANK_PIXELS, BANK_PIXELS), np.uint8)
            for face, (path, number) in enumerate(self._files):
                self._bitmaps[face] = render_face(open_font(path, number), characters)
        return self._bitmaps

    def bitmap(self, face: int, label: int) -> Image.Image:
        """The glyph as a grey image of BANK_PIXELS squared, ink 255."""
        pixels = self.render()[face, label]
        return Image.frombuffer("L", (BANK_PIXELS, BANK_PIXELS), pixels, "raw", "L", 0, 1)


def render_face(font: freetype.Face, characters: list[str]) -> np.ndarray:
    """(classes, BANK_PIXELS, BANK_PIXELS) uint8; scaled so that most glyphs of the face fit in 85 % of the side."""
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
    # freetype-py's own `buffer` builds a Python list, a number a pixel
    content = ctypes.string_at(bitmap._FT_Bitmap.buffer, bitmap.rows * bitmap.pitch) if bitmap.rows else b""
    ink = np.frombuffer(content, np.uint8).reshape(bitmap.rows, bitmap.pitch)[:, : bitmap.width]
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
