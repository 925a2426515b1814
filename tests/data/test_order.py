"""The training order: a bijection, seekable, well mixed, the same everywhere."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from harness.data.order import batch, order, permute


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
    assert batch(7, 10**9, 4, 10**6).tolist() == [584646, 743041, 370872, 179116]


@pytest.mark.parametrize("n", [1000, 4096, 50_000])
def test_the_order_is_mixed_like_a_uniform_permutation(n: int) -> None:
    """Displacements, serial correlation and ascents of many permutations against what uniform ones have."""
    keys = range(40)
    displacement, correlation, ascents = [], [], []
    for key in keys:
        images = permute(np.arange(n), n, key).astype(float)
        displacement.append(np.abs(images - np.arange(n)).mean() / n)
        correlation.append(np.corrcoef(images[:-1], images[1:])[0, 1])
        ascents.append((np.diff(images) > 0).mean())
    assert stats.ttest_1samp(displacement, 1 / 3).pvalue > 1e-4
    assert stats.ttest_1samp(correlation, -1 / n).pvalue > 1e-4
    assert stats.ttest_1samp(ascents, 0.5).pvalue > 1e-4
    assert np.std(correlation) < 3 / np.sqrt(n)


def test_first_images_are_uniform_over_keys() -> None:
    n = 16
    firsts = [int(permute(np.array([0]), n, key)[0]) for key in range(3200)]
    assert stats.chisquare(np.bincount(firsts, minlength=n)).pvalue > 1e-4


@pytest.mark.parametrize("position", [-1, 10, 12])
def test_a_position_outside_has_no_image(position: int) -> None:
    with pytest.raises(ValueError, match=r"outside range\(10\)"):
        permute(np.array([3, position]), 10, 0)
