"""Each branch of the rules on a table made for it."""

import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.crossover import Interval, Rules
from analysis.overfitting import sentence as larger_does_worse
from analysis.report import verdict_card
from analysis.results import Tables, load
from analysis.summary import analyse
from analysis.verdict import Verdict, judge_all, points, rough
from tests.analysis.studies import PAIR, linear_gap, runs_table, write_study


def verdict(accuracy: object, rules: dict[str, float] | None = None, **options: int) -> Verdict:
    runs = runs_table(accuracy, **options)  # type: ignore[arg-type]
    study = {"pairs": [list(PAIR)], "metric": "best_val_top1", "rules": rules or {}}
    return judge_all(Tables(runs, pd.DataFrame(), pd.DataFrame(), study))[0]


def test_reproduced_needs_both_ends_clear_of_zero() -> None:
    result = verdict(linear_gap(6.0, 10_000, noise=0.5))
    assert result.outcome == "reproduced"
    assert "crossover at" in result.sentence
    assert result.would_decide == ""


def test_trend_only_is_a_clear_slope_without_a_change_of_sign() -> None:
    result = verdict(linear_gap(4.0, 1e7, noise=0.3))
    assert result.outcome == "trend only"
    assert "above the largest size" in result.sentence
    unclear_end = verdict(linear_gap(4.0, 95_000, noise=0.5))
    assert unclear_end.outcome == "trend only"


def test_not_reproduced_excludes_the_smallest_interesting_slope() -> None:
    assert verdict(linear_gap(-5.0, 1.0, noise=0.3)).outcome == "not reproduced"
    assert verdict(linear_gap(0.0, 1e4, noise=0.3)).outcome == "not reproduced"


def test_a_flat_gap_with_a_wide_interval_is_inconclusive_and_says_what_would_decide() -> None:
    result = verdict(linear_gap(0.0, 1e4, noise=8.0))
    assert result.outcome == "inconclusive"
    assert "seeds" in result.would_decide


def test_one_seed_is_inconclusive_for_want_of_degrees_of_freedom() -> None:
    result = verdict(linear_gap(6.0, 10_000), seeds=1)
    assert result.outcome == "inconclusive"
    assert "0 degrees of freedom" in result.would_decide


def test_everything_near_chance_is_inconclusive_for_want_of_sizes() -> None:
    result = verdict(linear_gap(6.0, 10_000), num_classes=2)
    assert result.outcome == "inconclusive"
    assert "no size" in result.sentence
    assert result.would_decide == (
        "a smaller rules.min_times_chance, set before the runs, or longer training: at least two sizes must be clear "
        "of chance, and the rule asks for 100 % or more (5 x chance is 250 % with 2 classes; in its place half-way "
        "from chance to 100 % is asked, 75 %)."
    )
    smaller = verdict(linear_gap(6.0, 10_000), {"min_times_chance": 0.5}, num_classes=2)
    assert len(smaller.comparison.used) == 3


@pytest.mark.parametrize(
    "num_classes, card",
    [
        (
            5,
            "x chance. 5 x chance is 100 % with 5 classes; in its place half-way from chance to 100 % is asked, 60 %.",
        ),
        (8, "reach 5 x chance. 5 x chance is 62.5 % with 8 classes; in its place half-way from chance"),
        (10, "reach 5 x chance. Smallest interesting slope"),
    ],
)
def test_the_card_says_what_is_asked_with_few_classes(num_classes: int, card: str) -> None:
    result = verdict(linear_gap(6.0, 10_000), num_classes=num_classes)
    assert card in verdict_card(result, {}, result.metric)
    assert ("100 % or more" in result.would_decide) == (num_classes == 5)


def test_the_study_files_numbers_decide() -> None:
    accuracy = linear_gap(0.0, 1e4, noise=1.0, seed=3)
    strict = verdict(accuracy, {"smallest_interesting_slope_points_per_decade": 0.01})
    assert strict.outcome == "inconclusive"
    assert strict.rules == Rules(smallest_interesting_slope_points_per_decade=0.01)
    accuracy = linear_gap(0.0, 1e4, noise=1.0, seed=3)
    assert verdict(accuracy, {"smallest_interesting_slope_points_per_decade": 20.0}).outcome == "not reproduced"


@pytest.mark.parametrize("images, text", [(12_345, "12,000"), (999, "1,000"), (7, "7"), (3_456_789, "3,500,000")])
def test_sizes_are_rounded_for_reading(images: float, text: str) -> None:
    assert rough(images) == text


def test_more_digits_where_sizes_are_close() -> None:
    assert rough(12_346, 12_300, 12_900) == "12,350"
    assert rough(1_023.6, 1_023.8) == "1,024"  # whole images


def test_seeds_that_do_not_differ_carry_no_interval() -> None:
    result = verdict(linear_gap(0.0, 1e4, noise=0.0))
    assert result.outcome == "inconclusive"
    assert "no interval" in result.sentence
    assert "seeds that differ" in result.would_decide


def test_one_size_asks_for_sizes_and_not_for_longer_training() -> None:
    result = verdict(linear_gap(6.0, 10_000, noise=0.5), sizes=(100_000,))  # type: ignore[arg-type]
    assert result.would_decide.startswith("more sizes")


def spread(count: int, deviation: float) -> np.ndarray:
    """So many numbers around zero with exactly this sample deviation."""
    values = np.linspace(-1, 1, count)
    return np.asarray(values * deviation / values.std(ddof=1))


def gaps_of(slope: float, deviation: float, seeds: int, rules: dict[str, float] | None = None) -> Verdict:
    """Gaps of exactly this slope (points a decade), zero in the middle, and of this deviation at every size."""
    noise = spread(seeds, deviation)

    def accuracy(model: str, size: int, seed: int) -> float:
        return 0.5 + (model == "vit") * (slope * (np.log10(size) - 4) + noise[seed]) / 100

    return verdict(accuracy, rules, seeds=seeds)


@pytest.mark.parametrize(
    "slope, deviation", [(-0.74, 7.9), (0.0, 8.0), (0.7, 8.0), (1.0, 3.0), (1.6, 5.0), (1.9, 3.0), (-5.0, 12.0)]
)
def test_so_many_seeds_decide_it_and_one_less_does_not(slope: float, deviation: float) -> None:
    """Of the study as it would be: the same slope, the same deviation of a pair, that many seeds."""
    now = gaps_of(slope, deviation, seeds=3)
    assert now.outcome == "inconclusive"
    found = re.match(r"about (\d+) seeds a size \(now 3\)", now.would_decide)
    assert found is not None
    assert gaps_of(slope, deviation, int(found[1])).outcome != "inconclusive"
    assert gaps_of(slope, deviation, int(found[1]) - 1).outcome == "inconclusive"


def test_seeds_without_end_are_not_counted() -> None:
    flat = gaps_of(0.0, 8.0, 3, {"smallest_interesting_slope_points_per_decade": 0.01})
    assert flat.would_decide.startswith("more than 1,000 seeds a size (now 3)")


def test_the_seeds_that_the_published_pocket_study_would_need() -> None:
    """8 by its own numbers: slope -0.738, deviation of a pair from the half width 7.888 at 3 degrees of freedom."""
    (found,) = judge_all(load(Path(__file__).parents[2] / "results" / "pocket@glyphs" / "report" / "tables"))
    error = 7.888086578526453 / stats.t.ppf(0.975, 3) * np.sqrt(2)
    highs = {n: -0.7379724764853183 + stats.t.ppf(0.975, 3 * (n - 1)) * error / np.sqrt(n) for n in (7, 8)}
    assert highs[8] < 2 < highs[7]
    assert found.would_decide.startswith("about 8 seeds a size (now 2)")


def test_what_rounds_to_nothing_has_no_minus_and_one_is_no_plural() -> None:
    assert points(Interval(-0.04, -0.049, 0.04)) == "+0.0 points (+0.0 to +0.0)"
    assert points(Interval(-0.04, math.nan, math.nan)) == "+0.0 points (no interval)"
    alone = verdict(lambda model, size, seed: 0.5 + 0.1 * (model == "vit"), sizes=(1,))  # type: ignore[arg-type]
    assert "at 1 image, the only size used" in alone.sentence
    two = verdict(linear_gap(6.0, 2), sizes=(1, 10), seeds=1)  # type: ignore[arg-type]
    assert "at 1 image and" in two.sentence
    larger = larger_does_worse(two.comparison)
    assert larger == "vit does worse than resnet at 1 image and better at 10 (as measured; no interval)."
    few = verdict(linear_gap(6.0, 2, noise=0.5), sizes=(1,), seeds=2)  # type: ignore[arg-type]
    assert (few.comparison.degrees_of_freedom, few.comparison.gaps[0].size) == (1, 1)
    assert "1 degree of freedom (" in verdict_card(few, {}, few.metric)


def test_analyze_says_that_runs_are_missing_and_repeats_are_none(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    again = runs.assign(run_id="again-" + runs["run_id"])
    whole = analyse(load(write_study(tmp_path, pd.concat([runs, again]))))
    assert whole["verdict"][0]["sentence"].startswith("Reproduced: ")
    under_way = analyse(load(write_study(tmp_path, runs, expected_runs=20)))
    assert under_way["verdict"][0]["sentence"].startswith("Interim (18 of 20 runs finished): Reproduced: ")
    assert under_way["verdict"][0]["outcome"] == "reproduced"
    failed = runs.assign(state=runs["state"].where(runs.index != 0, "failed"))
    assert analyse(load(write_study(tmp_path, failed)))["verdict"][0]["sentence"].startswith("Interim (17 of 18 runs")
    redone = pd.concat([runs, runs[:1].assign(run_id="first-try", state="failed")])
    assert analyse(load(write_study(tmp_path, redone)))["verdict"][0]["sentence"].startswith("Reproduced: ")
    twice = pd.concat([failed, failed[:1].assign(run_id="second-try")])
    assert analyse(load(write_study(tmp_path, twice)))["verdict"][0]["sentence"].startswith("Interim (17 of 18 runs")
