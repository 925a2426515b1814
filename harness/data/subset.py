"""Subsets: nested prefixes of the packed order, and draws of them. Pure functions; no copies, no lists of ids.

Draw 0 of size N is the first N samples. Draw k is the window of N that starts at total x (van der Corput number of k),
wrapping: a new draw moves no old one, sizes are nested within a draw, and draws are disjoint while they fit.
"""

import re
from dataclasses import dataclass

import numpy as np

from harness.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(%|[kMGB]?)")


def parse_size(text: str, total: int | None) -> int:
    """'9M', '300k', '1234' or '10%' to a number of images.

    Args:
        total: how many there are; None where that does not limit the number (a horizon of samples seen).
    Raises ConfigError for what is no size, for nothing, and for more than there are.
    """
    match = SIZE.fullmatch(str(text).strip())
    if match is None:
        raise ConfigError(f"size {text!r}: not a number of images like 9M, 300k, 1234 or 10%")
    number, unit = match.groups()
    if unit == "%":
        if total is None:
            raise ConfigError(f"size {text!r}: a share of what? Give a number of images")
        exact = float(number) * total / 100
    else:
        exact = float(number) * UNITS[unit]
    size = round(exact)
    if unit != "%" and abs(size - exact) > 1e-6:
        raise ConfigError(f"size {text!r}: not a whole number of images")
    if size < 1:
        raise ConfigError(f"size {text!r}: no image at all")
    if total is not None and size > total:
        raise ConfigError(f"size {text!r}: there are {total:,} images")
    return size


def van_der_corput(index: int) -> float:
    """The index-th number of the base-2 van der Corput sequence: 0, 1/2, 1/4, 3/4, 1/8, …"""
    value, scale = 0.0, 0.5
    while index:
        index, digit = divmod(index, 2)
        value += digit * scale
        scale /= 2
    return value


@dataclass(frozen=True)
class Window:
    """`size` positions of a split of `total` samples, from `start`, wrapping at the end."""

    start: int
    size: int
    total: int

    def split_positions(self, subset_positions: np.ndarray) -> np.ndarray:
        """Positions within the subset, 0 <= i < size, to positions in the split (int64)."""
        return (np.asarray(subset_positions, dtype=np.int64) + self.start) % self.total


def window(total: int, size: int, draw: int) -> Window:
    """The window of a draw. Raises ConfigError for a size that does not fit or a negative draw."""
    if not 1 <= size <= total:
        raise ConfigError(f"subset of {size:,}: there are {total:,} images")
    if draw < 0:
        raise ConfigError(f"draw={draw}: draws are numbered from 0")
    return Window(start=int(total * van_der_corput(draw)), size=size, total=total)
