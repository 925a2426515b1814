"""What is there twice counts once, and is said."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.results import load, scores
from analysis.summary import analyse, lines
from tests.analysis.studies import curves_table, linear_gap, runs_table, transfer_table, write_study


def test_of_runs_of_one_model_size_draw_and_seed_the_latest_counts(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5)).assign(finished_at="2026-02-01T00:00:00Z")
    runs["best_val_top1"] = runs["best_val_top1"].round(6)
    again = runs[:2].assign(run_id=["again-0", "again-1"], best_val_top1=0.9)
    again["finished_at"] = ["2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z"]  # the first is older, the second newer
    tables = load(write_study(tmp_path, pd.concat([again, runs])))
    values = scores(tables, "best_val_top1").set_index("run_id")["value"]
    assert len(values) == len(runs)
    assert values["again-1"] == 0.9
    assert values["vit-1000-s0"] == runs["best_val_top1"][0]
    assert set(tables.runs[tables.runs["state"] == "repeated"]["run_id"]) == {"again-0", "vit-1000-s1"}
    assert not tables.transfer["run_id"].isin(["again-0", "vit-1000-s1"]).any()
    assert "2 run(s) repeat the model, size, draw and seed of another" in "\n".join(lines(analyse(tables)))


@pytest.mark.parametrize(
    "older, newer",
    [
        ("2026-03-01T10:00:00+09:00", "2026-03-01T02:00:00Z"),  # 01:00 and 02:00 in UTC
        ("2026-03-01T23:00:00-01:00", "2026-03-02T00:30:00.5Z"),
        ("2026-03-01 09:30:00", "2026-03-01T09:30:00.250"),
        ("2026-03-01T09:00:00Z", "2026-03-01T09:30:00"),  # UTC where no zone is named
        ("yesterday", "2026-03-01T09:30:00"),
        (None, "2026-03-01T09:30:00"),
        ("yesterday", "by noon"),  # no times: the last row
    ],
)
@pytest.mark.parametrize("newer_first", [False, True])
def test_times_are_compared_as_times(tmp_path: Path, older: str | None, newer: str, newer_first: bool) -> None:
    run = runs_table(linear_gap(6.0, 10_000))[:1]
    two = [run.assign(run_id="older", finished_at=older), run.assign(run_id="newer", finished_at=newer)]
    turned = newer_first and newer != "by noon"
    tables = load(write_study(tmp_path, pd.concat(two[::-1] if turned else two)))
    assert tables.finished["run_id"].tolist() == ["newer"]


def test_runs_of_two_lengths_are_two_models(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    longer = runs[:9].assign(run_id="long-" + runs["run_id"][:9], samples_seen=400_000, best_val_top1=0.9)
    tables = load(write_study(tmp_path, pd.concat([runs, longer])))
    assert set(tables.runs["model"]) == {"vit · 200000 samples seen", "vit · 400000 samples seen", "resnet"}
    found = analyse(tables)
    assert [item["pair"][0] for item in found["verdict"]] == ["vit · 200000 samples seen", "vit · 400000 samples seen"]
    assert found["notes"] == []


def test_a_length_that_goes_with_the_size_is_no_other_model(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000))
    runs["samples_seen"] = 100 * runs["subset_samples"]
    assert set(load(write_study(tmp_path, runs)).runs["model"]) == {"vit", "resnet"}


def test_repeated_transfer_rows_count_once(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000))
    rows = transfer_table(runs)
    write_study(tmp_path, runs)
    pd.concat([rows[:1].assign(value=0.1), rows]).to_csv(tmp_path / "transfer.csv", index=False)
    tables = load(tmp_path)
    assert scores(tables, "transfer:digits:5")["value"].tolist() == pytest.approx([0.71] * len(runs))
    assert tables.notes == ("1 row(s) of transfer repeat another's run, evaluation and seed; the last of each counts",)


@pytest.mark.parametrize("name, value", [("value", 7), ("value", float("inf")), ("exaflops", -1)])
def test_curve_rows_that_cannot_be_drawn_are_left_out_and_counted(tmp_path: Path, name: str, value: float) -> None:
    runs = runs_table(linear_gap(6.0, 10_000))
    curves = curves_table(runs)
    write_study(tmp_path, runs)
    curves[name] = curves[name].where(curves.index > 0, value)
    curves.to_csv(tmp_path / "curves.csv", index=False)
    tables = load(tmp_path)
    assert len(tables.curves) == len(curves) - 1
    assert "1 row(s) of curves left out" in tables.notes[0]
