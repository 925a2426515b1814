"""Honest intervals: 500 simulated studies with a known crossover and a known compute ratio.

Noise is that of the published pocket studies: paired differences vary by 0.57 points (Fashion-MNIST) and 2.8 points
(glyphs) over seeds, log error by 0.025. `make test-slow` prints the table.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from analysis import paper
from analysis.compute_ratio import compare_compute
from analysis.crossover import Crossover, Rules, compare, paired_differences
from analysis.results import scores

pytestmark = pytest.mark.slow
STUDIES = 500
SIZES = (1000, 5000, 25_000, 100_000)
SLOPE = 6.0  # points a decade
CROSSOVER = 12_000
LOG_ERROR_NOISE = 0.025


def study(rng: np.random.Generator, crossover: float, noise: float, seeds: int) -> pd.DataFrame:
    """Scores of two models whose gap is SLOPE x log10(size / crossover); each draw moves both alike."""
    return study_of(rng, lambda size: SLOPE * np.log10(size / crossover), dict.fromkeys(SIZES, noise), seeds)


def study_of(
    rng: np.random.Generator, gap: Callable[[float], float], noises: dict[int, float], seeds: int
) -> pd.DataFrame:
    """The same for any gap (points by size) and noise of its own at each size (points)."""
    rows = []
    for size, noise in noises.items():
        for seed in range(seeds):
            draw = rng.normal(0, 0.01)
            for model, mean in (("vit", 0.5 + gap(size) / 100), ("resnet", 0.5)):
                value = mean + draw + rng.normal(0, noise / 100 / np.sqrt(2))
                rows.append((model, model, model, size, seed, seed, value, 0.01))
    columns = ["run_id", "model", "family", "subset_samples", "draw", "seed", "value", "chance"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def covers(crossover: Crossover, truth: float, sizes: tuple[int, ...] = SIZES) -> bool:
    """Whether what is said of the crossover holds the truth: an interval, of which a bound at the end of the sizes is
    open, or a side, which begins at the end of the sizes where no interval comes in."""
    if crossover.where == "above the largest size":
        return truth >= (crossover.reaches or sizes[-1])
    if crossover.where == "below the smallest size":
        return truth <= (crossover.reaches or sizes[0])
    assert crossover.size is not None
    low, high = crossover.size.low, crossover.size.high
    return (low <= truth or low <= sizes[0] * (1 + 1e-9)) and (truth <= high or high >= sizes[-1] * (1 - 1e-9))


class Tally:
    """Of the studies that say anything of the crossover, how many hold the truth."""

    def __init__(self, truth: float, sizes: tuple[int, ...] = SIZES) -> None:
        self.truth, self.sizes = truth, sizes
        self.said = self.covered = self.sides = self.wrong_sides = 0

    def add(self, crossover: Crossover) -> None:
        if crossover.where == "not determined":
            return
        right = covers(crossover, self.truth, self.sizes)
        flat = crossover.size is None and crossover.reaches is None  # "lies above …", without an interval
        self.said += 1
        self.covered += right
        self.sides += flat
        self.wrong_sides += flat and not right

    @property
    def share(self) -> float:
        return self.covered / self.said

    def __str__(self) -> str:
        sides = f"a side without an interval {self.sides}, of them wrong {self.wrong_sides}"
        return f"crossover {self.share:.1%} of {self.said}, {sides}"


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("noise", [0.57, 2.8])
def test_95_percent_intervals_of_slope_and_crossover_cover_the_truth(noise: float, seeds: int) -> None:
    rng = np.random.default_rng([seeds, round(100 * noise)])
    slope, crossover = 0, Tally(CROSSOVER)
    for _ in range(STUDIES):
        result = compare(study(rng, CROSSOVER, noise, seeds), "vit", "resnet", Rules())
        slope += result.slope.low <= SLOPE <= result.slope.high
        crossover.add(result.crossover)
    print(f"\nnoise {noise}, {seeds} seeds: slope {slope / STUDIES:.1%}, {crossover}")
    assert crossover.said >= 0.95 * STUDIES
    assert 0.92 <= slope / STUDIES <= 0.98
    assert 0.92 <= crossover.share <= 0.98


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("noise", [0.57, 2.8])
@pytest.mark.parametrize("truth", [1300, 90_000])
def test_a_crossover_just_inside_the_sizes_is_covered(truth: float, noise: float, seeds: int) -> None:
    """Many of these studies see no change of sign: a side named without an interval counts as a miss."""
    rng, crossover = np.random.default_rng([seeds, round(100 * noise), truth]), Tally(truth)
    for _ in range(STUDIES):
        crossover.add(compare(study(rng, truth, noise, seeds), "vit", "resnet", Rules()).crossover)
    print(f"\ncrossover at {truth:,}, noise {noise}, {seeds} seeds: {crossover}")
    assert crossover.said >= 0.95 * STUDIES
    assert 0.92 <= crossover.share <= 0.98


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("noise", [0.57, 2.8])
def test_the_crossover_of_a_gap_that_saturates_as_the_papers_is_covered(noise: float, seeds: int) -> None:
    """The truth is Figure 4's gap of ViT-B/32 and ResNet50x1, straight between its sizes and far from a line."""
    figure = paired_differences(scores(paper.figure4(), "best_val_top1"), "ViT-B/32", "ResNet50x1").sort_values("size")
    sizes, gaps = tuple(figure["size"].astype(int)), figure["difference"].to_numpy(float)
    truth = 10 ** float(np.interp(0, gaps, np.log10(sizes)))

    def gap(size: float) -> float:
        return float(np.interp(np.log10(size), np.log10(sizes), gaps))

    rng, crossover = np.random.default_rng([seeds, round(100 * noise), 4]), Tally(truth, sizes)
    for _ in range(STUDIES):
        crossover.add(
            compare(study_of(rng, gap, dict.fromkeys(sizes, noise), seeds), "vit", "resnet", Rules()).crossover
        )
    print(f"\nFigure 4's gap, noise {noise}, {seeds} seeds: {crossover}")
    assert crossover.said >= 0.95 * STUDIES
    assert 0.92 <= crossover.share <= 0.995


@pytest.mark.parametrize("seeds", [3, 5])
def test_noise_that_rises_with_size_leaves_slope_and_crossover_covered(seeds: int) -> None:
    """The glyph study's own deviations by size, two seeds each: one pooled variance is too kind to the last."""
    noises = dict(zip(SIZES, (0.13, 2.3, 2.9, 4.2), strict=True))
    rng = np.random.default_rng([seeds, 5])
    slope, last, crossover = 0, 0, Tally(CROSSOVER)
    for _ in range(STUDIES):
        result = compare(
            study_of(rng, lambda size: SLOPE * np.log10(size / CROSSOVER), noises, seeds), "vit", "resnet", Rules()
        )
        slope += result.slope.low <= SLOPE <= result.slope.high
        end = result.gaps[-1].gap
        last += end.low <= SLOPE * np.log10(SIZES[-1] / CROSSOVER) <= end.high
        crossover.add(result.crossover)
    print(
        f"\nrising noise, {seeds} seeds: slope {slope / STUDIES:.1%}, {crossover}, "
        f"gap at the largest size {last / STUDIES:.1%}"
    )
    assert slope / STUDIES >= 0.90
    assert crossover.share >= 0.92
    assert last / STUDIES < 0.92  # as docs/analysis.md says; mend the page when this changes


@pytest.mark.parametrize("seeds", [3, 5])
def test_a_crossover_just_outside_gets_no_interval_that_excludes_it(seeds: int) -> None:
    rng, crossover, numbers = np.random.default_rng([seeds, 2]), Tally(200_000), 0
    for _ in range(STUDIES):
        result = compare(study(rng, 200_000, 2.8, seeds), "vit", "resnet", Rules()).crossover
        crossover.add(result)
        numbers += result.size is not None
    print(f"\ncrossover at 200,000, {seeds} seeds: a number {numbers / STUDIES:.1%}; {crossover}")
    assert crossover.share >= 0.95


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("truth", [3_000_000, 50])
def test_studies_without_a_crossover_are_called_so(truth: float, seeds: int) -> None:
    rng = np.random.default_rng([seeds, truth])
    side = "above the largest size" if truth > max(SIZES) else "below the smallest size"
    called, numbers, crossover = 0, 0, Tally(truth)
    for _ in range(STUDIES):
        result = compare(study(rng, truth, 2.8, seeds), "vit", "resnet", Rules()).crossover
        called += result.where == side and result.reaches is None
        crossover.add(result)
        numbers += result.size is not None
    print(f"\ncrossover at {truth:,}, {seeds} seeds: {side} {called / STUDIES:.1%}, a number {numbers / STUDIES:.1%}")
    assert crossover.share >= 0.95
    assert called / STUDIES >= 0.90
    assert numbers / STUDIES <= 0.05


def ladder(rng: np.random.Generator, ratio: float, seeds: int) -> pd.DataFrame:
    """Four rungs a family; ViT reaches ResNet's accuracy with `ratio` x the compute."""
    rows = []
    for family, factor in (("ViT", 1 / ratio), ("ResNet", 1.0)):
        for rung in (1.0, 2.0, 4.0, 8.0):
            for _ in range(seeds):
                error = 0.6 * (factor * rung) ** -0.25 * np.exp(rng.normal(0, LOG_ERROR_NOISE))
                rows.append((family, f"{family}{rung}", rung, 1 - error))
    return pd.DataFrame(rows, columns=pd.Index(["family", "model", "compute", "value"]))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("ratio", [0.4, 1.0])
def test_95_percent_intervals_of_the_compute_ratio_cover_the_truth(ratio: float, seeds: int) -> None:
    rng = np.random.default_rng([seeds, round(10 * ratio)])
    covered, found = 0, 0
    for _ in range(STUDIES):
        result = compare_compute(ladder(rng, ratio, seeds), "ViT", "ResNet", "exaflops").ratio
        if result is not None:
            found += 1
            covered += result.low <= ratio <= result.high
    print(f"\nratio {ratio}, {seeds} seeds: {covered / found:.1%} of {found}")
    assert found >= 0.95 * STUDIES
    assert 0.92 <= covered / found <= 0.98


def test_two_seeds_at_one_size_carry_no_interval_and_say_so() -> None:
    from analysis.verdict import judge

    scores = study(np.random.default_rng(0), CROSSOVER, 1.0, 2)
    two_sizes = scores[scores["subset_samples"].isin(SIZES[::3])]
    result = compare(two_sizes, "vit", "resnet", Rules())
    assert not result.slope.known
    assert result.crossover.size is None
    assert "2 degrees of freedom, 3 are needed" in judge(result, Rules(), "best_val_top1").would_decide
