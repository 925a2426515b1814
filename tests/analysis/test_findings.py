"""What README.md, docs/findings.md and results/README.md say of the published studies, against their tables."""

import math
from pathlib import Path

import pytest

from analysis.crossover import Interval
from analysis.results import load
from analysis.verdict import judge_all

ROOT = Path(__file__).parents[2]
FINDINGS = (ROOT / "docs" / "findings.md").read_text()
STUDIES = {"crossover@glyphs_tex": 36, "icons@icons": 16}


def number(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def interval(value: Interval) -> str:
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"


@pytest.mark.parametrize("study", STUDIES)
def test_the_verdict_and_its_numbers_are_those_of_the_tables(study: str) -> None:
    tables = load(ROOT / "results" / study / "report" / "tables")
    assert tables.runs["state"].tolist() == ["finished"] * STUDIES[study]
    (verdict,) = judge_all(tables)
    assert f"Verdict: {verdict.outcome}" in FINDINGS
    assert verdict.sentence in (ROOT / "results" / study / "report" / "report.md").read_text()
    for gap in verdict.comparison.gaps:
        cells = f"{100 * gap.first_mean:.1f} % | {100 * gap.second_mean:.1f} % | {interval(gap.gap)}"
        assert cells in FINDINGS, cells
    row = next(line for line in (ROOT / "results" / "README.md").read_text().splitlines() if f"[{study}]" in line)
    first, last, slope = verdict.comparison.gaps[0].gap, verdict.comparison.gaps[-1].gap, verdict.comparison.slope
    assert f"| {STUDIES[study]} | {verdict.outcome}: " in row
    for value in (first, last):
        assert interval(value).replace(" (", " points (") in row or interval(value) in row
    assert f"slope {number(slope.value)} a decade ({number(slope.low)} to {number(slope.high)})" in row


@pytest.mark.parametrize("study", STUDIES)
def test_overfitting_is_that_of_the_tables(study: str) -> None:
    runs = load(ROOT / "results" / study / "report" / "tables").runs
    gaps = 100 * (runs["train_top1_final"] - runs["val_top1_final"])
    for family in ("vit", "resnet"):
        of_family = runs["model"].isin([f"{family}_glyph", f"{family}_icon"])
        means = [f"{value:.1f}" for value in gaps[of_family].groupby(runs["subset_samples"]).mean()]
        if study.startswith("crossover"):
            assert ", ".join(means) in FINDINGS
        else:
            assert all(any(mean in line for line in FINDINGS.splitlines() if "points" not in line) for mean in means)


def test_the_ladder_s_patch_4_series_and_compute_are_those_of_the_tables() -> None:
    runs = load(ROOT / "results" / "crossover@glyphs_tex" / "report" / "tables").runs
    one = runs[runs["seed"] == 1].pivot_table(index="subset_samples", columns="model", values="test_top1")
    differences = [number(100 * value) for value in one["vit_p4_glyph"] - one["resnet_glyph"]]
    assert f"({', '.join(differences[1:])}; one seed, no interval)" in FINDINGS
    assert f"{abs(float(differences[0].replace('−', '-')))} points behind the ResNet at 30k" in FINDINGS
    hours = runs["device_seconds_train"].sum() / 3600
    assert f"| crossover | 36 | {runs['exaflops_spent'].sum():.5f} | 0.00250 | {hours:.1f} |" in FINDINGS
    assert math.isclose(runs["training_flops_per_image"].max(), runs["training_flops_per_image"].min(), rel_tol=0.03)
