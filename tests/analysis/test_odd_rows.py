"""Rows that no conclusion could use are refused by column and run: none is dropped in silence, none crashes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.commands import parse_pairs
from analysis.compute_ratio import matched_pairs
from analysis.crossover import Rules
from analysis.ladder import ladder
from analysis.overfitting import bigger_against_smaller, larger_first
from analysis.results import TableError, load, pairs_of, scores
from analysis.summary import analyse, family_pairs, fits_of, lines, matched_side
from harness.cli import main
from tests.analysis.studies import linear_gap, runs_table

FIRST = "vit-1000-s0"


def table(tmp_path: Path, changes: dict[str, Any], everywhere: bool = False) -> Path:
    """A sound table with values changed in its first run, or in every run."""
    runs = runs_table(linear_gap(6.0, 10_000)).astype(object)
    for name, value in changes.items():
        runs.loc[runs.index if everywhere else [0], name] = value
    runs.to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"family": None}, f"column family: empty in 1 finished runs, the first {FIRST}"),
        ({"seed": None}, f"column seed: empty in 1 finished runs, the first {FIRST}"),
        ({"model": None}, "column model: empty in 1"),
        ({"num_classes": None}, "column num_classes: empty in 1"),
        ({"num_classes": 0}, "column num_classes: 0 is no number of classes"),
        ({"subset_samples": 0}, "column subset_samples: 0 is no number of images"),
        ({"subset_samples": -1000}, "column subset_samples: -1000 is no number of images"),
        ({"subset_samples": 1e30}, "column subset_samples: 1e+30 is no number of images"),
        ({"subset_samples": 10.2}, "column subset_samples: 10.2 is no number of images"),
        ({"subset_samples": "1k"}, "column subset_samples: cannot be read as numbers"),
        ({"run_id": "vit-1000-s1"}, "column run_id: vit-1000-s1 is there more than once"),
        ({"state": "Finished"}, "column state: 'Finished'; runs that count are 'finished'"),
        ({"exaflops_spent": -1}, "column exaflops_spent: -1 is no finite number from 0 on"),
        ({"exaflops_spent": float("inf")}, "column exaflops_spent: inf is no finite number from 0 on"),
    ],
)
def test_a_row_that_nothing_can_use_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(TableError) as caught:
        load(table(tmp_path, changes))
    assert "mine" in str(caught.value)
    assert message in str(caught.value)


def test_runs_of_two_sets_are_not_averaged(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000))
    other = runs.assign(run_id="other-" + runs["run_id"], dataset="fashion")
    pd.concat([runs.assign(dataset="glyphs"), other]).to_csv(tmp_path / "both.csv", index=False)
    with pytest.raises(
        TableError, match=r"column dataset: runs of fashion \(other-vit-1000-s0\) and glyphs \(vit-1000-s0\) at"
    ):
        load(tmp_path / "both.csv")


def test_a_row_of_an_unfinished_run_may_be_incomplete(tmp_path: Path) -> None:
    path = table(tmp_path, {"state": "failed", "num_classes": None, "exaflops_spent": None, "best_val_top1": None})
    assert len(scores(load(path), "best_val_top1")) == 17


def test_an_accuracy_that_no_run_has_is_said(tmp_path: Path) -> None:
    tables = load(table(tmp_path, {"best_val_top1": None}, everywhere=True))
    with pytest.raises(TableError, match="metric best_val_top1: empty in every finished run; --metric"):
        scores(tables, "best_val_top1")
    assert len(scores(tables, "test_top1")) == 18


def test_a_named_file_is_read_and_not_the_one_beside_it(tmp_path: Path) -> None:
    path = table(tmp_path, {})
    expected = scores(load(path), "test_top1")["value"].tolist()
    pd.read_csv(path).assign(test_top1=0.9).to_parquet(tmp_path / "mine.parquet")
    assert scores(load(path), "test_top1")["value"].tolist() == expected
    assert set(scores(load(tmp_path / "mine.parquet"), "test_top1")["value"]) == {0.9}


@pytest.mark.parametrize(
    "metric, message",
    [
        ("accuracy", "17.5 is no fraction"),
        ("parameters", "no accuracy; of the documented columns"),
        ("run_id", "no accuracy"),
        ("num_classes", "no accuracy"),
        ("notes", "no accuracy; the column cannot be read as numbers"),
        ("", "metric : runs has no such column"),
    ],
)
def test_a_metric_that_is_no_accuracy_is_refused(tmp_path: Path, metric: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        scores(load(table(tmp_path, {"accuracy": 17.5, "notes": "good"}, everywhere=True)), metric)


DAMAGED = (
    '{"name": "s"',
    "[1]",
    '{"pairs": "AB"}',
    '{"pairs": [["a", "b", "c"]]}',
    '{"planned": 3}',
    '{"planned": {"exaflops": null}}',
    '{"rules": {"confidence": "high"}}',
    '{"environment": "a laptop"}',
    '{"environment": {"packages": [1]}}',
    '{"environment_differs": {"a": 5}}',
    '{"environment_differs": {"a": [1]}}',
    '{"pairs": [["a", 3]]}',
    '{"odd_folders": ["x"]}',
    '{"skipped_sizes": [{"a": 1}]}',
    '{"transfer_ids": 5}',
    r'{"title": "\ud800"}',
)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_study_json_is_named(tmp_path: Path, text: str) -> None:
    table(tmp_path, {}).rename(tmp_path / "runs.csv")
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(TableError, match=r"study\.json"):
        load(tmp_path)


def test_a_table_without_rows_is_said(tmp_path: Path) -> None:
    runs_table(linear_gap(6.0, 10_000)).head(0).to_csv(tmp_path / "mine.csv", index=False)
    with pytest.raises(TableError, match="holds no run"):
        load(tmp_path / "mine.csv")
    assert pd.read_csv(tmp_path / "mine.csv").empty


def test_runs_without_the_metric_are_counted(tmp_path: Path) -> None:
    path = table(tmp_path, {"test_top1": None})
    said = "Not all of the 18 finished runs have the metric test_top1: 1 lacks it and is left out"
    found = analyse(load(path), metric="test_top1")
    assert found["notes"] == [said]
    assert lines(found)[1] == f"  {said}."
    assert analyse(load(path))["notes"] == []


@pytest.mark.parametrize(
    "written, pairs",
    [
        ({"vit": "vit", "resnet": " RESNET"}, [("ViT", "ResNet")]),
        ({"vit": "convnext", "resnet": "resnet"}, [("convnext", "ResNet")]),
        ({"vit": "b", "resnet": "a"}, [("a", "b")]),
    ],
)
def test_every_two_families_are_compared_however_they_are_written(
    tmp_path: Path, written: dict[str, str], pairs: list[tuple[str, str]]
) -> None:
    runs = runs_table(linear_gap(6.0, 10_000))
    runs["family"] = runs["model"].map(written)
    runs.to_csv(tmp_path / "mine.csv", index=False)
    assert family_pairs(load(tmp_path / "mine.csv").runs) == pairs


def test_matched_pairs_say_how_long_each_was_trained() -> None:
    runs = pd.DataFrame(
        {
            "model": ["v", "r", "r"],
            "family": ["ViT", "ResNet", "ResNet"],
            "rung": [7e6, 7e6, 14e6],
            "compute": [1.0, 2.0, 4.0],
            "value": [0.8, 0.7, 0.8],
        }
    )
    row = matched_pairs(runs, "ViT", "ResNet")[0]
    assert (row["first_samples_seen"], row["second_samples_seen"], row["times_less"]) == (7e6, 14e6, pytest.approx(4.0))
    assert matched_side(row, "second") == "r (1.4e+07 samples seen) 80.00 %"


def test_a_path_that_is_not_there_and_semicolons_are_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"nosuch\.csv: no such file"):
        load(tmp_path / "nosuch.csv")
    (tmp_path / "tabs.csv").write_text("run_id\tstate\na\tfinished\n")
    with pytest.raises(TableError, match=r"tabs.csv: columns are separated by tabs"):
        load(tmp_path / "tabs.csv")
    (tmp_path / "mine.csv").write_text("run_id;state\na;finished\n")
    with pytest.raises(TableError, match="semicolons"):
        load(tmp_path / "mine.csv")


def test_blanks_in_pairs_are_no_names() -> None:
    assert parse_pairs("A:B, C : D") == [["A", "B"], ["C", "D"]]


@pytest.mark.parametrize("rule", ['"confidence": 95', '"confidence": NaN', '"min_times_chance": -1'])
def test_a_rule_that_can_decide_nothing_is_refused(tmp_path: Path, rule: str) -> None:
    table(tmp_path, {}).rename(tmp_path / "runs.csv")
    (tmp_path / "study.json").write_text(f'{{"rules": {{{rule}}}, "pairs": null}}')
    with pytest.raises(TableError, match=r"rules\."):
        analyse(load(tmp_path))


def test_a_rule_that_there_is_not_is_named(tmp_path: Path) -> None:
    table(tmp_path, {}).rename(tmp_path / "runs.csv")
    (tmp_path / "study.json").write_text('{"rules": {"confidance": 0.9}}')
    with pytest.raises(TableError, match=r"rules\.confidance is no rule; there are confidence"):
        analyse(load(tmp_path))


def test_a_larger_model_is_larger_in_parameters_or_else_in_macs() -> None:
    means = pd.DataFrame(
        {"parameters": [100.0, 110, 130], "forward_macs_per_image": [10.0, 16, 5]}, index=["a", "b", "c"]
    )
    assert larger_first(means, "a", "b") == ("b", "a")
    assert larger_first(means, "a", "c") == ("c", "a")
    assert larger_first(means.assign(parameters=[100.0, 120, 130]), "a", "b") == ("b", "a")  # a fifth or more
    assert larger_first(means.assign(forward_macs_per_image=float("nan")), "a", "b") is None


def test_a_fit_against_device_time_takes_seeds_of_a_model_as_one_rung(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=1.0), sizes=(1000,))
    runs["samples_seen"] = 100_000
    runs["device_seconds_train"] = 3600.0 + 60 * runs["seed"]
    runs.to_csv(tmp_path / "mine.csv", index=False)
    fits = fits_of(load(tmp_path / "mine.csv"), "best_val_top1", "device_days")
    assert {fit.rungs for fit in fits.values()} == {1}


def test_device_days_are_those_of_the_column_which_counts_every_device(tmp_path: Path) -> None:
    """device_seconds_train is summed over devices (harness.results_schema)."""
    runs = runs_table(linear_gap(6.0, 10_000, noise=1.0), sizes=(1000,))
    runs.assign(device_seconds_train=2 * 86_400.0, device_count=8).to_csv(tmp_path / "mine.csv", index=False)
    found = ladder(load(tmp_path / "mine.csv"), "best_val_top1", "device_days")
    assert set(found["compute"]) == {2.0}


def test_the_larger_comes_first_however_a_pair_names_the_two(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    runs["family"] = "ViT"
    runs["parameters"] = runs["model"].map({"vit": 100, "resnet": 300})
    runs.to_csv(tmp_path / "mine.csv", index=False)
    tables = load(tmp_path / "mine.csv")
    named = dataclasses.replace(tables, study={"pairs": [["vit", "resnet"], ["vit", "resnet"]]})
    assert pairs_of(named) == [("vit", "resnet")]
    (found,) = bigger_against_smaller(named, "best_val_top1", Rules())
    assert (found.first, found.second) == ("resnet", "vit")
    runs.drop(columns=["parameters", "forward_macs_per_image"]).to_csv(tmp_path / "mine.csv", index=False)
    bare = dataclasses.replace(load(tmp_path / "mine.csv"), study={"pairs": [["vit", "resnet"]]})
    assert [item.first for item in bigger_against_smaller(bare, "best_val_top1", Rules())] == ["vit"]


def test_an_empty_metric_or_pair_is_refused_and_pairs_add_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(table(tmp_path, {}))
    assert main(["analyze", path, "--metric", ""]) == 2
    assert main(["analyze", path, "--pairs", ""]) == 2
    assert "is not MODEL:MODEL" in capsys.readouterr().out
    assert main(["analyze", path, "--pairs", "vit:resnet", "--pairs", "resnet:vit", "--json"]) == 0
    assert [row["pair"][0] for row in json.loads(capsys.readouterr().out)["verdict"]] == ["vit", "resnet"]


@pytest.mark.parametrize("name", ["None", "null", "NA", "nan", "N/A", "NULL"])
def test_a_name_that_pandas_takes_for_nothing_is_a_name(tmp_path: Path, name: str) -> None:
    """In text columns the empty cell alone is empty; in number columns NaN and its like are as before."""
    path = table(tmp_path, {"reason": name, "exaflops_spent": name, "test_top1": "nan", "device_kind": ""})
    path.write_text(path.read_text().replace(",vit,ViT,", f",{name},{name},"))
    tables = load(path)
    assert set(tables.runs["model"]) == set(tables.runs["family"].replace("ResNet", "resnet")) == {name, "resnet"}
    assert tables.runs["reason"].iloc[0] == name
    assert tables.runs["reason"].iloc[1:].isna().all()
    assert tables.runs[["exaflops_spent", "test_top1", "device_kind"]].isna().sum().tolist() == [1, 1, 1]
    named = dataclasses.replace(tables, study={"pairs": [[name, "resnet"]]})
    assert [gap["pairs"] for gap in analyse(named)["crossover"][0]["gaps"]] == [3, 3, 3]
