"""Few-shot linear classification in closed form, as the paper's authors publish it.

Source: big_vision, `evaluators/fewshot_lsr.py`: features standardised with the support set's own mean and deviation
(+1e-5), a constant column of 100 appended, targets +-1, ridge regression with lambda = 2^10 that does not scale with
the number of images; the normal equations where images >= features, the dual form elsewhere; one eigendecomposition
serves every lambda. Support sets are nested: within a seed, 1 shot is part of 5 shots.
"""

import numpy as np

from harness.errors import DatasetError

Array = np.ndarray


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


def standardise(support: Array, query: Array, bias: float) -> tuple[Array, Array]:
    """(n, D), (m, D) to float64 (n, D + 1), (m, D + 1): support statistics for both, constant column appended."""
    support, query = support.astype(np.float64), query.astype(np.float64)
    mean, deviation = support.mean(0), support.std(0) + 1e-5

    def transform(features: Array) -> Array:
        return np.pad((features - mean) / deviation, ((0, 0), (0, 1)), constant_values=bias)

    return transform(support), transform(query)


def ridge_weights(features: Array, targets: Array, l2s: list[float]) -> list[Array]:
    """Weights (D, K) of ridge regression for each lambda: argmin |XW - Y|^2 + lambda |W|^2.

    Args:
        features: X, (N, D) float64.
        targets: Y, (N, K) float64.
        l2s: positive lambdas; all share one eigendecomposition.
    """
    samples, width = features.shape
    if samples >= width:
        values, vectors = np.linalg.eigh(features.T @ features)
        rotated = vectors.T @ (features.T @ targets)
        return [vectors @ (rotated / (values + l2)[:, None]) for l2 in l2s]
    values, vectors = np.linalg.eigh(features @ features.T)
    rotated = vectors.T @ targets
    return [features.T @ (vectors @ (rotated / (values + l2)[:, None])) for l2 in l2s]


def fewshot_top1(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    *,
    shots: int,
    seed: int,
    l2: float = 1024.0,
    bias: float = 100.0,
) -> float:
    """Top-1 (fraction) on the whole test split of the classifier fitted to one support set.

    Args:
        train_features, test_features: (N, D) and (M, D).
        train_labels, test_labels: (N,) and (M,) integers.
    Raises DatasetError when the training split has no image of a class that is tested.
    """
    classes = np.unique(train_labels)
    unseen = np.setdiff1d(test_labels, classes)
    if unseen.size:
        raise DatasetError(f"few-shot: classes {unseen[:5].tolist()} are tested but have no training image")
    chosen = support_indices(train_labels, shots, seed)
    support, query = standardise(train_features[chosen], test_features, bias)
    targets = 2.0 * (train_labels[chosen][:, None] == classes[None, :]) - 1.0
    weights = ridge_weights(support, targets, [l2])[0]
    predicted = classes[(query @ weights).argmax(1)]
    return float((predicted == test_labels).mean())
