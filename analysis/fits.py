"""Error against data size or compute: three forms, many starts, a robust loss, choice by the largest rung held out.

    power         E = a x^-b
    floor         E = a x^-b + c
    shift_floor   E = a (x + d)^-b + c     Zhai et al. 2106.04560: c irreducible error, d what nothing seen is worth

Residuals are in log error under a Huber loss that is summed, not averaged (a mean makes optimisers stop early:
arXiv 2404.10102 and OLMo-core PR 554). x is divided by its geometric mean, so that a change of its unit moves the
amplitude alone. The form is the one that predicts the largest rung best from the others; intervals resample
(draw, seed) units, each with all its sizes. A fit that is not possible is a row that says why.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import least_squares

from analysis.words import counted

Floats = NDArray[np.float64]
PARAMETERS = {"power": ("a", "b"), "floor": ("a", "b", "c"), "shift_floor": ("a", "b", "c", "d")}
HUBER_SCALE = 0.05  # in log error: about 5 % of the error counts as noise, more as an outlier
FLAT = 2e-3  # a curve that loses less than this share of the error from the smallest to the largest rung is flat
STARTS = [(b, floor, shift) for b in (0.1, 0.5, 1.5) for floor in (0.05, 0.7) for shift in (0.01, 1.0)]


@dataclass(frozen=True)
class Fit:
    """One curve. Parameters are for x in its own unit and error as a fraction; unrounded."""

    status: str  # 'ok', or why there is none
    form: str | None
    parameters: dict[str, float]
    intervals: dict[str, tuple[float, float]]  # 95 %, percentile bootstrap; empty with one seed
    held_out_x: float | None  # the largest rung
    held_out_log_error: float | None  # |log(predicted / measured)| there, of the fit to the other rungs; mean of runs
    held_out_log_ratio: float | None  # log(predicted / measured), below zero where the prediction is too low
    compared: dict[str, float]  # the same of every form that could be tried
    rungs: int
    runs: int
    dropped_not_finite: int
    dropped_zero_error: int
    note: str

    def row(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def predict(self, x: Floats) -> Floats:
        """Error at x, which lies inside the fitted range: nothing here is meant for extrapolation."""
        assert self.form is not None
        return predict(x, np.array([self.parameters[name] for name in PARAMETERS[self.form]]))


def fit(frame: pd.DataFrame, resamples: int = 100, seed: int = 0) -> Fit:
    """The best form for rows of x, error (a fraction), draw, seed.

    Never raises for what data hold: the status says 'no usable run', 'one rung', 'error does not fall with x'.
    """
    usable, not_finite, zero = clean(frame)
    rungs = usable["x"].nunique()
    empty = Fit("no usable run", None, {}, {}, None, None, None, {}, rungs, len(usable), not_finite, zero, "")
    if rungs < 2:
        return empty if rungs == 0 else replace(empty, status="one rung: no curve can be told from a point")
    x, error = usable["x"].to_numpy(float), usable["error"].to_numpy(float)
    largest = float(x.max())
    ratios = {form: held_out(form, x, error) for form, names in PARAMETERS.items() if rungs - 1 >= len(names)}
    compared = {form: float(np.abs(ratio).mean()) for form, ratio in ratios.items()}
    form = min(compared, key=lambda name: compared[name]) if compared else "power"
    found = fit_form(form, x, error)
    if found is None or not falls(found, x):
        return replace(empty, status="error does not fall with x", compared=compared)
    names = PARAMETERS[form]
    intervals, note = bootstrap(form, usable, found, resamples, seed)
    if not compared:
        note = f"{note} Two rungs: the curve goes through them; nothing was held out.".strip()
    return replace(
        empty,
        status="ok",
        form=form,
        parameters=dict(zip(names, map(float, found), strict=True)),
        intervals=intervals,
        held_out_x=largest if compared else None,
        held_out_log_error=compared.get(form),
        held_out_log_ratio=float(ratios[form].mean()) if compared else None,
        compared=compared,
        note=note,
    )


def clean(frame: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Rows with a finite x above zero and an error above zero; how many others there were, by reason."""
    values = frame[["x", "error"]].astype(float)
    finite = pd.Series(np.isfinite(values.to_numpy()).all(axis=1), index=values.index) & (values["x"] > 0)
    positive = values["error"] > 0  # log(0) would swallow the other points
    kept = frame[finite & positive].astype({"x": float, "error": float})
    return kept, int((~finite).sum()), int((finite & ~positive).sum())


def predict(x: Floats, parameters: Floats) -> Floats:
    """a (x + d)^-b + c; c and d are zero where the form has none."""
    a, b, c, d = [*parameters, 0.0, 0.0][:4]
    return np.asarray(a * (x + d) ** -b + c)


def falls(parameters: Floats, x: Floats) -> bool:
    """Whether the curve loses a visible share of the error over the range of x, whatever its form."""
    first, last = predict(np.array([x.min(), x.max()]), parameters)
    return bool(last < first * (1 - FLAT))


def fit_form(form: str, x: Floats, error: Floats, start: Floats | None = None) -> Floats | None:
    """Parameters of one form, from every start (or `start` alone); None when no start converges."""
    scale = float(np.exp(np.log(x).mean()))
    unit, logs = x / scale, np.log(error)
    count = len(PARAMETERS[form])

    def residuals(theta: Floats) -> Floats:
        natural = from_theta(theta, count)
        return np.asarray(np.log(np.maximum(predict(unit, natural), 1e-300)) - logs)

    def jacobian(theta: Floats) -> Floats:
        a, b, c, d = [*from_theta(theta, count), 0.0, 0.0][:4]
        moving = a * (unit + d) ** -b
        share = moving / np.maximum(moving + c, 1e-300)
        columns = [share, -share * np.log(unit + d), 1 - share, -share * b * d / (unit + d)]
        return np.stack(columns[:count], axis=1)

    def solve(theta: Floats, evaluations: int) -> Any:
        return least_squares(
            residuals, theta, jacobian, bounds(count), loss="huber", f_scale=HUBER_SCALE, max_nfev=evaluations
        )

    if start is not None:
        near = solve(to_theta(rescaled(start, 1 / scale)), 60)
        return rescaled(from_theta(near.x, count), scale) if np.isfinite(near.x).all() else None
    starts = starts_of(error, count)
    tried = [result for result in (solve(theta, 40) for theta in starts) if np.isfinite(result.x).all()]
    if not tried:
        return None
    best = solve(min(tried, key=lambda result: result.cost).x, 400)
    return rescaled(from_theta(best.x, count), scale)


def from_theta(theta: Floats, count: int) -> Floats:
    """(log a, b, log c, log d) to natural parameters."""
    return np.array([np.exp(theta[0]), theta[1], *np.exp(theta[2:count])])


def to_theta(natural: Floats) -> Floats:
    """The inverse, inside the bounds."""
    logs = np.log(np.maximum(natural, 1e-12))
    theta = np.array([logs[0], natural[1], *logs[2:]])
    low, high = bounds(len(natural))
    return np.clip(theta, np.array(low) + 1e-6, np.array(high) - 1e-6)


def bounds(count: int) -> tuple[list[float], list[float]]:
    """Of theta. Exponents from 0 (flat) to 5; floors up to 1; shifts up to a thousand times the middle of x."""
    return [-60.0, 0.0, -16.0, -12.0][:count], [60.0, 5.0, 0.0, 7.0][:count]


def rescaled(natural: Floats, scale: float) -> Floats:
    """Parameters for x x scale: only a and d carry x's unit."""
    moved = natural.copy()
    moved[0] *= scale ** natural[1]
    if len(natural) == 4:
        moved[3] *= scale
    return moved


def starts_of(error: Floats, count: int) -> list[Floats]:
    """A grid over exponent, floor and shift; those that a form lacks are left out."""
    low, middle = float(error.min()), float(np.median(error))
    grid = {
        tuple(to_theta(np.array([max(middle - share * low, 1e-6), b, share * low, shift][:count])))
        for b, share, shift in STARTS
    }
    return [np.array(theta) for theta in sorted(grid)]


def held_out(form: str, x: Floats, error: Floats) -> Floats:
    """log(predicted / measured) of every run of the largest rung, by a fit to all others; infinite where it fails."""
    inside = x < x.max()
    found = fit_form(form, x[inside], error[inside])
    if found is None:
        return np.array([np.inf])
    return np.asarray(np.log(predict(x[~inside], found)) - np.log(error[~inside]))


def bootstrap(
    form: str, usable: pd.DataFrame, found: Floats, resamples: int, seed: int
) -> tuple[dict[str, tuple[float, float]], str]:
    """Percentile intervals over resampled (draw, seed) units, and what there is to say of them."""
    units = [part for _, part in usable.groupby(["draw", "seed"])]
    if len(units) < 3:
        return {}, f"{counted(len(units), 'seed')} cannot carry an interval; three are needed."
    rng, samples, failed = np.random.default_rng(seed), [], 0
    for _ in range(resamples):
        again = pd.concat([units[i] for i in rng.integers(0, len(units), len(units))])
        fitted = None
        if again["x"].nunique() >= len(PARAMETERS[form]):
            fitted = fit_form(form, again["x"].to_numpy(float), again["error"].to_numpy(float), start=found)
        if fitted is None:
            failed += 1
        else:
            samples.append(fitted)
    if failed > resamples // 10:
        return {}, f"{failed} of {resamples} resamples could not be fitted: no interval."
    low, high = np.percentile(np.array(samples), [2.5, 97.5], axis=0)
    pairs = {name: (float(low[i]), float(high[i])) for i, name in enumerate(PARAMETERS[form])}
    return pairs, "" if len(units) >= 5 else f"{len(units)} seeds: percentile intervals are too narrow."


def fit_each(scores: pd.DataFrame, by: str, x: Sequence[float] | pd.Series, resamples: int = 100) -> dict[str, Fit]:
    """A fit for every model or family.

    Args:
        scores: of analysis.results.scores.
        by: 'model' or 'family'.
        x: images, exaFLOPs or device-days of each row.
    """
    frame = scores.assign(x=np.asarray(x, dtype=float), error=1 - scores["value"].astype(float))
    return {str(name): fit(part, resamples) for name, part in frame.groupby(by, sort=False)}
