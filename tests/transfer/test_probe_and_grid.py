"""The whole grid and the linear probe against a float64 reference written from the published description alone."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from harness.transfer import fewshot, probe
from harness.transfer.fewshot import (
    Protocol,
    chosen_l2,
    fewshot_grid,
    held_out_rows,
    ridge_weights,
    statistics,
    transform,
)
from harness.transfer.probe import linear_probe

L2S = tuple(2.0**power for power in range(-6, 21, 3))


def reference(train, labels, test, l2):  # type: ignore[no-untyped-def]
    """Standardise by the support set, constant 100, +-1 targets, (X'X + lambda I)^-1 X'Y: solved without shortcuts."""
    mean, deviation = train.mean(0), train.std(0)
    x = np.c_[(train - mean) / (deviation + 1e-5), np.full(len(train), 100.0)]
    q = np.c_[(test - mean) / (deviation + 1e-5), np.full(len(test), 100.0)]
    classes = sorted(set(labels.tolist()))
    y = np.array([[1.0 if label == name else -1.0 for name in classes] for label in labels])
    weights = np.linalg.inv(x.T @ x + l2 * np.eye(x.shape[1])) @ x.T @ y
    return weights, np.array(classes)[(q @ weights).argmax(1)]


@pytest.mark.parametrize("width", [12, 200], ids=["more images than features", "fewer"])
def test_every_cell_of_the_grid_equals_the_reference(width: int) -> None:
    rng = np.random.default_rng(width)
    labels = np.repeat(np.arange(5), 40)
    train = (rng.normal(size=(200, width)) + labels[:, None] * 0.1).astype(np.float32)
    test = rng.normal(size=(80, width)).astype(np.float32)
    fits = list(fewshot_grid(train, labels, test, shots=[1, 5, 25], seeds=[0, 1], protocol=Protocol()))
    assert [(fit.shots, fit.seed) for fit in fits] == [(1, 0), (1, 1), (5, 0), (5, 1), (25, 0), (25, 1)]
    for fit in fits:
        support, held = train[fit.support].astype(float), labels[fit.support]
        weights, predicted = reference(support, held, test.astype(float), 1024.0)
        x = transform(support, *statistics(support), 100.0)
        ours = ridge_weights(x, 2.0 * (held[:, None] == fit.classes) - 1.0, [1024.0])
        np.testing.assert_allclose(ours[0], weights, atol=1e-6, rtol=0)
        np.testing.assert_array_equal(fit.classes[fit.scores.argmax(1)], predicted)


def test_lambda_is_the_best_on_the_held_out_part_of_the_support_set() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(4), 10)
    train = (rng.normal(size=(40, 12)) + np.eye(4, 12)[labels]) @ rng.normal(size=(12, 12)) ** 3
    held = held_out_rows(labels, 0.2)
    assert [held[labels == label].sum() for label in range(4)] == [2, 2, 2, 2]
    scores = {}
    for l2 in L2S:
        _, predicted = reference(train[~held], labels[~held], train[held], l2)
        scores[l2] = (predicted == labels[held]).mean()
    best = max(l2 for l2 in L2S if scores[l2] == max(scores.values()))
    protocol = Protocol(l2s=L2S)
    assert chosen_l2(train, labels, np.arange(4), protocol) == best
    assert len(set(scores.values())) > 1
    fit = next(fewshot_grid(train, labels, train, shots=[10], seeds=[0], protocol=protocol))
    _, refitted = reference(train[fit.support], labels[fit.support], train, fit.l2)
    np.testing.assert_array_equal(fit.classes[fit.scores.argmax(1)], refitted)


def test_one_image_a_class_leaves_nothing_to_hold_out() -> None:
    labels = np.array([0, 1, 2])
    assert not held_out_rows(labels, 0.5).any()
    assert chosen_l2(np.eye(3), labels, labels, Protocol(l2s=(1.0, 2.0))) == 1024.0


def test_the_probe_in_blocks_equals_the_reference_and_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BLOCK_ROWS", 64)
    monkeypatch.setattr(fewshot, "QUERY_ROWS", 32)
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 6, 500)
    train = (3 + 2 * rng.normal(size=(500, 20)) + labels[:, None] * rng.normal(size=20)).astype(np.float32)
    test = rng.normal(size=(77, 20)).astype(np.float32) * 3
    fit = linear_probe(train, labels, test, Protocol(l2=8.0))
    _, predicted = reference(train.astype(float), labels, test.astype(float), 8.0)
    np.testing.assert_array_equal(fit.classes[fit.scores.argmax(1)], predicted)
    x, q = (transform(features, *statistics(train), 100.0) for features in (train, test))
    ridge = Ridge(alpha=8.0, fit_intercept=False, solver="cholesky").fit(x, 2.0 * (labels[:, None] == np.arange(6)) - 1)
    np.testing.assert_allclose(fit.scores, q @ ridge.coef_.T, atol=1e-6)


def test_the_probe_chooses_lambda_on_the_end_of_the_training_split() -> None:
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 3, 120)
    train = rng.normal(size=(120, 30)) + np.eye(3, 30)[labels]
    rights = {}
    for l2 in L2S:
        _, predicted = reference(train[:96], labels[:96], train[96:], l2)
        rights[l2] = (predicted == labels[96:]).sum()
    fit = linear_probe(train, labels, train, Protocol(l2s=L2S))
    assert fit.l2 == max(l2 for l2 in L2S if rights[l2] == max(rights.values()))
    assert len(set(rights.values())) > 1
