"""The closed form against independent references: the published description, and scikit-learn's Ridge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import Ridge

from harness.transfer.fewshot import (
    Protocol,
    fewshot_grid,
    fitted_scores,
    ridge_weights,
    statistics,
    support_indices,
    targets_of,
    transform,
)


def grid_top1(
    train: np.ndarray, train_labels: np.ndarray, test: np.ndarray, test_labels: np.ndarray, shots: int, seed: int
) -> float:
    """Top-1 on the test split of one cell of the grid, by the published protocol."""
    (fit,) = fewshot_grid(train, train_labels, test, shots=[shots], seeds=[seed], protocol=Protocol())
    return float((fit.classes[fit.scores.argmax(1)] == test_labels).mean())


def reference_weights(features: np.ndarray, targets: np.ndarray, l2: float) -> np.ndarray:
    """Normal equations solved directly: W = (X'X + lambda I)^-1 X'Y, whatever the shape."""
    width = features.shape[1]
    return np.linalg.solve(features.T @ features + l2 * np.eye(width), features.T @ targets)


@pytest.mark.parametrize("samples, width", [(20, 50), (50, 20), (30, 30)])
@pytest.mark.parametrize("l2", [1.0, 1024.0])
def test_weights_equal_the_normal_equations_in_both_forms(samples: int, width: int, l2: float) -> None:
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(samples, width)), rng.normal(size=(samples, 4))
    np.testing.assert_allclose(
        ridge_weights(features, targets, [l2])[0], reference_weights(features, targets, l2), atol=1e-10
    )


def test_weights_equal_scikit_learn_without_intercept() -> None:
    rng = np.random.default_rng(1)
    features, targets = rng.normal(size=(60, 12)), rng.normal(size=(60, 3))
    ridge = Ridge(alpha=7.0, fit_intercept=False, solver="cholesky").fit(features, targets)
    np.testing.assert_allclose(ridge_weights(features, targets, [7.0])[0], ridge.coef_.T, atol=1e-10)


def test_one_decomposition_serves_every_lambda() -> None:
    rng = np.random.default_rng(2)
    features, targets = rng.normal(size=(8, 20)), rng.normal(size=(8, 2))
    together = ridge_weights(features, targets, [0.1, 10.0, 1000.0])
    alone = [ridge_weights(features, targets, [l2])[0] for l2 in (0.1, 10.0, 1000.0)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_standardise_uses_support_statistics_and_appends_the_constant() -> None:
    support = np.array([[1.0, 10.0], [3.0, 10.0]])
    query = np.array([[2.0, 11.0]])
    left, right = (transform(features, *statistics(support), 100.0) for features in (support, query))
    unit = 1 / (1 + 1e-5)
    np.testing.assert_allclose(left, [[-unit, 0, 100], [unit, 0, 100]])
    np.testing.assert_allclose(right, [[0, 1 / 1e-5, 100]])


@pytest.mark.parametrize("samples, width", [(60, 20), (20, 60)])
def test_scores_are_those_of_standardised_features_for_every_lambda(samples: int, width: int) -> None:
    """Standardising is folded into the classifier: far means, small deviations and a dead feature change nothing."""
    rng = np.random.default_rng(width)
    support = (1e3 + 0.1 * rng.normal(size=(samples, width))).astype(np.float32)
    support[:, 3] = 7.0
    query = (1e3 + 0.1 * rng.normal(size=(30, width))).astype(np.float32)
    labels, classes, l2s = rng.integers(0, 4, samples), np.arange(4), [0.1, 10.0, 1024.0]
    x, q = (transform(features, *statistics(support), 100.0) for features in (support, query))
    found = fitted_scores(support, labels, classes, query, l2s, 100.0)
    for scores, weights in zip(found, ridge_weights(x, targets_of(labels, classes), l2s), strict=True):
        np.testing.assert_allclose(scores, q @ weights, atol=1e-7)


@given(st.integers(0, 50), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_support_sets_are_nested_within_a_seed(seed: int, small: int, more: int) -> None:
    labels = np.random.default_rng(seed).integers(0, 5, size=60)
    few, many = support_indices(labels, small, seed), support_indices(labels, small + more, seed)
    assert set(few) <= set(many)
    assert len(set(many)) == len(many)
    for label in np.unique(labels):
        assert (labels[few] == label).sum() == min(small, (labels == label).sum())


def test_a_class_with_fewer_images_contributes_what_it_has() -> None:
    labels = np.array([0, 0, 0, 0, 1])
    chosen = support_indices(labels, 3, seed=0)
    assert (labels[chosen] == 0).sum() == 3
    assert (labels[chosen] == 1).sum() == 1


def test_the_support_set_follows_the_published_permutation() -> None:
    """big_vision: default_rng(seed) permutes each class's indices in class order and takes the first ones."""
    labels = np.array([1, 0, 1, 0, 1, 0])
    rng = np.random.default_rng(3)
    expected = [*rng.permutation([1, 3, 5])[:2], *rng.permutation([0, 2, 4])[:2]]
    assert support_indices(labels, 2, seed=3).tolist() == expected


def test_top1_of_separable_classes_is_one_and_of_noise_is_chance() -> None:
    rng = np.random.default_rng(5)
    train_labels, test_labels = np.repeat(np.arange(4), 30), np.repeat(np.arange(4), 50)
    centres = 20 * rng.normal(size=(4, 16))
    train, test = (centres[labels] + rng.normal(size=(len(labels), 16)) for labels in (train_labels, test_labels))
    assert grid_top1(train, train_labels, test, test_labels, shots=5, seed=0) == 1.0
    noise = rng.normal(size=(200, 16))
    assert 0.1 < grid_top1(train, train_labels, noise, test_labels, shots=5, seed=0) < 0.4


def test_top1_equals_a_reference_written_from_the_description() -> None:
    rng = np.random.default_rng(7)
    train, test = rng.normal(size=(300, 24)), rng.normal(size=(100, 24))
    train_labels, test_labels = rng.integers(0, 10, 300), rng.integers(0, 10, 100)
    for shots in (1, 5, 25):
        chosen = support_indices(train_labels, shots, seed=1)
        mean, deviation = train[chosen].mean(0), train[chosen].std(0)
        x = np.c_[(train[chosen] - mean) / (deviation + 1e-5), np.full(len(chosen), 100.0)]
        q = np.c_[(test - mean) / (deviation + 1e-5), np.full(100, 100.0)]
        y = np.where(train_labels[chosen][:, None] == np.arange(10), 1.0, -1.0)
        predicted = (q @ reference_weights(x, y, 1024.0)).argmax(1)
        top1 = grid_top1(train, train_labels, test, test_labels, shots=shots, seed=1)
        assert top1 == (predicted == test_labels).mean()
