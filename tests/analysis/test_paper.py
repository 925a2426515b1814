"""The analysis on the paper's own numbers gives what the paper says of them."""

import json

import numpy as np
import pytest

from analysis import paper
from analysis.commands import paper_command
from analysis.figures import data_scaling
from analysis.figures_compute import compute_scaling, pretraining_sets
from analysis.summary import analyse, lines
from harness.cli import main

SIGN_CHANGES = {"ViT-B/32": (9_000_000, 30_000_000), "ViT-L/16": (30_000_000, 90_000_000)}
# B/32 and R152x1, B/16 and R152x2, L/16 and R200x3, L/32 and R152x2 at 14 epochs.
MATCHED = {
    ("ViT-B/32", "ResNet152x1"): 2.6,
    ("ViT-B/16", "ResNet152x2"): 2.5,
    ("ViT-L/16", "ResNet200x3"): 4.2,
    ("ViT-L/32", "ResNet152x2"): 5.7,
}


@pytest.fixture(scope="module")
def table6() -> dict[str, object]:
    return analyse(paper.table6(), "exaflops")


def test_figure_4_vit_overtakes_where_the_paper_has_it_and_carries_no_interval() -> None:
    for row in analyse(paper.figure4())["crossover"]:
        change = row["measured_change_of_sign"]
        assert (change["below"], change["above"]) == SIGN_CHANGES[row["first"]]
        assert change["upwards"]
        assert row["crossover"]["size"] is None  # one seed a point: no interval, so no bare number


def test_table_6_matched_pairs(table6: dict) -> None:  # type: ignore[type-arg]
    found = {
        (row["first"], row["second"]): round(row["times_less"], 1)
        for row in table6["matched_compute_pairs"]["ViT over ResNet"]
    }
    assert found == MATCHED


def test_the_curve_level_ratio_has_an_interval_that_overlaps_the_papers_words(table6: dict) -> None:  # type: ignore[type-arg]
    row = next(row for row in table6["compute_ratio"] if (row["first"], row["second"]) == ("ViT", "ResNet"))
    less = row["times_less"]
    assert less["low"] < less["value"] < less["high"]
    assert less["value"] == pytest.approx(3.8, abs=0.05)
    assert (less["low"], less["high"]) == (pytest.approx(2.3, abs=0.06), pytest.approx(6.4, abs=0.06))


def test_hybrids_are_ahead_at_small_compute_and_not_at_large(table6: dict) -> None:  # type: ignore[type-arg]
    row = next(row for row in table6["compute_ratio"] if (row["first"], row["second"]) == ("hybrid", "ViT"))
    assert [band["verdict"] for band in row["bands"]] == ["ahead", "not told apart", "not told apart"]


def test_table_5_bigger_models_do_worse_on_imagenet() -> None:
    sentences = [row["sentence"] for row in analyse(paper.figure3())["overfitting"]["bigger_against_smaller"]]
    assert any(text.startswith("ViT-L/16 does worse than ViT-B/16 at 1,300,000 images") for text in sentences)
    assert any(text.startswith("ViT-L/32 does worse than ViT-B/32 at 14,000,000 images") for text in sentences)


def test_table_5_predicts_the_error_of_b_32_on_jft_too_low() -> None:
    """By hand: a line in logs through ImageNet and ImageNet-21k, extended to JFT-300M."""
    table = paper.figure3()
    rows = table.runs[table.runs["model"] == "ViT-B/32"].set_index("subset_samples")["best_val_top1"]
    x, y = np.log(rows.index.to_numpy(float)), np.log(1 - rows.to_numpy(float))
    order = np.argsort(x)
    x, y = x[order], y[order]
    predicted = y[1] + (y[1] - y[0]) / (x[1] - x[0]) * (x[2] - x[1])
    percent = 100 * (1 - np.exp(predicted - y[2]))
    assert percent == pytest.approx(38.4, abs=0.05)
    (line,) = [line for line in lines(analyse(table)) if line.startswith("Fit of ViT-B/32")]
    assert "held out: predicted error 38.4 % too low" in line


def test_the_command_prints_all_of_it_as_json_without_nan(capsys: pytest.CaptureFixture[str]) -> None:
    assert paper_command(as_json=True) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert len(found) == 8
    for result in found.values():
        assert {"crossover", "verdict", "compute_ratio", "overfitting", "fits"} <= set(result)


@pytest.mark.parametrize("words", [["--pairs", "ViT-B/16:ResNet50x1"], ["--x", "images"], ["--metric", "test_top1"]])
def test_what_the_papers_numbers_do_not_take_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "--paper", *words]) == 2
    assert f"harness analyze --paper: {words[0]} is for a table of yours; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(path.stem for path in paper.REFERENCE.glob("*.csv")))
def test_every_row_of_a_reference_table_names_its_source(name: str) -> None:
    table = paper.read(name)
    assert len(table)
    assert table["source"].notna().all()
    if "digitised" in name:
        assert table["verified"].str.contains("digitised").all()


def test_average_of_five_is_the_mean_that_the_table_carries() -> None:
    table = paper.read("table6")
    assert (100 * paper.table6().runs["best_val_top1"]).tolist() == pytest.approx(table["average5_computed"].tolist())


def test_each_figure_of_the_paper_is_drawn_from_a_table() -> None:
    figures = [
        data_scaling(paper.figure4()),
        pretraining_sets(paper.figure3(), overlay=True),
        *[compute_scaling(paper.table6(), f"transfer:{target}:0") for target in paper.TARGETS],
        compute_scaling(paper.table6(), "best_val_top1"),
    ]
    for chart in figures:
        assert chart is not None
        assert sum(len(texts) for texts in chart.tips.values()) >= 14


def test_its_figures_claim_what_the_paper_says_and_no_more() -> None:
    scaling = data_scaling(paper.figure4())
    assert scaling.axes.get_ylabel() == "Top-1 [%], 5-shot linear on ImageNet"
    assert scaling.caption == "One run a point."  # no seeds, no intervals, no equal steps
    marks = [(line.get_color(), line.get_marker()) for line in scaling.axes.lines if line.get_gid()]
    assert len(set(marks)) == len(marks) == 6  # four ViTs and two ResNets, each told apart
    days = compute_scaling(paper.table6(), "best_val_top1", "device_days")
    flops = compute_scaling(paper.table6(), "best_val_top1")
    assert days is not None
    assert flops is not None
    assert days.axes.get_xlabel() == "Pre-training time [TPUv3-core-days]"
    assert "for 680 TPUv3-core-days" in str(days.tips)
    assert "MAC" not in flops.caption
    assert "as the paper counts them" in flops.caption
    label = " ".join(flops.axes.get_ylabel().split())  # which is wrapped
    assert label == "Accuracy [%], average of five, Pets and Flowers by mean per-class accuracy"


def test_pets_and_flowers_are_by_mean_per_class_accuracy_and_say_so() -> None:
    for target in paper.TARGETS:
        chart = compute_scaling(paper.table6(), f"transfer:{target}:0")
        assert chart is not None
        label = " ".join(chart.axes.get_ylabel().split())
        measure = "Mean per-class accuracy" if target in ("pets", "flowers") else "Top-1"
        assert label == f"{measure} [%], {target}, fine-tuned"
        assert ("mean per-class accuracy" in chart.title) == (target in ("pets", "flowers"))
        assert ("mean per-class" in lines(analyse(paper.table6(), "exaflops", f"transfer:{target}:0"))[0]) == (
            target in ("pets", "flowers")
        )
    sets = pretraining_sets(paper.figure3("Oxford-IIIT-Pets"))
    assert sets is not None
    assert sets.axes.get_ylabel().replace("\n", " ") == "Mean per-class accuracy [%], fine-tuned on Oxford-IIIT-Pets"
