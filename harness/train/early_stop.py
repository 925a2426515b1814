"""Early stopping, the paper's way: train the full horizon, keep and report the best validation result along it.

Ending early (patience) would leave the learning rate of small subsets un-annealed and bias the comparison of
families, so there is none here (arXiv 2010.11929 §4.3; arXiv 2105.01601 §3.3).
"""

from typing import Any


def is_better(top1: float, best: dict[str, Any] | None) -> bool:
    """Whether an evaluation with validation top-1 `top1` replaces `best`; among equals the earliest stays."""
    return best is None or top1 > best["val_top1"]
