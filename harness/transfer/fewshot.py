"""Few-shot linear classification in closed form, as the paper's authors publish it.

Source: big_vision, `evaluators/fewshot_lsr.py`: features standardised with the support set's own mean and deviation
(+1e-5), a constant column of 100 appended, targets +-1, ridge regression with lambda = 2^10 that does not scale with
the number of images; the normal equations where images >= features, the dual form elsewhere; one eigendecomposition
serves every lambda. Support sets are nested: within a seed, 1 shot is part of 5 shots.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Array = np.ndarray
QUERY_ROWS = 65_536  # standardised and scored at once


@dataclass(frozen=True)
class Protocol:
    """How a classifier is fitted to a support set.

    l2s: lambdas to choose from, by accuracy on a held-out part of the support set; a tie goes to the larger one. None
    (the published protocol) takes `l2`, and so does a support set of one image a class, of which nothing can be held
    out.
    """

    l2: float = 1024.0
    bias: float = 100.0
    l2s: tuple[float, ...] | None = None
    held_out: float = 0.2  # share of each class's support images, at least one of two


class Ridge(NamedTuple):
    """Ridge regression for L lambdas: weights (D, L K) = basis (D, r) @ coefficients (r, L K)."""

    basis: Array
    coefficients: Array
    lambdas: int  # L


@dataclass(frozen=True)
class Fit:
    """A classifier of one support set, applied to the test split."""

    shots: int
    seed: int
    l2: float  # the one used
    support: Array  # positions in the training split, (n,)
    classes: Array  # what the columns of scores stand for, (K,)
    scores: Array  # (M, K) float64 of the test images


def fewshot_grid(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    *,
    shots: list[int],
    seeds: list[int],
    protocol: Protocol,
) -> Iterator[Fit]:
    """Every number of shots with every support seed.

    Args:
        train_features, test_features: (N, D) and (M, D).
        train_labels: (N,) integers.
        shots: images a class; a class with fewer contributes what it has.
    """
    classes = np.unique(train_labels)
    if len(test_features) <= QUERY_ROWS:
        test_features = test_features.astype(np.float64)  # once for all cells
    for count in shots:
        for seed in seeds:
            support = support_indices(train_labels, count, seed)
            features, labels = train_features[support], train_labels[support]
            l2 = chosen_l2(features, labels, classes, protocol)
            scores = fitted_scores(features, labels, classes, test_features, [l2], protocol.bias)[0]
            yield Fit(count, seed, l2, support, classes, scores)


def support_indices(labels: Array, shots: int, seed: int) -> Array:
    """Positions of the first `shots` images a class under the seed's permutation, in class order.

    Args:
        labels: (N,) integer labels of the training split.
        shots: images a class; a class with fewer contributes what it has.
        seed: of numpy's default_rng, one permutation a class, so that smaller support sets are part of larger ones.
    """
    rng = np.random.default_rng(seed)
    chosen = [rng.permutation(np.flatnonzero(labels == label))[:shots] for label in np.unique(labels)]
    return np.concatenate(chosen)


def chosen_l2(features: Array, labels: Array, classes: Array, protocol: Protocol) -> float:
    """The lambda of a protocol for a support set, (n, D) and (n,); the test split has no say."""
    if protocol.l2s is None:
        return protocol.l2
    held = held_out_rows(labels, protocol.held_out)
    if not held.any():
        return protocol.l2
    fitted = ~held
    all_scores = fitted_scores(
        features[fitted], labels[fitted], classes, features[held], list(protocol.l2s), protocol.bias
    )
    return best_l2(all_scores, protocol.l2s, classes, labels[held])


def best_l2(all_scores: list[Array], l2s: tuple[float, ...], classes: Array, labels: Array) -> float:
    """The lambda whose scores (m, K) are right most often for labels (m,); of equals the larger one."""
    right = [int((classes[scores.argmax(1)] == labels).sum()) for scores in all_scores]
    return max(zip(right, l2s, strict=True))[1]


def held_out_rows(labels: Array, share: float) -> Array:
    """(n,) True for the last images of each class, in the order given; a class of one image keeps it."""
    held = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        count = min(len(rows) - 1, max(1, round(share * len(rows))))
        held[rows[len(rows) - count :]] = True
    return held


def fitted_scores(
    support: Array, labels: Array, classes: Array, query: Array, l2s: list[float], bias: float
) -> list[Array]:
    """Scores (m, K) of the query features (m, D) for each lambda, fitted to support features (n, D) and labels (n,)."""
    mean, deviation = statistics(support)
    ridge = fit_ridge(transform(support, mean, deviation, bias), targets_of(labels, classes), l2s)
    return scores_of(query, mean, deviation, bias, ridge)


def targets_of(labels: Array, classes: Array) -> Array:
    """(n, K): 1 in the column of each label's class, -1 elsewhere."""
    return 2.0 * (labels[:, None] == classes[None, :]) - 1.0


def scores_of(query: Array, mean: Array, deviation: Array, bias: float, ridge: Ridge) -> list[Array]:
    """Scores (m, K) of query features (m, D) for each lambda, one chain of products a block of rows.

    Standardising and the constant column are folded into the classifier: the query is read once and never copied whole.
    """
    basis = ridge.basis[:-1] / deviation[:, None]
    constant = (bias * ridge.basis[-1] - mean @ basis) @ ridge.coefficients
    rows = range(0, max(1, len(query)), QUERY_ROWS)
    blocks = (query[row : row + QUERY_ROWS].astype(np.float64, copy=False) for row in rows)
    parts = [np.linalg.multi_dot([block, basis, ridge.coefficients]) + constant for block in blocks]
    return np.split(np.concatenate(parts) if len(parts) > 1 else parts[0], ridge.lambdas, axis=1)


def statistics(support: Array) -> tuple[Array, Array]:
    """Mean and deviation (+1e-5) of each feature of (n, D), float64."""
    support = support.astype(np.float64)
    return support.mean(0), support.std(0) + 1e-5


def transform(features: Array, mean: Array, deviation: Array, bias: float) -> Array:
    """(n, D) to float64 (n, D + 1): standardised, the constant column appended."""
    standard = np.empty((features.shape[0], features.shape[1] + 1))
    np.subtract(features, mean, out=standard[:, :-1])
    standard[:, :-1] /= deviation
    standard[:, -1] = bias
    return standard


def ridge_weights(features: Array, targets: Array, l2s: list[float]) -> list[Array]:
    """Weights (D, K) of ridge regression for each lambda: argmin |XW - Y|^2 + lambda |W|^2.

    Args:
        features: X, (N, D) float64.
        targets: Y, (N, K) float64.
        l2s: positive lambdas; all share one eigendecomposition.
    """
    ridge = fit_ridge(features, targets, l2s)
    return np.split(ridge.basis @ ridge.coefficients, ridge.lambdas, axis=1)


def fit_ridge(features: Array, targets: Array, l2s: list[float]) -> Ridge:
    """`ridge_weights` as factors: in the normal form where N >= D, in the dual form elsewhere."""
    samples, width = features.shape
    if samples >= width:
        return ridge_of_gram(features.T @ features, features.T @ targets, l2s)
    values, vectors = np.linalg.eigh(features @ features.T)
    return Ridge(features.T @ vectors, coefficients(values, vectors.T @ targets, l2s), len(l2s))


def ridge_of_gram(gram: Array, products: Array, l2s: list[float]) -> Ridge:
    """Ridge regression for each lambda from X'X (D, D) and X'Y (D, K)."""
    values, vectors = np.linalg.eigh(gram)
    return Ridge(vectors, coefficients(values, vectors.T @ products, l2s), len(l2s))


def coefficients(values: Array, rotated: Array, l2s: list[float]) -> Array:
    """(r, L K): eigenvalues (r,) and rotated targets (r, K) for each lambda, side by side."""
    return np.concatenate([rotated / (values + l2)[:, None] for l2 in l2s], axis=1)
