"""Honest intervals: 500 simulated studies with a known crossover and a known compute ratio.

Noise is that of the published pocket studies: paired differences vary by 0.57 points (Fashion-MNIST) and 2.8 points
(glyphs) over seeds, log error by 0.025. `make test-slow` prints the table.
"""

import numpy as np
import pandas as pd
import pytest

from analysis.compute_ratio import compare_compute
from analysis.crossover import Rules, compare

pytestmark = pytest.mark.slow
STUDIES = 500
SIZES = (1000, 5000, 25_000, 100_000)
SLOPE = 6.0  # points a decade
CROSSOVER = 12_000
LOG_ERROR_NOISE = 0.025


def study(rng: np.random.Generator, crossover: float, noise: float, seeds: int) -> pd.DataFrame:
    """Scores of two models whose gap is SLOPE x log10(size / crossover); each draw moves both alike."""
    rows = []
    for size in SIZES:
        for seed in range(seeds):
            draw = rng.normal(0, 0.01)
            gap = SLOPE * np.log10(size / crossover) / 100
            for model, mean in (("vit", 0.5 + gap), ("resnet", 0.5)):
                value = mean + draw + rng.normal(0, noise / 100 / np.sqrt(2))
                rows.append((model, model, model, size, seed, seed, value, 0.01))
    columns = ["run_id", "model", "family", "subset_samples", "draw", "seed", "value", "chance"]
    return pd.DataFrame(rows, columns=pd.Index(columns))


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("noise", [0.57, 2.8])
def test_95_percent_intervals_of_slope_and_crossover_cover_the_truth(noise: float, seeds: int) -> None:
    rng = np.random.default_rng([seeds, round(100 * noise)])
    slope, crossover, found = 0, 0, 0
    for _ in range(STUDIES):
        result = compare(study(rng, CROSSOVER, noise, seeds), "vit", "resnet", Rules())
        slope += result.slope.low <= SLOPE <= result.slope.high
        size = result.crossover.size
        if size is not None:
            found += 1
            crossover += size.low <= CROSSOVER <= size.high
    print(f"\nnoise {noise}, {seeds} seeds: slope {slope / STUDIES:.1%}, crossover {crossover / found:.1%} of {found}")
    assert found >= 0.95 * STUDIES
    assert 0.92 <= slope / STUDIES <= 0.98
    assert 0.92 <= crossover / found <= 0.98


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("truth", [3_000_000, 50])
def test_studies_without_a_crossover_are_called_so(truth: float, seeds: int) -> None:
    rng = np.random.default_rng([seeds, truth])
    side = "above the largest size" if truth > max(SIZES) else "below the smallest size"
    called, numbers = 0, 0
    for _ in range(STUDIES):
        result = compare(study(rng, truth, 2.8, seeds), "vit", "resnet", Rules()).crossover
        called += result.where == side
        numbers += result.size is not None
    print(f"\ncrossover at {truth:,}, {seeds} seeds: {side} {called / STUDIES:.1%}, a number {numbers / STUDIES:.1%}")
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
