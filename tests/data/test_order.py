"""The training order: a bijection, seekable, well mixed, the same everywhere."""

import math
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.data.order import ROUNDS, TINY, batch, hash_words, order, permute


@pytest.mark.parametrize("n", [*range(1, 130), 1000, 4096, 4097, 65_537])
def test_exhaustively_a_permutation(n: int) -> None:
    assert sorted(permute(np.arange(n), n, key=n)) == list(range(n))


@given(st.integers(1, 10**9), st.integers(0, 2**63 - 1), st.data())
@settings(max_examples=60, deadline=None)
def test_at_any_size_images_stay_in_range_and_do_not_collide(n: int, key: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, max(0, n - 1)))
    positions = np.arange(start, min(n, start + 300))
    images = permute(positions, n, key)
    assert len(set(images.tolist())) == len(positions)
    assert images.min() >= 0
    assert images.max() < n


def inverse(image: int, n: int, key: int) -> int:
    """The position of a sample, by the Feistel network run backwards in Python's own integers."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    while True:
        left, right = image >> half, image & mask
        for number in reversed(range(ROUNDS)):
            mixed = (left + hash_words(key, number)) % 2**64
            mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
            mixed ^= mixed >> 31
            left, right = right ^ (mixed & mask), left
        image = left << half | right
        if image < n:
            return image


@given(st.integers(TINY, 10**9), st.integers(0, 2**63 - 1), st.data())
@settings(max_examples=200, deadline=None)
def test_at_any_size_every_sample_has_one_position(n: int, key: int, data: st.DataObject) -> None:
    """An inverse that finds each position again leaves no two positions with one image: a bijection."""
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=5))
    images = permute(np.array(positions), n, key)
    assert [inverse(int(image), n, key) for image in images] == positions


@pytest.mark.slow
def test_exhaustively_a_permutation_of_twenty_million() -> None:
    n, seen = 20_000_003, np.zeros(20_000_003, bool)
    for start in range(0, n, 1_000_000):
        seen[permute(np.arange(start, min(n, start + 1_000_000)), n, 5)] = True
    assert seen.all()


@given(st.integers(1, 300), st.integers(0, 5), st.integers(0, 900), st.integers(1, 700))
@settings(max_examples=60, deadline=None)
def test_a_batch_is_the_order_read_position_by_position(n: int, seed: int, start: int, count: int) -> None:
    expected = [order(seed, p // n, p % n, n) for p in range(start, start + min(count, 40))]
    assert batch(seed, start, count, n)[:40].tolist() == expected


def test_every_epoch_visits_every_sample_once_and_epochs_differ() -> None:
    n = 777
    epochs = batch(3, 0, 4 * n, n).reshape(4, n)
    for epoch in epochs:
        assert sorted(epoch) == list(range(n))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert not np.array_equal(batch(3, 0, n, n), batch(4, 0, n, n))


def test_known_values_do_not_change_between_versions_or_machines() -> None:
    """A run that is resumed by a later harness must go on in the same order."""
    assert batch(0, 0, 8, 10).tolist() == [1, 6, 3, 2, 5, 8, 0, 4]
    assert batch(3, 0, 12, 5).tolist() == [2, 4, 0, 3, 1, 0, 2, 3, 1, 4, 0, 4]
    assert batch(7, 10**9, 4, 10**6).tolist() == [584646, 743041, 370872, 179116]


def runs(labels: np.ndarray) -> int:
    return 1 + int((labels[1:] != labels[:-1]).sum())


def p_values(images: np.ndarray) -> dict[str, float]:
    """Of a permutation of range(n) against a uniform one, each statistic with its known mean and spread.

    displacement         |p(i) - i|: triangular, mean (n^2 - 1) / 3n
    pair distances       |p(i + lag) - p(i)| in ten bins against the same triangular law, for neighbours and further;
                         only pairs that share no position, so that they are nearly independent
    serial correlation   of p(i) and p(i + 1), mean -1 / (n - 1), variance near 1 / n
    ascents              p(i) < p(i + 1), mean (n - 1) / 2, variance (n + 1) / 12
    class runs           of ten classes that lie sorted in the pack: mean and variance of uniform shuffles
    """
    n, values = len(images), images.astype(float)
    found = {}
    z = (np.abs(values - np.arange(n)).mean() - (n * n - 1) / (3 * n)) / (n * np.sqrt(2 / 45 / n))
    found["displacement"] = 2 * stats.norm.sf(abs(z))
    edges = 1 - np.sqrt(1 - np.linspace(0, 1, 11))  # tenths of the triangular law on (0, 1)
    for lag in (1, 2, 7, 64):
        starts = np.arange(n - lag)
        starts = starts[starts // lag % 2 == 0]
        distances = np.abs(values[starts + lag] - values[starts]) / n
        found[f"distance {lag}"] = stats.chisquare(np.histogram(distances, edges)[0]).pvalue
    correlation = np.corrcoef(values[:-1], values[1:])[0, 1]
    found["serial"] = 2 * stats.norm.sf(abs(correlation + 1 / (n - 1)) * np.sqrt(n))
    ascents = float((np.diff(values) > 0).sum())
    found["ascents"] = 2 * stats.norm.sf(abs(ascents - (n - 1) / 2) / np.sqrt((n + 1) / 12))
    classes = np.sort(np.arange(n) * 10 // n)[images]
    pairs = sum(count * (count - 1) for count in np.bincount(classes)) / (n * (n - 1))  # two of one class
    z = (runs(classes) - 1 - (n - 1) * (1 - pairs)) / np.sqrt((n - 1) * pairs * (1 - pairs))
    found["class runs"] = 2 * stats.norm.sf(abs(z))
    return found


@pytest.mark.parametrize("n", [1000, 4096, 50_000])
def test_the_order_is_mixed_like_a_uniform_permutation(n: int) -> None:
    """No statistic of any of 40 keys is out of bounds, and over the keys each is spread as chance spreads it."""
    found = [p_values(permute(np.arange(n), n, key)) for key in range(40)]
    for name in found[0]:
        values = [one[name] for one in found]
        assert min(values) > 1e-6, name
        assert stats.kstest(values, "uniform").pvalue > 1e-4, name


def test_the_same_statistics_hold_for_numpy_and_tell_bijections_that_are_not_random() -> None:
    n = 4096
    positions = np.arange(n)
    assert min(p_values(np.random.default_rng(1).permutation(n)).values()) > 1e-4
    bits = np.array([int(f"{i:012b}"[::-1], 2) for i in range(n)])
    buffered = np.concatenate([np.random.default_rng(i).permutation(256) + 256 * i for i in range(16)])
    weak = {
        "none": positions,
        "reversed": positions[::-1],
        "affine": (positions * 1597 + 11) % n,
        "bit reversal": bits,
        "shuffle buffer": buffered,
        "shards shuffled": np.random.default_rng(0).permutation(n // 64).repeat(64) * 64 + positions % 64,
    }
    for name, images in weak.items():
        assert sorted(images) == list(range(n))
        assert min(p_values(images).values()) < 1e-9, name


@pytest.mark.parametrize("n", range(2, 7))
def test_tiny_orders_are_uniform_over_keys(n: int) -> None:
    """Every one of the n! orders equally often: an epoch of a handful of images favours none."""
    count = 20 * math.factorial(n) + 2000
    found = Counter(tuple(batch(seed, 0, n, n).tolist()) for seed in range(count))
    frequencies = [found.get(order, 0) for order in permutations(range(n))]
    assert sum(frequencies) == count
    assert stats.chisquare(frequencies).pvalue > 1e-4


@pytest.mark.parametrize("n", [7, 8, 9, 12, 16])
def test_small_orders_have_uniform_pairs_over_keys(n: int) -> None:
    """Which sample comes first and which next, over 2,500 keys: all n (n - 1) pairs alike, and first and last too."""
    found = np.array([batch(seed, 0, n, n) for seed in range(2500)])
    for column in (1, n - 1):
        cells = np.bincount(found[:, 0] * n + found[:, column], minlength=n * n).reshape(n, n)
        assert np.trace(cells) == 0
        assert stats.chisquare(cells[~np.eye(n, dtype=bool)]).pvalue > 1e-4


def test_first_images_are_uniform_over_keys() -> None:
    n = 16
    firsts = [int(permute(np.array([0]), n, key)[0]) for key in range(3200)]
    assert stats.chisquare(np.bincount(firsts, minlength=n)).pvalue > 1e-4


@pytest.mark.parametrize("position", [-1, 10, 12])
def test_a_position_outside_has_no_image(position: int) -> None:
    with pytest.raises(ValueError, match=r"outside range\(10\)"):
        permute(np.array([3, position]), 10, 0)
