"""Compute at equal accuracy: known ratios, odd ladders, and bands."""

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.compute_ratio import compare_compute, matched_pairs
from analysis.figures_compute import compute_scaling
from analysis.report import build
from analysis.results import Tables, load
from analysis.summary import analyse, lines, ratio_line, times_less
from tests.analysis.studies import linear_gap, runs_table, write_study

RUNGS = (1.0, 2.0, 4.0, 8.0)


def ladder(
    ratio: float, noise: float = 0.0, seeds: int = 2, rungs: tuple[float, ...] = RUNGS, seed: int = 0
) -> pd.DataFrame:
    """Error 0.5 (compute)^-0.3 for ResNet; ViT reaches the same with `ratio` x the compute."""
    rng = np.random.default_rng(seed)
    rows = []
    for family, factor in (("ViT", 1 / ratio), ("ResNet", 1.0)):
        for rung in rungs:
            for number in range(seeds):
                error = 0.5 * (factor * rung) ** -0.3 * np.exp(rng.normal(0, noise))
                name = f"{family}-{rung:g}"
                rows.append({"family": family, "model": name, "compute": rung, "seed": number, "value": 1 - error})
    return pd.DataFrame(rows)


@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.0, 2.0])
def test_a_known_ratio_is_found(ratio: float) -> None:
    found = compare_compute(ladder(ratio, noise=1e-6), "ViT", "ResNet", "exaflops")
    assert found.status == "ok"
    assert found.ratio is not None
    assert found.times_less is not None
    assert found.ratio.value == pytest.approx(ratio, rel=1e-4)
    assert found.times_less.value == pytest.approx(1 / ratio, rel=1e-4)
    assert found.ratio.low <= found.ratio.value <= found.ratio.high


def test_the_interval_widens_with_the_noise() -> None:
    widths = []
    for noise in (0.005, 0.02):
        found = compare_compute(ladder(0.5, noise), "ViT", "ResNet", "exaflops").ratio
        assert found is not None
        widths.append(found.high / found.low)
    assert np.log(widths[1]) > 2 * np.log(widths[0]) > 0


def test_a_unit_of_compute_cancels() -> None:
    one = ladder(0.5, 0.01)
    other = one.assign(compute=1e18 * one["compute"])
    first, second = (compare_compute(table, "ViT", "ResNet", "x").ratio for table in (one, other))
    assert first is not None
    assert second is not None
    assert second.value == pytest.approx(first.value, rel=1e-9)
    assert second.high == pytest.approx(first.high, rel=1e-9)


def test_no_accuracy_that_both_reach_is_no_ratio_but_says_who_is_ahead() -> None:
    found = compare_compute(ladder(0.05, 0.001), "ViT", "ResNet", "exaflops")
    assert found.ratio is None
    assert found.status == "no accuracy that both reach: ViT is ahead throughout"
    assert [band.verdict for band in found.bands] == ["ahead"] * 3


@pytest.mark.parametrize("names", [("ViT", "ResNet"), ("ResNet", "ViT")])
def test_nobody_is_ahead_where_no_compute_is_common(names: tuple[str, str]) -> None:
    table = ladder(1.0, 0.001)
    table["compute"] = table["compute"].where(table["family"] == "ViT", table["compute"] / 100)
    table["value"] = table["value"].where(table["family"] == "ViT", table["value"] - 0.4)
    found = compare_compute(table, *names, "exaflops")
    above = "all accuracies of ViT lie above those of ResNet, but their computes do not overlap"
    assert (found.status, found.ratio, found.bands) == (f"no accuracy that both reach: {above}", None, [])


@pytest.mark.parametrize(
    "table, words",
    [
        (ladder(0.5, rungs=(1.0, 2.0)), "ViT has 2 rung"),
        (ladder(0.5).assign(value=0.5), "slope of ViT is not clear of zero"),
        (ladder(0.5).assign(value=lambda table: 0.5 - table["compute"] / 100), "does not fall"),
        (ladder(0.5).assign(value=np.nan), "ViT has 0 rung"),
        (ladder(0.5).assign(value=1.0), "ViT has 0 rung"),  # zero error has no logarithm
        (ladder(0.5).assign(compute=0.0), "ViT has 0 rung"),
        (ladder(0.5, noise=2.0, seeds=1), "f"),  # slopes no one can tell from zero
    ],
)
def test_odd_ladders_give_a_reason_and_no_number(table: pd.DataFrame, words: str) -> None:
    found = compare_compute(table, "ViT", "ResNet", "exaflops")
    assert found.ratio is None
    assert words in found.status


def test_a_family_ahead_at_small_compute_alone_is_told_by_bands() -> None:
    table = ladder(1.0, noise=1e-4)
    vit = table["family"] == "ViT"
    steeper = 0.4 * table["compute"] ** -0.3 * (table["compute"] / 8) ** 0.12 * 1.25
    table.loc[~vit, "value"] = 1 - steeper[~vit]
    bands = compare_compute(table, "ResNet", "ViT", "exaflops").bands
    assert bands[0].verdict == "ahead"
    assert bands[0].gap_points.value > bands[1].gap_points.value > bands[2].gap_points.value


def test_rungs_that_scatter_more_than_seeds_explain_become_the_observations() -> None:
    table = ladder(0.5, noise=0.001, seeds=5)
    wobble = table["compute"].map({1.0: 1.05, 2.0: 0.93, 4.0: 1.06, 8.0: 0.96})
    found = compare_compute(table.assign(value=1 - (1 - table["value"]) * wobble), "ViT", "ResNet", "exaflops")
    assert found.observations == "means of rungs"
    assert found.degrees_of_freedom == 4
    assert compare_compute(ladder(0.5, 0.01, seeds=5), "ViT", "ResNet", "exaflops").observations == "runs"


def test_the_published_ladder_gives_a_ratio_with_its_interval_in_exaflops() -> None:
    tables = load(Path(__file__).parents[2] / "results" / "pocket_compute@glyphs" / "report" / "tables")
    rows = {(row["first"], row["second"], row["unit"]): row for row in analyse(tables)["compute_ratio"]}
    assert len(rows) == 6  # three pairs of families, in exaFLOPs and in device-days
    ratio = rows["ViT", "ResNet", "exaflops"]["ratio"]
    assert 0 < ratio["low"] < ratio["value"] < ratio["high"]
    assert tables.finished.groupby("family")["model"].nunique().tolist() == [4, 4, 4]


def study(tmp_path: Path, sizes: tuple[int, ...]) -> Tables:
    """Ladders of four rungs of ViT, which needs half the compute, and ResNet at the first size; the largest rung of
    both at the others. Two seeds."""
    parts = [ladder(0.5, 0.001).assign(subset_samples=size) for size in sizes]
    first = min(sizes)
    runs = pd.concat(part[(part["compute"] == 8) | (part["subset_samples"] == first)] for part in parts)
    names = runs["model"] + "-" + runs["subset_samples"].astype(str) + "-" + runs["seed"].astype(str)
    runs = runs.rename(columns={"compute": "exaflops_spent", "value": "best_val_top1"})
    runs.assign(run_id=names, state="finished", num_classes=10).to_csv(tmp_path / "mine.csv", index=False)
    return load(tmp_path / "mine.csv")


def test_a_stray_run_at_a_larger_size_hides_no_ladder_and_the_size_is_said(tmp_path: Path) -> None:
    alone = analyse(study(tmp_path, (25_000,)), "exaflops")
    tables = study(tmp_path, (25_000, 100_000))
    found = analyse(tables, "exaflops")
    assert found["ladder"]["subset_samples"] == 25_000
    assert found["ladder"]["rungs"] == {"ViT": 4, "ResNet": 4}
    assert found["compute_ratio"] == alone["compute_ratio"]
    assert found["compute_ratio"][0]["ratio"]["value"] == pytest.approx(0.5, rel=0.02)
    text = "\n".join(lines(found))
    assert "Compute is compared on 25,000 images, the largest size with ladders of two families." in text
    assert "ViT against ResNet in exaFLOPs on 25,000 images: 0.50 x the compute" in text
    assert "Fit of ViT against exaflops on 25,000 images: " in text
    assert "Compute is compared on" not in "\n".join(lines(alone))
    chart = compute_scaling(tables, "best_val_top1")
    assert chart is not None
    assert chart.caption.startswith("Runs on 25,000 images, the largest size with ladders of two families; lines join")
    folder = tmp_path / "t"
    folder.mkdir()
    (tmp_path / "mine.csv").rename(folder / "runs.csv")
    build(folder, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "intervals. Runs on 25,000 images, the largest size with ladders of two families.</p>" in page


def test_without_a_ladder_at_any_size_the_reason_is_printed(tmp_path: Path) -> None:
    tables = study(tmp_path, (25_000, 100_000))
    few = dataclasses.replace(tables, runs=tables.runs[tables.runs["exaflops_spent"].isin([2, 8])])
    assert (
        "No compute ratio: it takes a ladder of 3 or more rungs (models, or lengths of training) of different compute "
        "in two families on one size; on 100,000 images the rungs are: ViT 1, ResNet 1."
    ) in lines(analyse(few))
    one = dataclasses.replace(tables, runs=tables.runs[tables.runs["family"] == "ViT"])
    assert "No compute ratio: all runs are of one family, ViT." in lines(analyse(one))
    none = dataclasses.replace(tables, runs=tables.runs.assign(exaflops_spent=float("nan")))
    assert any(
        line.startswith("No compute ratio: no run has both an accuracy below 1 and") for line in lines(analyse(none))
    )


def rates_as_rungs(seconds: tuple[float, ...]) -> pd.DataFrame:
    """One model a family by three recipes of different accuracy, with the seconds of each."""
    parts = []
    for number, factor in enumerate(seconds):
        part = runs_table(linear_gap(2.0, 1000, noise=0.2), sizes=(1000,)).assign(recipe=f"rate{number}")
        part["run_id"] += f"-{number}"
        part["best_val_top1"] += 0.05 * number
        part["device_seconds_train"] = 100 * factor * np.where(part["family"] == "ViT", 1.0, 1.5)
        parts.append(part)
    return pd.concat(parts, ignore_index=True).assign(exaflops_spent=None)


def test_computes_within_five_per_cent_are_one_rung(tmp_path: Path) -> None:
    near = analyse(load(write_study(tmp_path, rates_as_rungs((1.0, 1.002, 1.04)))), x="device_days")
    assert near["ladder"]["rungs"] == {"ViT": 1, "ResNet": 1}
    assert [row["ratio"] for row in near["compute_ratio"]] == [None]
    assert {row["status"] for row in near["fits"]["rows"]} == {"one rung: no curve can be told from a point"}
    slow = rates_as_rungs((1.0, 1.2, 1.5)).assign(exaflops_spent=1e-7)  # a machine that did other work too
    assert analyse(load(write_study(tmp_path, slow)), x="device_days")["ladder"]["rungs"] == {"ViT": 1, "ResNet": 1}
    assert {row["ratio"] for row in analyse(load(tmp_path))["compute_ratio"]} == {None}
    far = analyse(load(write_study(tmp_path, rates_as_rungs((1.0, 2.0, 4.0)))))
    assert far["ladder"]["rungs"] == {"ViT": 3, "ResNet": 3}
    assert far["compute_ratio"][0]["status"] == "ok"


def test_a_run_without_compute_moves_no_rung(tmp_path: Path) -> None:
    """Error 0.5 (compute)^-0.3 of four rungs; the second one's exaFLOPs are not known."""
    runs = study(tmp_path, (1000,)).runs
    whole = {row["name"]: row for row in analyse(study(tmp_path, (1000,)), "exaflops")["fits"]["rows"]}
    runs = runs.assign(exaflops_spent=runs["exaflops_spent"].mask(runs["model"] == "ViT-2"))
    runs.to_csv(tmp_path / "mine.csv", index=False)
    found = {row["name"]: row for row in analyse(load(tmp_path / "mine.csv"), "exaflops")["fits"]["rows"]}
    assert found["ResNet"] == whole["ResNet"]
    assert found["ViT"]["rungs"] == 3
    assert found["ViT"]["parameters"]["b"] == pytest.approx(0.3, abs=0.01)


def test_a_parabola_takes_five_rungs_and_not_five_models() -> None:
    """Three rungs of two models each: as many observations as six rungs, on a curve that bends."""
    table = ladder(0.5, 0.001, rungs=(1.0, 2.0, 4.0))
    both = pd.concat([table, table.assign(model=table["model"] + "b", compute=1.01 * table["compute"])])
    bent = both.assign(value=both["value"] - 0.02 * np.log2(both["compute"]) ** 2)
    found = compare_compute(bent, "ViT", "ResNet", "exaflops")
    assert (found.observations, found.degrees_of_freedom) == ("means of rungs", 2 * (6 - 2))  # a parabola: 2 * (6 - 3)


def test_lengths_that_differ_by_a_batch_are_one_rung(tmp_path: Path) -> None:
    runs = study(tmp_path, (1000,)).runs
    for seen in (100_000, 100_000 + 70 * runs["seed"]):
        runs.assign(samples_seen=seen).to_csv(tmp_path / "mine.csv", index=False)
        (row,) = analyse(load(tmp_path / "mine.csv"))["compute_ratio"]
        assert (row["degrees_of_freedom"], row["observations"]) == (12, "runs")  # 16 runs, two lines


def test_rungs_are_counted_in_the_unit_that_makes_ladders(tmp_path: Path) -> None:
    runs = rates_as_rungs((1.0, 2.0, 4.0))
    of_resnet = (runs["device_seconds_train"] * 1e-9).where(runs["family"] == "ResNet")
    found = analyse(load(write_study(tmp_path, runs.assign(exaflops_spent=of_resnet))))
    assert found["ladder"]["reason"] == ""
    assert [(row["unit"], row["status"]) for row in found["compute_ratio"]] == [
        ("exaflops", "ViT has 0 rungs of compute; 3 are needed"),
        ("device_days", "ok"),
    ]


def test_compute_that_is_about_the_same_is_not_said_to_be_less() -> None:
    def line(value: float) -> str:
        interval = {"value": value, "low": 0.9 * value, "high": 1.1 * value}
        less = {"value": 1 / value, "low": 1 / (1.1 * value), "high": 1 / (0.9 * value)}
        row = {"first": "ViT", "second": "ResNet", "unit": "exaflops", "subset_samples": 1000, "ratio": interval}
        return ratio_line(row | {"times_less": less, "accuracy_range": (0.2, 0.4), "status": "ok"})

    assert "0.99 x the compute (0.89 to 1.09), that is about the same, at" in line(0.99)
    assert "1.02 x the compute (0.92 to 1.12), that is about the same, at" in line(1.02)
    assert "0.50 x the compute (0.45 to 0.55), that is 2.0 x less (1.8 to 2.2), at" in line(0.5)
    assert "2.00 x the compute (1.80 to 2.20), at" in line(2.0)
    assert [times_less(times) for times in (1.02, 0.8, 2.61)] == [
        "about the same compute",
        "1.2 x more compute",
        "2.6 x less compute",
    ]


def test_matched_pairs_are_within_a_tenth_of_a_point() -> None:
    found = matched_pairs(ladder(0.5), "ViT", "ResNet")
    assert [(row["first"], row["second"], round(row["times_less"], 6)) for row in found] == [
        ("ViT-1", "ResNet-2", 2.0),
        ("ViT-2", "ResNet-4", 2.0),
        ("ViT-4", "ResNet-8", 2.0),
    ]
