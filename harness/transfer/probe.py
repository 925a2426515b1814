"""Linear probe in closed form: the few-shot protocol on the full training split, in bounded memory.

Lambda is chosen on the last part of the training split in packed order, which is a random part of it; the classifier
is then fitted to all of it. The test split has no say.
"""

from collections.abc import Iterator

import numpy as np

from harness.transfer.fewshot import Array, Fit, Protocol, best_l2, ridge_of_gram, scores_of, targets_of, transform

BLOCK_ROWS = 8192


def linear_probe(train_features: Array, train_labels: Array, test_features: Array, protocol: Protocol) -> Fit:
    """The classifier of all training images, (N, D) and (N,), applied to (M, D); `shots` and `seed` are 0 in it."""
    classes = np.unique(train_labels)
    l2 = protocol.l2
    fitted = len(train_labels) - round(protocol.held_out * len(train_labels))
    if protocol.l2s is not None and 0 < fitted < len(train_labels):
        path = probe_scores(
            train_features[:fitted],
            train_labels[:fitted],
            classes,
            train_features[fitted:],
            protocol.l2s,
            protocol.bias,
        )
        l2 = best_l2(path, protocol.l2s, classes, train_labels[fitted:])
    scores = probe_scores(train_features, train_labels, classes, test_features, (l2,), protocol.bias)[0]
    return Fit(0, 0, l2, np.arange(len(train_labels)), classes, scores)


def probe_scores(
    features: Array, labels: Array, classes: Array, query: Array, l2s: tuple[float, ...], bias: float
) -> list[Array]:
    """Scores (m, K) of query features (m, D) for each lambda, from sums over blocks of the support (n, D)."""
    mean, deviation = streamed_statistics(features)
    width = features.shape[1] + 1
    gram, products = np.zeros((width, width)), np.zeros((width, len(classes)))
    for rows in blocks(len(features)):
        block = transform(features[rows], mean, deviation, bias)
        gram += block.T @ block
        products += block.T @ targets_of(labels[rows], classes)
    return scores_of(query, mean, deviation, bias, ridge_of_gram(gram, products, list(l2s)))


def streamed_statistics(features: Array) -> tuple[Array, Array]:
    """Mean and deviation (+1e-5) of each feature of (n, D), float64, in two passes over blocks."""
    count = len(features)
    mean = sum(features[rows].sum(0, dtype=np.float64) for rows in blocks(count)) / count
    squares = sum(np.square(features[rows] - mean).sum(0) for rows in blocks(count))
    return mean, np.sqrt(squares / count) + 1e-5


def blocks(count: int) -> Iterator[slice]:
    """Slices of BLOCK_ROWS rows over `count` rows."""
    return (slice(start, min(count, start + BLOCK_ROWS)) for start in range(0, count, BLOCK_ROWS))
