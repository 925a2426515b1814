"""Gaps, slopes and crossovers against hand-computed values and known truths."""

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.crossover import Comparison, Rules, compare, paired_differences, pooled_variance, sign_changes
from analysis.overfitting import sentence
from analysis.results import Tables, scores
from analysis.summary import crossover_row, plain
from analysis.verdict import bounds
from analysis.verdict import sentence as words
from tests.analysis.studies import PAIR, linear_gap, runs_table

RULES = Rules()


def table(values: dict[tuple[str, int], list[float]], num_classes: int = 10) -> pd.DataFrame:
    """scores from {(model, size): accuracy a seed}."""
    rows = [
        {"run_id": f"{model}{size}{seed}", "model": model, "family": model, "subset_samples": size, "draw": seed}
        | {"seed": seed, "value": value, "chance": 1 / num_classes}
        for (model, size), accuracies in values.items()
        for seed, value in enumerate(accuracies)
    ]
    return pd.DataFrame(rows)


BY_HAND = {
    ("vit", 1000): [0.50, 0.54],
    ("resnet", 1000): [0.60, 0.60],
    ("vit", 100_000): [0.80, 0.82],
    ("resnet", 100_000): [0.75, 0.75],
}


def by_hand(rules: Rules = RULES) -> Comparison:
    return compare(table(BY_HAND), "vit", "resnet", rules)


def test_gaps_and_pooled_interval_by_hand() -> None:
    """Differences -10, -6 | +5, +7: means -8, 6; pooled variance (2*2^2 + 2*1^2) / 2 = 5 with 2 degrees of freedom."""
    comparison = by_hand(Rules(min_degrees_of_freedom=2))
    assert [gap.gap.value for gap in comparison.gaps] == pytest.approx([-8, 6])
    assert comparison.degrees_of_freedom == 2
    half = stats.t.ppf(0.975, 2) * math.sqrt(5 / 2)
    assert comparison.gaps[0].gap.low == pytest.approx(-8 - half)
    assert comparison.gaps[1].gap.high == pytest.approx(6 + half)


def test_slope_by_hand_is_the_rise_over_two_decades() -> None:
    comparison = by_hand(Rules(min_degrees_of_freedom=2))
    assert comparison.slope.value == pytest.approx(7.0)
    spread = 4 * 1.0**2  # four runs, each one decade from the centre
    half = stats.t.ppf(0.975, 2) * math.sqrt(5 / spread)
    assert comparison.slope.high == pytest.approx(7.0 + half)


def test_too_few_degrees_of_freedom_carry_no_interval() -> None:
    comparison = by_hand()
    assert comparison.degrees_of_freedom == 2 < RULES.min_degrees_of_freedom
    assert not comparison.slope.known
    assert not any(gap.gap.known for gap in comparison.gaps)
    assert comparison.crossover.where == "not determined"


def test_slope_equals_ordinary_least_squares() -> None:
    scored = scores_of(linear_gap(3.0, 20_000, noise=1.5))
    differences = paired_differences(scored, "vit", "resnet")
    fit = stats.linregress(np.log10(differences["size"].astype(float)), differences["difference"])
    assert compare(scored, "vit", "resnet", RULES).slope.value == pytest.approx(fit.slope)


def scores_of(accuracy: object, **options: int) -> pd.DataFrame:
    runs = runs_table(accuracy, **options)  # type: ignore[arg-type]
    return scores(Tables(runs, pd.DataFrame(), pd.DataFrame(), {}), "best_val_top1")


def test_a_crossover_in_range_is_found_at_its_place() -> None:
    comparison = compare(scores_of(linear_gap(5.0, 20_000, noise=0.01)), "vit", "resnet", RULES)
    assert comparison.crossover.where == "in range"
    size = comparison.crossover.size
    assert size is not None
    assert size.value == pytest.approx(20_000, rel=0.02)
    assert size.low < size.value < size.high  # that it covers the truth is a matter of frequency: see below
    assert size.high / size.low < 1.02


@pytest.mark.parametrize("truth, side", [(1e7, "above the largest size"), (10, "below the smallest size")])
def test_a_crossover_outside_the_range_is_a_side_and_no_number(truth: float, side: str) -> None:
    comparison = compare(scores_of(linear_gap(4.0, truth, noise=0.1)), "vit", "resnet", RULES)
    assert comparison.crossover.where == side
    assert comparison.crossover.size is None


def test_the_bounds_of_a_crossover_never_leave_the_range() -> None:
    for seed in range(30):
        size = compare(scores_of(linear_gap(3.0, 3_000, noise=1.0, seed=seed)), "vit", "resnet", RULES).crossover.size
        if size is not None:
            assert 1000 <= size.low <= size.value <= size.high <= 100_000 * (1 + 1e-9)


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """300 studies of 3 sizes x 2 seeds: the slope's and the crossover's 95 % intervals."""
    slope_hits, crossover_hits, crossovers = 0, 0, 0
    for seed in range(300):
        comparison = compare(scores_of(linear_gap(6.0, 10_000, noise=2.0, seed=seed), seeds=2), "vit", "resnet", RULES)
        slope_hits += comparison.slope.low <= 6.0 <= comparison.slope.high
        size = comparison.crossover.size
        if size is not None:
            crossovers += 1
            crossover_hits += size.low <= 10_000 <= size.high
    assert 0.91 <= slope_hits / 300 <= 0.99
    assert crossovers > 200
    assert 0.91 <= crossover_hits / crossovers <= 1.0


def test_a_size_near_chance_is_shown_and_not_used() -> None:
    values = BY_HAND | {("vit", 100): [0.02, 0.02], ("resnet", 100): [0.6, 0.6]}
    comparison = compare(table(values, num_classes=100), "vit", "resnet", Rules(min_degrees_of_freedom=2))
    assert [(gap.size, gap.used) for gap in comparison.gaps] == [(100, False), (1000, True), (100_000, True)]
    assert comparison.slope.value == pytest.approx(7.0)
    assert comparison.degrees_of_freedom == 2


@pytest.mark.parametrize("num_classes, threshold", [(2, 0.75), (4, 0.625), (10, 0.5), (100, 0.05)])
def test_the_threshold_stays_in_reach_with_few_classes(num_classes: int, threshold: float) -> None:
    for value, used in ((threshold + 1e-6, True), (threshold - 1e-6, False)):
        scored = table({("vit", 1000): [value], ("resnet", 1000): [value]}, num_classes)
        assert compare(scored, "vit", "resnet", RULES).gaps[0].used is used


def test_only_paired_seeds_count() -> None:
    values = BY_HAND | {("vit", 1000): [0.50, 0.54, 0.99]}
    comparison = compare(table(values), "vit", "resnet", Rules(min_degrees_of_freedom=2))
    assert comparison.gaps[0].pairs == 2
    assert comparison.gaps[0].gap.value == pytest.approx(-8)


def test_a_size_is_clear_of_chance_by_its_paired_runs() -> None:
    values = BY_HAND | {("vit", 100): [0.02, 0.02], ("resnet", 100): [0.6, 0.6]}
    unpaired = table({("vit", 100): [0.02, 0.02, 0.9]}, 100).tail(1)
    scored = pd.concat([table(values, num_classes=100), unpaired])
    gap = compare(scored, "vit", "resnet", RULES).gaps[0]
    assert (gap.size, gap.pairs, gap.first_mean, gap.used) == (100, 2, pytest.approx(0.02), False)
    better = {("vit", 100): [0.3, 0.3], ("resnet", 100): [0.6, 0.6, *[0.0] * 20]}
    assert compare(table(BY_HAND | better, 100), "vit", "resnet", RULES).gaps[0].used


def test_one_seed_and_one_size_have_defined_outcomes() -> None:
    one = compare(table({("vit", 1000): [0.5], ("resnet", 1000): [0.6]}), "vit", "resnet", RULES)
    assert one.gaps[0].gap.value == pytest.approx(-10)
    assert not one.gaps[0].gap.known
    assert math.isnan(one.slope.value)
    assert one.crossover.where == "not determined"
    nothing = compare(table({("vit", 1000): [0.5]}), "vit", "resnet", RULES)
    assert nothing.gaps == []
    assert pooled_variance(paired_differences(table({("vit", 1): [0.5]}), "vit", "resnet"))[1] == 0


accuracies = st.lists(st.floats(0.3, 0.7), min_size=8, max_size=8)


@given(accuracies, st.floats(-0.2, 0.2), st.randoms())
@settings(max_examples=30, deadline=None)
def test_shifts_and_row_order_change_no_gap(values: list[float], shift: float, random: object) -> None:
    keys = [(model, size) for model in ("vit", "resnet") for size in (1000, 10_000)]
    cells = {key: values[2 * i : 2 * i + 2] for i, key in enumerate(keys)}
    rules = Rules(min_degrees_of_freedom=1, min_times_chance=0)
    plain = compare(table(cells), "vit", "resnet", rules)
    moved = table({key: [value + shift for value in pair] for key, pair in cells.items()})
    moved = moved.sample(frac=1, random_state=random.randint(0, 999))  # type: ignore[attr-defined]
    other = compare(moved, "vit", "resnet", rules)
    assert [gap.gap.value for gap in other.gaps] == pytest.approx([gap.gap.value for gap in plain.gaps], abs=1e-9)
    assert other.slope.value == pytest.approx(plain.slope.value, abs=1e-9)


@given(st.integers(1, 6))
@settings(max_examples=10, deadline=None)
def test_scaling_sizes_moves_the_crossover_alone(power: int) -> None:
    factor = 10**power
    small = scores_of(linear_gap(5.0, 20_000, noise=0.5))
    large = small.assign(subset_samples=small["subset_samples"] * factor)
    one, other = (compare(frame, "vit", "resnet", RULES) for frame in (small, large))
    assert other.slope.value == pytest.approx(one.slope.value)
    assert one.crossover.size is not None
    assert other.crossover.size is not None
    assert other.crossover.size.value == pytest.approx(factor * one.crossover.size.value, rel=1e-6)


FIGURE_4 = {9_000_000: -9.89, 30_000_000: 2.17, 90_000_000: 2.77, 300_000_000: 3.17}  # ViT-B/32 - ResNet50x1


def saturating(end: float = 3.17) -> Comparison:
    """Three seeds of Figure 4's gap that differ by half a point; a line over all sizes crosses at about 60M."""
    gaps = FIGURE_4 | {300_000_000: end}
    values = {("resnet", size): [0.5, 0.5, 0.5] for size in gaps} | {
        ("vit", size): [0.5 + (gap + shift) / 100 for shift in (-0.5, 0, 0.5)] for size, gap in gaps.items()
    }
    return compare(table(values, num_classes=100), "vit", "resnet", RULES)


def test_the_crossover_of_a_gap_that_saturates_is_where_it_changes_sign() -> None:
    size = saturating().crossover.size
    assert size is not None
    decades = math.log10(30 / 9) * 9.89 / (9.89 + 2.17)  # straight between the two sizes
    assert size.value == pytest.approx(9_000_000 * 10**decades, rel=1e-3)
    assert 9_000_000 < size.low < size.value < size.high < 30_000_000
    assert "between the measured 9,000,000 and 30,000,000" in bounds(saturating())


def test_the_bound_of_a_crossover_is_where_the_interpolated_band_leaves_zero() -> None:
    """At the upper bound the interpolated gap is as far above zero as its half-width there."""
    size = saturating().crossover.size
    assert size is not None
    t = math.log10(size.high / 9e6) / math.log10(30 / 9)
    half = stats.t.ppf(0.975, 8) * math.sqrt(0.25 / 3 * ((1 - t) ** 2 + t**2))
    assert (1 - t) * -9.89 + t * 2.17 == pytest.approx(half, abs=0.02)


def test_a_bound_at_the_end_of_the_sizes_is_open() -> None:
    values = {("resnet", size): [0.5, 0.5, 0.5] for size in (1000, 10_000)} | {
        ("vit", size): [0.5 + (gap + shift) / 100 for shift in (-1, 0, 1)] for size, gap in ((1000, -9), (10_000, 1))
    }
    found = compare(table(values, num_classes=100), "vit", "resnet", RULES)
    assert "or more, between the measured 1,000 and 10,000" in bounds(found)
    assert bounds(found) in sentence(found)


def test_seeds_that_hardly_differ_give_a_narrow_interval() -> None:
    """Narrower than the places at which the band is looked at."""
    values = {("resnet", size): [0.5, 0.5, 0.5] for size in (1000, 10_000)} | {
        ("vit", size): [0.5 + (gap + shift) / 100 for shift in (-1e-5, 0, 1e-5)]
        for size, gap in ((1000, -9.13), (10_000, 2.17))
    }
    size = compare(table(values, num_classes=100), "vit", "resnet", RULES).crossover.size
    assert size is not None
    assert size.value == pytest.approx(10 ** (3 + 9.13 / 11.3), rel=1e-6)
    assert size.low == pytest.approx(size.value, rel=0.01)
    assert size.high == pytest.approx(size.value, rel=0.01)


def of_gaps(*gaps: float, noise: float = 0.3) -> Comparison:
    """Gaps in points at 1,000, 10,000, … images, three seeds."""
    sizes = [1000 * 10**step for step in range(len(gaps))]
    values = {("resnet", size): [0.5, 0.5, 0.5] for size in sizes} | {
        ("vit", size): [0.5 + (gap + shift * noise) / 100 for shift in (-1, 0, 1)]
        for size, gap in zip(sizes, gaps, strict=True)
    }
    return compare(table(values, num_classes=100), "vit", "resnet", RULES)


@pytest.mark.parametrize("gaps, zero", [((-6, 9, 1, 1.5), 3 + 6 / 15), ((-6, -8, 3, 1), 4 + 8 / 11)])
def test_one_change_of_sign_is_where_the_measured_gaps_have_it(gaps: tuple[float, ...], zero: float) -> None:
    size = of_gaps(*gaps).crossover.size
    assert size is not None
    assert size.value == pytest.approx(10**zero, rel=1e-6)
    assert size.low < size.value < size.high


def test_a_crossover_outside_says_how_far_its_interval_comes_in() -> None:
    near, far = of_gaps(-9, -6, -3, -0.05), of_gaps(-9, -6, -3, -2)
    assert near.crossover.where == far.crossover.where == "above the largest size"
    assert near.crossover.reaches is not None
    assert 600_000 < near.crossover.reaches < 1_000_000
    assert far.crossover.reaches is None
    first = of_gaps(0.05, 3, 5, 8).crossover
    assert first.where == "below the smallest size"
    assert first.reaches is not None
    assert 1000 < first.reaches < 1500


def test_the_first_and_the_last_gap_give_the_direction_where_they_are_clear() -> None:
    """The line through a gap that rises at once and falls again falls, and would see no crossover."""
    peaked = of_gaps(-1, 8, 6, 4, 2, 2)
    assert peaked.slope.value < 0
    assert peaked.crossover.size is not None
    assert peaked.crossover.size.value == pytest.approx(10 ** (3 + 1 / 9), rel=1e-6)
    reverse = of_gaps(1, -8, -6, -4, -2, -2)
    assert reverse.crossover.size is not None
    assert reverse.crossover.size.value == pytest.approx(peaked.crossover.size.value)
    assert sentence(peaked).startswith("vit does worse than resnet below 1,300 images")
    assert sentence(reverse).startswith("vit does worse than resnet above 1,300 images")


def test_the_middle_of_a_flat_zero_is_the_crossover() -> None:
    size = of_gaps(-2, 0, 0, 0, 2).crossover.size
    assert size is not None
    assert size.value == pytest.approx(100_000)
    assert size.low < 10_000
    assert size.high > 1_000_000


def test_several_changes_of_sign_are_counted_and_have_no_single_size() -> None:
    for gaps, within in (((-20, 5, 5, -2), "6,100 to 580,000"), ((-5, 6, -6, 8), "")):
        found = of_gaps(*gaps)
        size = found.crossover.size
        assert size is not None
        assert math.isnan(size.value)
        assert size.low < size.high
        reason = f"the gap changes sign {len(sign_changes(found.used))} times, between 1,000 and 10,000 and between "
        assert found.crossover.reason.startswith(reason)
        assert found.crossover.reason in words("trend only", found)
        assert "so no single crossover is named; all lie within " + within in words("trend only", found)
        assert "crossover at" not in words("trend only", found)
        assert "no size can be named" in sentence(found)
        row = plain(crossover_row(found))
        assert row["crossover"]["size"]["value"] is None
        assert len(row["measured_changes_of_sign"]) == len(sign_changes(found.used))


def test_several_changes_of_sign_are_counted_without_an_interval_too() -> None:
    values = {("resnet", size): [0.5] for size in (1000, 2000, 4000)} | {
        ("vit", size): [0.5 + gap / 100] for size, gap in ((1000, -3), (2000, 3), (4000, -3))
    }
    found = compare(table(values, 100), "vit", "resnet", RULES)
    assert "the gap changes sign 2 times, between 1,000 and 2,000 and between 2,000 and 4,000" in words("x", found)


@pytest.mark.parametrize(
    "gaps, expected",
    [
        ({1000: -3, 2000: 0, 4000: -1}, "does worse than resnet at 1,000, 4,000 images; no worse at 2,000."),
        ({1000: 0, 2000: 0, 4000: -1}, "does worse than resnet at 4,000 images; no worse at 1,000, 2,000."),
        ({1000: 0, 2000: 2}, "does no worse than resnet at any size measured."),
        ({1000: -1, 2000: -2}, "does worse than resnet at every size measured."),
        ({10: -1, 1000: 2, 2000: 3}, "does no worse than resnet at any size at which both are clear of chance."),
        ({10: 1, 1000: -2, 2000: -3}, "does worse than resnet at every size at which both are clear of chance."),
        ({10: 1, 1000: -2, 2000: 0}, "does worse than resnet at 1,000 images; no worse at 2,000."),
    ],
)
def test_ties_and_sizes_at_chance_are_no_changes_of_sign(gaps: dict[int, float], expected: str) -> None:
    base = {size: 0.02 if size == 10 else 0.5 for size in gaps}  # chance is 0.01
    values = {("resnet", size): [base[size]] for size in gaps} | {
        ("vit", size): [base[size] + gap / 100] for size, gap in gaps.items()
    }
    assert sentence(compare(table(values, 100), "vit", "resnet", RULES)) == f"vit {expected}"


def test_models_at_chance_throughout_are_not_ranked() -> None:
    found = compare(table({("vit", 1000): [0.02], ("resnet", 1000): [0.01]}, 100), "vit", "resnet", RULES)
    assert sentence(found) == "vit against resnet: no size at which both are clear of chance."


def test_a_change_of_sign_against_the_gaps_direction_is_no_crossover() -> None:
    found = of_gaps(0.05, -20, -10, -1)
    assert found.slope.low > 0
    assert found.crossover.where == "not determined"
    assert found.crossover.reason.startswith("as measured the gap changes sign between 1,000 and 10,000 images, ag")


def test_a_crossover_near_the_end_has_its_interval_in_words() -> None:
    assert "its interval is 790,000 images or more" in words("trend only", of_gaps(-9, -6, -3, -0.05))


def test_sizes_have_as_many_digits_as_tell_them_apart() -> None:
    values = {("resnet", size): [0.5, 0.5, 0.5] for size in (1000, 1040)} | {
        ("vit", size): [0.5 + (gap + shift) / 100 for shift in (-0.1, 0, 0.1)] for size, gap in ((1000, -9), (1040, 9))
    }
    assert "crossover at 1,020 images (1,020 to 1,020, between" in words("x", compare(table(values, 100), *PAIR, RULES))
