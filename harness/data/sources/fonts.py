"""Font files: which faces can be used, which characters they share, which of them are one class, one design."""

import ctypes
import hashlib
import unicodedata
from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import freetype
import numpy as np

from harness.config import DataConfig
from harness.errors import DatasetError

FONT_SUFFIXES = {".ttf", ".otf", ".ttc", ".pfb"}
LATIN62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SAME_DESIGN = 0.05  # of a face's outlines: dots and dashes alone are less
TEST_SHARE = (0.15, 0.35)  # of the faces, in whole designs


@dataclass(frozen=True)
class Face:
    """One font file: outline digests of its letters and digits, and the family it belongs to."""

    path: Path
    number: int  # in a collection (.ttc); 0 elsewhere
    family: str  # first word of the family name: DejaVu Sans, DejaVu Serif and DejaVu Sans Mono are one design
    outlines: dict[str, bytes]  # character -> digest of its outline in font units

    @property
    def name(self) -> str:
        return f"{self.path.name}#{self.number}" if self.number else self.path.name


def read_faces(folder: Path, cfg: DataConfig) -> tuple[list[Face], Counter[str]]:
    """Every usable face below `folder`, sorted by name; others counted by reason."""
    if not folder.is_dir():
        raise DatasetError(f"data.fonts={folder}: there is no such folder")
    faces, seen, left_out = [], set(), Counter[str]()
    for path in sorted(path for path in folder.rglob("*") if path.suffix.lower() in FONT_SUFFIXES):
        if path.name.startswith("."):  # what macOS leaves beside files
            continue
        if is_left_out(path.relative_to(folder), cfg.fonts_left_out or []):
            left_out["data.fonts_left_out"] += 1
            continue
        number, count = 0, 1
        while number < count:
            try:
                font = open_font(path, number)
                count = font.num_faces
                face = read_face(font, path, number, cfg)
            except freetype.FT_Exception as error:
                face = f"unreadable: {error}"
            number += 1
            if isinstance(face, str):
                left_out[face] += 1
                continue
            identity = hashlib.sha256(repr(sorted(face.outlines.items())).encode()).digest()
            if identity in seen:
                left_out["same outlines as another face"] += 1
            else:
                seen.add(identity)
                faces.append(face)
    if len(faces) < 2:
        raise DatasetError(f"{folder}: {len(faces)} usable text faces ({dict(left_out)}); at least 2 are needed")
    return faces, left_out


def is_left_out(path: Path, words: list[str]) -> bool:
    """Whether a folder on the way to a font is one of `words`, or the file begins with one."""
    return any(word in path.parts[:-1] or path.name.startswith(word) for word in words)


def open_font(path: Path, number: int) -> freetype.Face:
    """A face of a font file, to be asked by Unicode. Raises freetype.FT_Exception."""
    font = freetype.Face(str(path), number)
    font.select_charmap(freetype.FT_ENCODING_UNICODE)
    return font


def read_face(font: freetype.Face, path: Path, number: int, cfg: DataConfig) -> Face | str:
    """A text face with the characters that are wanted, else the reason why it is none."""
    alphabet = letters_and_digits(font)
    if len(alphabet) < cfg.min_characters:  # a symbol face maps signs to a few letters' codes
        return "too few letters and digits"
    explicit = explicit_characters(cfg)
    outlines = read_outlines(font, [char for char in alphabet if not explicit or char in explicit])
    if len(outlines) < len(explicit):
        return "lacks one of data.characters"
    words = (font.family_name or b"").decode("latin1").split()
    if cfg.font_family == "folder":
        words = [path.parent.name]
    return Face(path, number, words[0] if words else path.stem, outlines)


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
            outlines[char] = outline_digest(outline)
    return outlines


def outline_digest(outline: freetype.Outline) -> bytes:
    """sha256 over points, tags and contours. Read from memory: freetype-py's lists take longer than all the rest."""
    raw = outline._FT_Outline
    points = ctypes.string_at(raw.points, ctypes.sizeof(raw.points._type_) * raw.n_points)
    wide = np.frombuffer(points, ctypes.c_long).astype("<i8")  # a long has 4 or 8 bytes
    parts = (wide.tobytes(), ctypes.string_at(raw.tags, raw.n_points), repr(outline.contours).encode())
    return hashlib.sha256(b"|".join(parts)).digest()


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


def designs(faces: list[Face]) -> list[str]:
    """The design that each face belongs to: its family, joined with every family that it shares outlines with.

    Renamed copies (Bitstream Vera and DejaVu, Nimbus and TeX Gyre) would otherwise be in training and in test. Two
    families are one design when more than SAME_DESIGN of the outlines of a face of one are also the other's.
    """
    families = sorted({face.family for face in faces})
    owners: dict[bytes, set[str]] = {}
    for face in faces:
        for outline in face.outlines.values():
            owners.setdefault(outline, set()).add(face.family)
    design = {family: family for family in families}
    for face in faces:
        shared = Counter(other for outline in face.outlines.values() for other in owners[outline])
        for other, count in shared.items():
            if other != face.family and count > SAME_DESIGN * len(face.outlines):
                low, high = sorted((design[face.family], design[other]))
                design = {family: low if of == high else of for family, of in design.items()}
    return [design[face.family] for face in faces]


def held_out(families: list[str]) -> set[str]:
    """Designs for `test`: in the order of their names' digests, each that keeps the share of faces in bounds.

    A design is held out whole. Raises DatasetError when none fits.
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
