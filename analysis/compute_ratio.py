"""How much compute one family needs over another at equal accuracy, from a ladder of models on one size of the data.

Log error is fitted against log compute per family (a line; a parabola with five rungs or more, where it falls
throughout), and the horizontal distance of the two curves is averaged over the accuracies that both reach. Its
interval is by the delta method with a t quantile. Where rungs scatter about a curve more than their seeds explain
(F test at 5 %), or where there is one seed, the rungs' means are the observations. Nothing is extrapolated.
"""

import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from scipy.stats import t as t_distribution

from analysis.crossover import Interval
from analysis.repeats import alike
from analysis.words import counted

Floats = NDArray[np.float64]
LEVELS = 9
MIN_RUNGS = 3
PARABOLA_RUNGS = 5
SMALL_P = 0.05


@dataclass(frozen=True)
class Curve:
    """log10 error = polynomial in (log10 compute - centre)."""

    centre: float
    coefficients: Floats  # constant first
    unscaled: Floats  # (X'X)^-1: times the variance gives that of the coefficients
    squares: float  # residual sum of squares
    freedom: int
    low: float  # log10 compute of the ladder's ends
    high: float

    def at(self, x: float) -> float:
        return float(self.basis(x) @ self.coefficients)

    def basis(self, x: float) -> Floats:
        return (x - self.centre) ** np.arange(len(self.coefficients), dtype=float)

    def slope(self, x: float) -> float:
        return float(self.slope_basis(x) @ self.coefficients)

    def slope_basis(self, x: float) -> Floats:
        powers = np.arange(1, len(self.coefficients), dtype=float)
        return np.array([0.0, *(powers * (x - self.centre) ** (powers - 1))])

    def falls(self) -> bool:
        return self.slope(self.low) < 0 and self.slope(self.high) < 0

    def compute_at(self, log_error: float) -> float:
        """log10 compute at which the curve has this error, which lies between its ends."""
        low, high = self.low, self.high
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if self.at(middle) > log_error else (low, middle)
        return (low + high) / 2


@dataclass(frozen=True)
class Band:
    """A third of the compute that both families cover: who is ahead at equal compute."""

    compute_low: float
    compute_high: float
    gap_points: Interval  # accuracy of first minus second
    verdict: str  # 'ahead' | 'behind' | 'not told apart'


@dataclass(frozen=True)
class ComputeRatio:
    """first over second. `status` is 'ok' or says why there is no number."""

    first: str
    second: str
    unit: str
    status: str
    ratio: Interval | None  # compute that first needs / compute that second needs
    times_less: Interval | None  # its inverse, the paper's 'x times less'
    accuracy_range: tuple[float, float] | None  # fractions, over which it is averaged
    bands: list[Band]
    degrees_of_freedom: int
    observations: str

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def compare_compute(ladder: pd.DataFrame, first: str, second: str, unit: str, confidence: float = 0.95) -> ComputeRatio:
    """The ratio of two families.

    Args:
        ladder: one row a run: family, model, compute (of `unit`, above zero), value (accuracy, a fraction).
    """
    parts = [usable(ladder, family) for family in (first, second)]

    def nothing(status: str) -> ComputeRatio:
        return ComputeRatio(first, second, unit, status, None, None, None, [], 0, "")

    for family, part in zip((first, second), parts, strict=True):
        rungs = rung_count(part)
        if rungs < MIN_RUNGS:
            return nothing(f"{family} has {counted(rungs, 'rung')} of compute; {MIN_RUNGS} are needed")
    curves, observations = fit_ladders(parts)
    freedom = sum(curve.freedom for curve in curves)
    for family, curve in zip((first, second), curves, strict=True):
        if not curve.falls():
            return nothing(f"the error of {family} does not fall with compute")
    if freedom < 2:
        return nothing(f"{freedom} degrees of freedom cannot carry an interval; more rungs or seeds are needed")
    variance = sum(curve.squares for curve in curves) / freedom
    quantile = float(t_distribution.ppf(0.5 + confidence / 2, freedom))
    for family, curve in zip((first, second), curves, strict=True):
        middle = (curve.low + curve.high) / 2
        direction = curve.slope_basis(middle)
        if abs(curve.slope(middle)) <= quantile * math.sqrt(variance * float(direction @ curve.unscaled @ direction)):
            return nothing(f"the slope of {family} is not clear of zero: equal accuracy names no compute")
    bands = compare_bands(curves, variance, quantile)
    best = max(curve.at(curve.high) for curve in curves)
    worst = min(curve.at(curve.low) for curve in curves)
    if worst <= best:
        status = f"no accuracy that both reach: {who_is_above(curves, first, second)}"
        return ComputeRatio(first, second, unit, status, None, None, None, bands, freedom, observations)
    log_ratio, error = horizontal(curves, np.linspace(best, worst, LEVELS), variance)
    half = quantile * error
    ratio = Interval(10**log_ratio, 10 ** (log_ratio - half), 10 ** (log_ratio + half))
    less = Interval(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
    reach = (1 - 10**worst, 1 - 10**best)
    return ComputeRatio(first, second, unit, "ok", ratio, less, reach, bands, freedom, observations)


def who_is_above(curves: list[Curve], first: str, second: str) -> str:
    """Of two curves without a common accuracy, which is above; ahead it is only where their computes overlap."""
    above, below = (first, second) if curves[0].at(curves[0].low) < curves[1].at(curves[1].high) else (second, first)
    if max(curve.low for curve in curves) < min(curve.high for curve in curves):
        return f"{above} is ahead throughout"
    return f"all accuracies of {above} lie above those of {below}, but their computes do not overlap"


def usable(ladder: pd.DataFrame, family: str) -> pd.DataFrame:
    """Runs of a family with a logarithm of compute and of error."""
    return ladder[(ladder["family"] == family) & (ladder["compute"] > 0) & (ladder["value"] < 1)]


def rung_means(part: pd.DataFrame) -> pd.DataFrame:
    """One row a (model, recipe-length): seeds of a rung have the same compute up to a few per cent of timing."""
    means = in_logs(part).groupby(rung_keys(part))[["log_error", "log_compute"]].mean().reset_index()
    return means.assign(compute=10 ** means["log_compute"])


def rung_count(part: pd.DataFrame) -> int:
    """How many rungs of different compute a family's usable runs make."""
    return int(rungs_of(part).nunique())


def rungs_of(part: pd.DataFrame) -> pd.Series:
    """For every run of a family which rung it is of, told by exaFLOPs where all are known: seconds of one compute
    differ by machine and by what else it does."""
    told_by = "exaflops" if "exaflops" in part.columns and (part["exaflops"] > 0).all() else "compute"
    return alike(part.groupby(rung_keys(part))[told_by].transform("mean"))


def in_logs(part: pd.DataFrame) -> pd.DataFrame:
    """With log10 of error and compute."""
    return part.assign(log_error=np.log10(1 - part["value"]), log_compute=np.log10(part["compute"]))


def rung_keys(part: pd.DataFrame) -> list[str]:
    """Columns that name a rung of a ladder."""
    return ["model", "rung"] if "rung" in part.columns else ["model"]


def fit_ladders(parts: list[pd.DataFrame]) -> tuple[list[Curve], str]:
    """Curves of both families, to runs or to rungs' means, and which."""
    frames = [in_logs(part) for part in parts]
    means = [rung_means(part) for part in parts]
    pure_squares, pure_freedom = 0.0, 0
    for frame in frames:
        groups = frame.groupby(rung_keys(frame))["log_error"]
        pure_squares += float(((frame["log_error"] - groups.transform("mean")) ** 2).sum())
        pure_freedom += len(frame) - groups.ngroups
    orders = [2 if rung_count(part) >= PARABOLA_RUNGS else 1 for part in parts]
    by_run = [fit_curve(frame, order) for frame, order in zip(frames, orders, strict=True)]
    freedom = sum(curve.freedom for curve in by_run) - pure_freedom
    if pure_freedom > 0:
        excess = max(sum(curve.squares for curve in by_run) - pure_squares, 0.0)
        statistic = (excess / freedom) / (pure_squares / pure_freedom) if freedom > 0 and pure_squares > 0 else 0.0
        if freedom <= 0 or f_distribution.sf(statistic, freedom, pure_freedom) > SMALL_P:
            return by_run, "runs"
    return [fit_curve(mean, order) for mean, order in zip(means, orders, strict=True)], "means of rungs"


def fit_curve(frame: pd.DataFrame, order: int) -> Curve:
    """Least squares; a parabola that does not fall throughout becomes a line."""
    x, y = frame["log_compute"].to_numpy(float), frame["log_error"].to_numpy(float)
    centre = float(x.mean())
    basis = (x - centre)[:, None] ** np.arange(order + 1)
    coefficients = np.linalg.lstsq(basis, y, rcond=None)[0]
    squares = float(((y - basis @ coefficients) ** 2).sum())
    unscaled = np.asarray(np.linalg.pinv(basis.T @ basis), dtype=np.float64)
    curve = Curve(centre, coefficients, unscaled, squares, len(x) - order - 1, float(x.min()), float(x.max()))
    return curve if order == 1 or curve.falls() else fit_curve(frame, 1)


def horizontal(curves: list[Curve], levels: Floats, variance: float) -> tuple[float, float]:
    """Mean over levels of log10 (compute of first / compute of second), and its standard error."""
    values, total = [], 0.0
    for sign, curve in zip((1.0, -1.0), curves, strict=True):
        places = [curve.compute_at(float(level)) for level in levels]
        gradient = np.mean([-curve.basis(place) / curve.slope(place) for place in places], axis=0)
        values.append(sign * float(np.mean(places)))
        total += variance * float(gradient @ curve.unscaled @ gradient)
    return sum(values), math.sqrt(total)


def compare_bands(curves: list[Curve], variance: float, quantile: float) -> list[Band]:
    """Accuracy at equal compute in thirds of the compute that both cover."""
    low, high = max(curve.low for curve in curves), min(curve.high for curve in curves)
    if high <= low:
        return []
    edges, bands = np.linspace(low, high, 4), []
    for left, right in itertools.pairwise(edges):
        value, total = 0.0, 0.0
        for sign, curve in zip((-1.0, 1.0), curves, strict=True):  # error of second minus error of first
            places = np.linspace(left, right, LEVELS)
            errors = np.array([10 ** curve.at(float(place)) for place in places])
            value += sign * 100 * float(errors.mean())
            rows = np.array([curve.basis(float(place)) for place in places])
            gradient = 100 * math.log(10) * (errors[:, None] * rows).mean(axis=0)
            total += variance * float(gradient @ curve.unscaled @ gradient)
        half = quantile * math.sqrt(total)
        gap = Interval(value, value - half, value + half)
        verdict = "ahead" if gap.low > 0 else "behind" if gap.high < 0 else "not told apart"
        bands.append(Band(10**left, 10**right, gap, verdict))
    return bands


def matched_pairs(ladder: pd.DataFrame, first: str, second: str, within_points: float = 0.1) -> list[dict[str, Any]]:
    """Each rung of `first` with the rung of `second` nearest in accuracy, where they are within `within_points`.

    Returns rows of first, second, samples seen by each (None where the ladder has no such column), accuracies
    (fractions), compute of both, and compute of second over first.
    """
    means = {family: rung_means(usable(ladder, family)) for family in (first, second)}
    found = []
    for one in means[first].to_dict("records"):
        others = means[second]
        if others.empty:
            break
        gap = (10 ** others["log_error"] - 10 ** one["log_error"]).abs()
        other = others.loc[gap.idxmin()]
        if 100 * float(gap.min()) <= within_points + 1e-9:
            found.append(
                {
                    "first": one["model"],
                    "second": str(other["model"]),
                    "first_samples_seen": one.get("rung"),
                    "second_samples_seen": other.get("rung"),
                    "first_value": 1 - 10 ** one["log_error"],
                    "second_value": 1 - 10 ** float(other["log_error"]),
                    "first_compute": one["compute"],
                    "second_compute": float(other["compute"]),
                    "times_less": float(other["compute"]) / one["compute"],
                }
            )
    return sorted(found, key=lambda row: row["first_compute"])
