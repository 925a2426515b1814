"""How far an order of labels is from a uniform shuffle of the same labels, measured.

Two statistics, each 1 for a shuffled order: class repeats among neighbours (what lies side by side), and the class mix
of a hundred stretches against the whole (what lies in one region). Both come with the spread that shuffling gives, so
that a small set is not called sorted for its noise.
"""

from typing import NamedTuple

import numpy as np

STRETCHES = 100
CLEAR = 5.0  # standard errors beyond which an order is called not shuffled
CLEAR_RATIO = 1.05  # and at least so far off: in a hundred million labels a harmless trace is many standard errors
AT_MOST = 20_000_000  # labels read; of more, evenly spaced pieces
PIECE = 200_000


class Shuffledness(NamedTuple):
    """Ratios to what a uniform shuffle of these labels has, with the standard error that shuffling gives each."""

    repeats: float
    repeats_error: float
    stretches: float
    stretches_error: float

    @property
    def shuffled(self) -> bool:
        return all(
            abs(value - 1) <= max(CLEAR * error, CLEAR_RATIO - 1)
            for value, error in ((self.repeats, self.repeats_error), (self.stretches, self.stretches_error))
        )

    def __str__(self) -> str:
        verdict = "shuffled, as far as its labels show" if self.shuffled else "NOT SHUFFLED"
        return (
            f"{verdict}: {self.repeats:.2f} of the class repeats of a shuffled order (1 ± {self.repeats_error:.2g}), "
            f"{self.stretches:.2f} of its differences between stretches (1 ± {self.stretches_error:.2g})"
        )


def measure(column: np.ndarray) -> Shuffledness:
    """Of labels in packed order; int (N,), memory-mapped where there are many."""
    labels = sample(column)
    counts = np.bincount(labels)
    counts = counts[counts > 0].astype(float)
    n = len(labels)
    if n < 2 or len(counts) < 2:
        return Shuffledness(1.0, 0.0, 1.0, 0.0)
    pairs = float((counts * (counts - 1)).sum()) / (n * (n - 1))  # of two different samples being of one class
    repeats = float((labels[1:] == labels[:-1]).sum())
    expected = max(pairs * (n - 1), 1e-12)
    stretches, error = stretch_mix(labels, counts)
    return Shuffledness(repeats / expected, float(np.sqrt(expected * (1 - pairs)) / expected), stretches, error)


def stretch_mix(labels: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """Pearson's chi-square of class counts by stretch, over its degrees of freedom, and the error that shuffling gives.

    Its mean under a shuffle is N / (N - 1) degrees of freedom exactly. The error is that of a chi-square, widened where
    classes are rare: an upper estimate, which tests/data/test_shuffled.py compares with shuffles.
    """
    stretches = min(STRETCHES, len(labels) // 2)
    if stretches < 2:
        return 1.0, 0.0
    classes = np.unique(labels, return_inverse=True)[1]
    edges = np.linspace(0, len(labels), stretches + 1).astype(np.int64)
    sizes = np.diff(edges).astype(float)
    squares = 0.0
    for start, stop, size in zip(edges[:-1], edges[1:], sizes, strict=True):
        found = np.bincount(classes[start:stop], minlength=len(counts))
        squares += float((found**2 / (size * counts / len(labels))).sum())
    chi_square = squares - len(labels)
    freedom = (stretches - 1) * (len(counts) - 1)
    rare = float((1 / counts).sum()) * float((1 / sizes).sum())
    return chi_square / freedom * (len(labels) - 1) / len(labels), float(np.sqrt(2 * freedom + rare) / freedom)


def sample(column: np.ndarray) -> np.ndarray:
    """The labels, or of very many the evenly spaced pieces that are read."""
    if len(column) <= AT_MOST:
        return np.asarray(column)
    starts = np.linspace(0, len(column) - PIECE, AT_MOST // PIECE).astype(np.int64)
    return np.concatenate([column[start : start + PIECE] for start in starts])
