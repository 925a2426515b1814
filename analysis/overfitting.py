"""Train against validation accuracy by subset, and the size below which the bigger model of a family does worse."""

from itertools import combinations
from typing import Any

import pandas as pd

from analysis.crossover import NEAR_ZERO, POINTS, SEVERAL, Comparison, Rules, compare, sign_change
from analysis.repeats import of_unequal_lengths
from analysis.results import Tables, pairs_of, scores
from analysis.verdict import bounds, rough
from analysis.words import images

MIN_TIMES_LARGER = 1.2  # models within 20 % of each other, in parameters and in compute, are of one size


def train_against_validation(tables: Tables) -> list[dict[str, Any]]:
    """One row a (model, size): accuracies at the end (percent), their difference and its spread over seeds (points),
    and what the best evaluation was worth over the last (points)."""
    runs = tables.finished
    frame = pd.DataFrame(
        {
            "model": runs["model"],
            "family": runs["family"],
            "size": runs["subset_samples"],
            "train": POINTS * runs["train_top1_final"].astype(float),
            "validation": POINTS * runs["val_top1_final"].astype(float),
            "best": POINTS * runs["best_val_top1"].astype(float),
        }
    ).dropna(subset=["train", "validation"])
    frame["gap"] = frame["train"] - frame["validation"]
    rows = []
    for _, part in frame.groupby(["model", "family", "size"], sort=False):
        rows.append(
            {
                "model": part["model"].iloc[0],
                "family": part["family"].iloc[0],
                "subset_samples": int(part["size"].iloc[0]),
                "runs": len(part),
                "train_top1_percent": float(part["train"].mean()),
                "val_top1_percent": float(part["validation"].mean()),
                "gap_points": float(part["gap"].mean()),
                "gap_sd_points": float(part["gap"].std(ddof=1)) if len(part) > 1 else None,
                "best_over_last_points": float((part["best"] - part["validation"]).mean()),
            }
        )
    return rows


def bigger_against_smaller(tables: Tables, metric: str, rules: Rules) -> list[Comparison]:
    """Every two models of a family of which one is larger, compared at equal sizes: first is the larger.

    Larger is a fifth or more in parameters, or where those are alike in forward MACs, however a pair names the two;
    without these columns (tables of others) it is the order in which pairs of the study name them. Models that are
    there by length are compared at equal lengths only.
    """
    table = scores(tables, metric)
    means = tables.finished.groupby("model")[["parameters", "forward_macs_per_image"]].mean().astype(float)
    named = pairs_of(tables)
    families = tables.finished.groupby("model")["family"].first()
    found = [
        (one, two)
        for one, two in named
        if families.get(one) == families.get(two) is not None and not means.loc[[one, two]].notna().all().any()
    ]
    for one, two in combinations(means.index, 2):
        alike = families[one] == families[two] and not of_unequal_lengths(tables.finished, one, two)
        if alike and (order := larger_first(means, one, two)):
            found.append(order)
    compared = [compare(table, one, two, rules) for one, two in dict.fromkeys(found)]
    return [item for item in compared if item.gaps]


def larger_first(means: pd.DataFrame, one: str, two: str) -> tuple[str, str] | None:
    """The two with the larger first; None for models of one size."""
    for measure in means.columns:  # NaN compares as False
        first, second = float(means[measure][one]), float(means[measure][two])
        if first >= MIN_TIMES_LARGER * second:
            return one, two
        if second >= MIN_TIMES_LARGER * first:
            return two, one
    return None


def sentence(comparison: Comparison) -> str:
    """Below which size the larger model does worse."""
    first, second, where = comparison.first, comparison.second, comparison.crossover
    if where.where == SEVERAL:
        return f"{first} against {second}: {where.reason}; no size can be named below which it does worse."
    if where.size is not None:
        side = "below" if comparison.used[0].gap.value < comparison.used[-1].gap.value else "above"
        value = rough(where.size.value, where.size.low, where.size.high)
        return f"{first} does worse than {second} {side} {images(where.size.value, value)} ({bounds(comparison)})."
    bracket = sign_change(comparison)
    if bracket:
        worst, best = (bracket.below, bracket.above) if bracket.upwards else (bracket.above, bracket.below)
        return f"{first} does worse than {second} at {images(worst)} and better at {best:,} (as measured; no interval)."
    used = comparison.used
    if not used:
        return f"{first} against {second}: no size at which both are clear of chance."
    worse = [f"{gap.size:,}" for gap in used if gap.gap.value < -NEAR_ZERO]
    others = [f"{gap.size:,}" for gap in used if gap.gap.value >= -NEAR_ZERO]
    sizes = "size measured" if len(used) == len(comparison.gaps) else "size at which both are clear of chance"
    if not worse:
        return f"{first} does no worse than {second} at any {sizes}."
    if not others:
        return f"{first} does worse than {second} at every {sizes}."
    noun = "image" if worse[-1] == "1" else "images"
    return f"{first} does worse than {second} at {', '.join(worse)} {noun}; no worse at {', '.join(others)}."
