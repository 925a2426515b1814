"""Where one family overtakes another: gaps with intervals, their slope, and the crossover size.

The gap is first minus second (ViT - ResNet) in percentage points of accuracy. Runs are paired by (draw, seed), so
what a draw of the data does to both families cancels. The variance of the paired differences is pooled over sizes:
two seeds at one size carry no interval, two seeds at four sizes carry one with four degrees of freedom. Seeds that
do not differ at all (copies of one run, accuracies at their ceiling) carry none either.
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.repeats import SERIES

Floats = NDArray[np.float64]
POINTS = 100.0  # percentage points in a fraction of 1
NO_VARIANCE = 1e-12  # points squared; one image in 100 million moves a difference by more than its root
NEAR_ZERO = 1e-9  # points; means that are zero differ from it by rounding
SEVERAL = "several changes of sign"
PAIRED_BY = ["subset_samples", "draw", "seed"]


@dataclass(frozen=True)
class Rules:
    """Numbers that decide; they come from the study file, written before the runs."""

    confidence: float = 0.95
    min_times_chance: float = 5.0
    min_degrees_of_freedom: int = 3
    smallest_interesting_slope_points_per_decade: float = 2.0


@dataclass(frozen=True)
class Interval:
    """Estimate with a confidence interval; low and high are NaN where the data carry none."""

    value: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


@dataclass(frozen=True)
class Gap:
    """The gap at one size, in percentage points."""

    size: int
    gap: Interval
    pairs: int  # paired seeds
    first_mean: float  # fraction
    second_mean: float
    used: bool  # False: a family is under min_times_chance; shown, not used


@dataclass(frozen=True)
class Crossover:
    """Size at which the gap changes sign: in range with an interval, or on which side it must lie."""

    where: str  # 'in range' | 'above the largest size' | 'below the smallest size' | SEVERAL | 'not determined'
    size: Interval | None  # images; bounds never leave the range of sizes: one at its end is open. SEVERAL: no value
    reaches: float | None = None  # images: how far into the range the interval of one outside it comes, if it does
    reason: str = ""  # why there is no value


@dataclass(frozen=True)
class Comparison:
    """Everything about one pair of models."""

    first: str
    second: str
    gaps: list[Gap]
    slope: Interval  # percentage points a decade of images, over used sizes
    crossover: Crossover
    degrees_of_freedom: int
    varies: bool  # False: the paired seeds of every size give one and the same gap
    chance: float = 0.0  # the largest of its runs, so of the fewest classes; 0 where it is not known
    unequal_lengths: bool = False  # both are there by length of training, and no length is common

    @property
    def used(self) -> list[Gap]:
        return [gap for gap in self.gaps if gap.used]


@dataclass(frozen=True)
class SignChange:
    """Neighbouring measured sizes between which the mean gap changes sign. No interval: what was measured, no more."""

    below: int
    above: int
    upwards: bool  # first overtakes second


def sign_change(comparison: Comparison) -> SignChange | None:
    """Where the mean gaps of the used sizes change sign; None where they do not, or do more than once."""
    found = sign_changes(comparison.used)
    return found[0] if len(found) == 1 else None


def sign_changes(gaps: list[Gap]) -> list[SignChange]:
    """Every change of sign between neighbouring sizes, those of a gap of exactly zero left out."""
    used = [gap for gap in gaps if abs(gap.gap.value) > NEAR_ZERO]
    return [
        SignChange(small.size, large.size, large.gap.value > 0)
        for small, large in itertools.pairwise(used)
        if (small.gap.value < 0) != (large.gap.value < 0)
    ]


def compare(scores: pd.DataFrame, first: str, second: str, rules: Rules) -> Comparison:
    """Gaps, slope and crossover of two models.

    Args:
        scores: of analysis.results.scores; one row a run.
    """
    differences = paired_differences(scores, first, second)
    used_sizes = sizes_above_chance(scores, first, second, rules.min_times_chance)
    used = differences[differences["size"].isin(used_sizes)]
    variance, freedom = pooled_variance(used)  # sizes at chance vary little and would flatter the intervals
    varies = freedom == 0 or variance > NO_VARIANCE
    enough = freedom >= rules.min_degrees_of_freedom and varies
    quantile = float(stdtrit(freedom, 0.5 + rules.confidence / 2)) if enough else math.nan
    gaps = [
        Gap(
            size=int(part["size"].iloc[0]),
            gap=around(float(part["difference"].mean()), quantile * math.sqrt(variance / len(part))),
            pairs=len(part),
            first_mean=float(part["first"].mean()),
            second_mean=float(part["second"].mean()),
            used=size in used_sizes,
        )
        for size, part in differences.groupby("size")
    ]
    value, error = fit_slope(used, variance) or (math.nan, math.nan)
    slope = around(value, quantile * error)
    crossing = find_crossover(slope, [gap for gap in gaps if gap.used], variance, quantile)
    chances = scores["chance"][scores["model"].isin([first, second])]
    by_length = all(apart_in_scores(scores["model"], name) for name in (first, second))
    return Comparison(
        *(first, second, gaps, slope, crossing, freedom, varies),
        chance=float(chances.max()) if len(chances) else 0.0,
        unequal_lengths=by_length,
    )


def apart_in_scores(models: pd.Series, name: str) -> bool:
    """Whether a model is there by length (or recipe) alone, `NAME · …`, as a pair with none in common is named."""
    names = models.astype(str)
    return bool(names.str.startswith(name + SERIES).any() and not (names == name).any())


def around(value: float, half_width: float) -> Interval:
    """value +- half_width."""
    return Interval(value, value - half_width, value + half_width)


def paired_differences(scores: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """One row a (size, draw, seed) that both models have: size, first, second (fractions), difference (points)."""
    sides = [scores[scores["model"] == model].groupby(PAIRED_BY)["value"].mean() for model in (first, second)]
    joined = pd.concat(sides, axis=1, keys=["first", "second"]).dropna().reset_index()
    joined["difference"] = POINTS * (joined["first"] - joined["second"])
    return joined.rename(columns={"subset_samples": "size"})


def sizes_above_chance(scores: pd.DataFrame, first: str, second: str, times: float) -> set[int]:
    """Sizes at which both models' mean accuracy is at least `times` chance; below that order is noise.

    Only paired runs count, as in the gap itself. With so few classes that `times` chance is out of reach, half-way from
    chance to 1 takes its place.
    """
    pair = scores[scores["model"].isin([first, second]) & scores["value"].notna()]
    paired = pair[pair.groupby(PAIRED_BY)["model"].transform("nunique") == 2]
    means = paired.groupby(["subset_samples", "model"])[["value", "chance"]].mean().reset_index()
    good = means[means["value"] >= [asked_accuracy(chance, times) for chance in means["chance"]]]
    counts = good.groupby("subset_samples")["model"].nunique()
    return {int(size) for size in counts[counts == 2].index}


def asked_accuracy(chance: float, times: float) -> float:
    """The accuracy from which a model is clear of chance: `times` chance, at most half-way from chance to 1."""
    return min(times * chance, (1 + chance) / 2)


def pooled_variance(differences: pd.DataFrame) -> tuple[float, int]:
    """Variance of paired differences within sizes (points squared) and its degrees of freedom, sum of (n - 1)."""
    groups = differences.groupby("size")["difference"]
    freedom = int((groups.count() - 1).sum()) if len(differences) else 0
    if freedom == 0:
        return math.nan, 0
    squares = float(((differences["difference"] - groups.transform("mean")) ** 2).sum())
    return squares / freedom, freedom


def fit_slope(used: pd.DataFrame, variance: float) -> tuple[float, float] | None:
    """Slope of the paired differences against log10 size, and its error from the pooled variance (points a decade).

    Least squares over runs; None with fewer than two sizes.
    """
    if used["size"].nunique() < 2:
        return None
    x, y = np.log10(used["size"].to_numpy(float)), used["difference"].to_numpy(float)
    x = x - x.mean()
    spread = float((x**2).sum())
    return float((x * y).sum()) / spread, math.sqrt(variance / spread)


def find_crossover(slope: Interval, gaps: list[Gap], variance: float, quantile: float) -> Crossover:
    """Where the gap, straight between neighbouring sizes, is zero.

    The gap need be no line over all sizes (the paper's saturates, Figure 4); within one step of size it is taken for
    one, which is all that is known there. The interval holds every size at which the confidence band of the
    interpolated gap includes zero; a bound at an end of the range is open. The estimate is the zero of the means. Where
    they change sign more than once there is none, and the interval is of all their zeros. Outside the range no number
    is given, only the side, and how far the interval comes into the range; and nothing at all unless the gap has a
    direction.

    Args:
        gaps: the used sizes, ascending.
    """
    changes = sign_changes(gaps)
    several = f"the gap changes sign {len(changes)} times, {between(changes)}" if len(changes) > 1 else ""
    if not gaps or not slope.known:
        where = SEVERAL if several else "not determined"
        return Crossover(where, None, reason=several or "too few seeds or sizes for an interval")
    direction = direction_of(slope, gaps)
    sizes = [gap.size for gap in gaps]
    x, means = np.log10(sizes), np.array([gap.gap.value for gap in gaps])
    near = sizes_near_zero(x, means, variance / np.array([gap.pairs for gap in gaps], dtype=float), quantile)
    zeros = [zero_between(x, means, sizes.index(change.below), sizes.index(change.above)) for change in changes]
    if several:
        return Crossover(SEVERAL, around_zeros(math.nan, near, zeros), reason=several)
    if direction == 0:
        return Crossover("not determined", None, reason="the gap has no clear direction")
    if changes and changes[0].upwards != (direction > 0):
        against = f"as measured the gap changes sign {between(changes)}, against the direction it has over all sizes"
        return Crossover("not determined", None, reason=against)
    if direction * means[-1] < -NEAR_ZERO:
        reaches = 10 ** float(near.min()) if near.size else None
        return Crossover("above the largest size", None, reaches, "outside what was measured")
    if direction * means[0] > NEAR_ZERO:
        reaches = 10 ** float(near.max()) if near.size else None
        return Crossover("below the smallest size", None, reaches, "outside what was measured")
    zero = zeros[0] if zeros else zero_between(x, means, 0, len(x) - 1)  # none: the gap is zero at an end
    return Crossover("in range", around_zeros(zero, near, [zero]))


def between(changes: list[SignChange]) -> str:
    """'between 1,000 and 5,000 and between 25,000 and 100,000 images'."""
    return " and ".join(f"between {change.below:,} and {change.above:,}" for change in changes) + " images"


def around_zeros(value: float, near: Floats, zeros: list[float]) -> Interval:
    """The hull, in images; the zeros themselves can be lost to rounding where the band has hardly any width."""
    every = [*near, *zeros]
    return Interval(10**value, 10 ** float(min(every)), 10 ** float(max(every)))


def direction_of(slope: Interval, gaps: list[Gap]) -> int:
    """1 where the gap rises with size, -1 where it falls, 0 where neither is clear.

    The gaps of the smallest and the largest size decide where both are clear of zero on opposite sides: a gap that
    rises at once and falls again slowly has a line that falls. Else the slope of the line does.
    """
    if not gaps or not slope.known:
        return 0
    first, last = gaps[0].gap, gaps[-1].gap
    if first.high < 0 < last.low:
        return 1
    if last.high < 0 < first.low:
        return -1
    return int(slope.low > 0) - int(slope.high < 0)


def zero_between(x: Floats, means: Floats, start: int, stop: int) -> float:
    """Where the means from index start to stop are zero: the middle of a flat zero, else straight between the two."""
    flat = x[start : stop + 1][np.abs(means[start : stop + 1]) <= NEAR_ZERO]
    if flat.size:
        return float(flat[0] + flat[-1]) / 2
    return float(x[start] + (x[stop] - x[start]) * means[start] / (means[start] - means[stop]))


def sizes_near_zero(x: Floats, means: Floats, variances: Floats, quantile: float) -> Floats:
    """The ends of every stretch of x in which the band of the interpolated means includes zero.

    Between two sizes, a share t of the way, that is (m + t d)^2 <= q^2 (v (1 - t)^2 + w t^2).
    """
    found = []
    for i, j in itertools.pairwise(range(len(x))):
        m, d, v, w = means[i], means[j] - means[i], quantile**2 * variances[i], quantile**2 * variances[j]
        roots = np.roots([d * d - v - w, 2 * (m * d + v), m * m - v])
        shares = [root.real for root in roots if root.imag == 0 and 0 <= root.real <= 1]
        shares += [end for end, mean, wide in ((0.0, m, v), (1.0, means[j], w)) if mean * mean <= wide]
        found += [x[i] + share * (x[j] - x[i]) for share in shares]
    return np.array(found)
