"""Early stopping, the paper's way: train the full horizon, keep and report the best validation result along it.

Ending early (patience) leaves the learning rate of small subsets un-annealed and biases the comparison of families: it
is for exploration, and a study refuses it (harness.cell; arXiv 2010.11929 §4.3; arXiv 2105.01601 §3.3).
"""

from typing import Any


def is_better(score: dict[str, Any], best: dict[str, Any] | None, best_by: str = "top1") -> bool:
    """Whether an evaluation replaces `best`; among equals the earliest stays.

    Args:
        score, best: hold `val_top1`, `val_loss` and `val_mean_per_class`; a lower loss is better.
    """
    key = f"val_{best_by}"
    sign = -1 if best_by == "loss" else 1
    return best is None or sign * score[key] > sign * best[key]


def out_of_patience(evaluations_since_best: int, patience: int) -> bool:
    """Whether training ends: `patience` evaluations (0 = without limit) brought nothing better."""
    return 0 < patience <= evaluations_since_best
