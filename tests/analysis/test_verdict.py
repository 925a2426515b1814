"""Each branch of the rules on a table made for it."""

import pandas as pd
import pytest

from analysis.crossover import Rules
from analysis.results import Tables
from analysis.verdict import Verdict, judge_all, rough
from tests.analysis.studies import PAIR, linear_gap, runs_table


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
    assert "clear of chance" in result.would_decide


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
