"""How far from shuffled: ratios are 1 for shuffles, their error is that of shuffles, and bad orders are told."""

import numpy as np
import pytest

from harness.data import shuffled
from harness.data.order import permute
from harness.data.shuffled import measure


def labels(n: int, classes: int, even: bool) -> np.ndarray:
    shares = np.ones(classes) if even else 1 / np.arange(1, classes + 1)
    return np.random.default_rng(n).choice(classes, n, p=shares / shares.sum())


@pytest.mark.parametrize(
    "n, classes, even", [(600, 10, True), (5000, 1000, True), (20_000, 300, False), (40, 30, True)]
)
def test_shuffles_measure_one_with_the_error_that_is_stated(n: int, classes: int, even: bool) -> None:
    column = labels(n, classes, even)
    found = [measure(np.random.default_rng(seed).permutation(column)) for seed in range(60)]
    values = np.array([(one.repeats, one.stretches) for one in found])
    errors = np.array([(one.repeats_error, one.stretches_error) for one in found])
    assert (np.abs(values.mean(0) - 1) < 5 * errors[0] / np.sqrt(60)).all()
    assert (values.std(0) < 1.4 * errors[0]).all()  # never understated: five errors are far out
    assert values.std(0)[0] > 0.6 * errors[0][0]
    assert all(one.shuffled for one in found)


def test_the_packed_order_measures_one() -> None:
    column = np.repeat(np.arange(10), 5000)
    assert measure(column[permute(np.arange(50_000), 50_000, 7)]).shuffled


def test_orders_that_are_not_shuffled() -> None:
    column = labels(20_000, 100, True)
    random = np.random.default_rng(0)
    assert measure(np.sort(column)).repeats > 90
    buffered = np.concatenate([random.permutation(part) for part in np.array_split(np.sort(column), 10)])
    assert not measure(buffered).shuffled  # shards in class order, shuffled through a buffer
    dealt = np.tile(np.arange(100), 200)
    assert measure(dealt).repeats == 0  # class after class in turn: no repeats at all
    assert not measure(dealt).shuffled
    twice = np.repeat(random.permutation(column[::2]), 2)  # each image beside its copy: regions are mixed
    assert measure(twice).repeats > 20
    assert abs(measure(twice).stretches - 2) < 0.2
    drift = np.concatenate([random.permutation(column), np.zeros(2000, int)])  # one class was added at the end
    assert measure(drift).stretches > 2.5
    assert "NOT SHUFFLED" in str(measure(drift))


def test_by_hand() -> None:
    """Labels 0 0 1 1: one repeat a class and two of three pairs; a shuffle has 3 x 1/3 repeats."""
    found = measure(np.array([0, 0, 1, 1]))
    assert found.repeats == pytest.approx(2)
    # two stretches of two, each wholly of one class: chi-square 4, one degree of freedom, times (N - 1) / N
    assert found.stretches == pytest.approx(3)


def test_nothing_to_compare() -> None:
    for column in ([], [3], [2, 2, 2, 2]):
        assert measure(np.array(column, int)).shuffled


def test_very_many_labels_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shuffled, "AT_MOST", 10_000)
    monkeypatch.setattr(shuffled, "PIECE", 100)
    column = labels(200_000, 50, True)
    assert len(shuffled.sample(column)) == 10_000
    assert measure(column).shuffled
    assert not measure(np.sort(column)).shuffled
