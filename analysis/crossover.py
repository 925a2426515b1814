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
from scipy.special import stdtrit

POINTS = 100.0  # percentage points in a fraction of 1
NO_VARIANCE = 1e-12  # points squared; one image in 100 million moves a difference by more than its root


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

    where: str  # 'in range' | 'above the largest size' | 'below the smallest size' | 'not determined'
    size: Interval | None  # images; the bounds never leave the range of sizes


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
    used = [gap for gap in comparison.used if gap.gap.value != 0]
    found = [
        SignChange(small.size, large.size, large.gap.value > 0)
        for small, large in itertools.pairwise(used)
        if (small.gap.value < 0) != (large.gap.value < 0)
    ]
    return found[0] if len(found) == 1 else None


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
    line = fit_line(used, variance)
    slope = around(line.slope, quantile * line.slope_error) if line else Interval(math.nan, math.nan, math.nan)
    crossing = find_crossover(line, used, quantile) if line else Crossover("not determined", None)
    return Comparison(first, second, gaps, slope, crossing, freedom, varies)


def around(value: float, half_width: float) -> Interval:
    """value +- half_width."""
    return Interval(value, value - half_width, value + half_width)


def paired_differences(scores: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """One row a (size, draw, seed) that both models have: size, first, second (fractions), difference (points)."""
    keys = ["subset_samples", "draw", "seed"]
    sides = [scores[scores["model"] == model].groupby(keys)["value"].mean() for model in (first, second)]
    joined = pd.concat(sides, axis=1, keys=["first", "second"]).dropna().reset_index()
    joined["difference"] = POINTS * (joined["first"] - joined["second"])
    return joined.rename(columns={"subset_samples": "size"})


def sizes_above_chance(scores: pd.DataFrame, first: str, second: str, times: float) -> set[int]:
    """Sizes at which both models' mean accuracy is at least `times` chance; below that order is noise.

    With so few classes that `times` chance is out of reach, half-way from chance to 1 takes its place.
    """
    pair = scores[scores["model"].isin([first, second])]
    means = pair.groupby(["subset_samples", "model"])[["value", "chance"]].mean().reset_index()
    threshold = np.minimum(times * means["chance"], (1 + means["chance"]) / 2)
    good = means[means["value"] >= threshold]
    counts = good.groupby("subset_samples")["model"].nunique()
    return {int(size) for size in counts[counts == 2].index}


def pooled_variance(differences: pd.DataFrame) -> tuple[float, int]:
    """Variance of paired differences within sizes (points squared) and its degrees of freedom, sum of (n - 1)."""
    groups = differences.groupby("size")["difference"]
    freedom = int((groups.count() - 1).sum()) if len(differences) else 0
    if freedom == 0:
        return math.nan, 0
    squares = float(((differences["difference"] - groups.transform("mean")) ** 2).sum())
    return squares / freedom, freedom


@dataclass(frozen=True)
class Line:
    """gap = intercept + slope x (log10 size - centre), least squares over runs; errors from the pooled variance."""

    centre: float
    intercept: float
    slope: float
    intercept_error: float
    slope_error: float

    def at(self, x: float) -> float:
        return self.intercept + self.slope * (x - self.centre)

    def error_at(self, x: float) -> float:
        return math.hypot(self.intercept_error, self.slope_error * (x - self.centre))


def fit_line(used: pd.DataFrame, variance: float) -> Line | None:
    """The line through the paired differences; None with fewer than two sizes."""
    if used["size"].nunique() < 2:
        return None
    x, y = np.log10(used["size"].to_numpy(float)), used["difference"].to_numpy(float)
    centre = float(x.mean())
    spread = float(((x - centre) ** 2).sum())
    slope = float(((x - centre) * y).sum()) / spread
    return Line(centre, float(y.mean()), slope, math.sqrt(variance / len(x)), math.sqrt(variance / spread))


def find_crossover(line: Line, used: pd.DataFrame, quantile: float) -> Crossover:
    """Fieller's interval for the zero of the line, cut to the range of sizes.

    The interval holds the sizes at which the line's confidence band includes zero. An estimate outside the range is
    never given as a number: only the side is named, and only when the slope's interval excludes zero.
    """
    low, high = (math.log10(float(used["size"].min())), math.log10(float(used["size"].max())))
    if not math.isfinite(quantile) or abs(line.slope) <= quantile * line.slope_error:
        return Crossover("not determined", None)
    zero = line.centre - line.intercept / line.slope
    if zero > high:
        return Crossover("above the largest size", None)
    if zero < low:
        return Crossover("below the smallest size", None)
    left, right = fieller(line, quantile)
    return Crossover("in range", Interval(10**zero, 10 ** max(left, low), 10 ** min(right, high)))


def fieller(line: Line, quantile: float) -> tuple[float, float]:
    """Roots of (a + b u)^2 = q^2 (ea^2 + eb^2 u^2), u = x - centre; the slope must be clear of zero."""
    square = line.slope**2 - (quantile * line.slope_error) ** 2
    linear = 2 * line.intercept * line.slope
    constant = line.intercept**2 - (quantile * line.intercept_error) ** 2
    root = math.sqrt(max(0.0, linear**2 - 4 * square * constant))
    return line.centre + (-linear - root) / (2 * square), line.centre + (-linear + root) / (2 * square)
