"""What no conclusion can be drawn from is refused: other data sets at one size, families, numbers, two tables."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import paper
from analysis.results import TableError, load, scores
from analysis.summary import analyse
from tests.analysis.studies import linear_gap, runs_table, write_study

SETS = {"vit": "glyphs", "resnet": "fashion"}


def runs() -> pd.DataFrame:
    return runs_table(linear_gap(6.0, 10_000, noise=0.5))


def refusal(tmp_path: Path, frame: pd.DataFrame) -> str:
    with pytest.raises(TableError) as caught:
        load(write_study(tmp_path, frame))
    return str(caught.value)


@pytest.mark.parametrize("pairs", [[["vit", "resnet"]], []])
def test_models_of_two_sets_are_not_compared_at_one_size(tmp_path: Path, pairs: list[list[str]]) -> None:
    frame = runs()
    write_study(tmp_path, frame.assign(dataset=frame["model"].map(SETS)), pairs=pairs)
    with pytest.raises(TableError) as caught:
        load(tmp_path)
    assert "column dataset: runs of fashion (resnet-1000-s0) and glyphs (vit-1000-s0) at 1,000" in str(caught.value)


def test_seeds_of_two_sets_are_not_averaged(tmp_path: Path) -> None:
    frame = runs()
    frame["dataset"] = frame["seed"].map({0: "a", 1: "a", 2: "b"})
    assert "column dataset: runs of a (vit-1000-s0) and b (vit-1000-s2) at 1,000" in refusal(tmp_path, frame)


def test_runs_with_other_classes_are_not_compared_at_one_size(tmp_path: Path) -> None:
    frame = runs().drop(columns="dataset")
    frame.loc[(frame["model"] == "vit") & (frame["subset_samples"] == 10_000), "num_classes"] = 10
    text = refusal(tmp_path, frame)
    assert "column num_classes: runs of 10 (vit-10000-s0) and 100 (resnet-10000-s0) at 10,000 images" in text


def test_sets_may_differ_by_size_and_in_runs_that_do_not_count(tmp_path: Path) -> None:
    frame = runs()
    frame["dataset"] = "s" + frame["subset_samples"].astype(str)
    frame["num_classes"] = frame["subset_samples"].map({1000: 10, 10_000: 100, 100_000: 1000})
    failed = frame[:1].assign(run_id="failed", state="failed", dataset="other", num_classes=3)
    assert len(load(write_study(tmp_path, pd.concat([frame, failed]))).finished) == 18
    paper.figure3().runs.to_csv(tmp_path / "figure3.csv", index=False)
    assert load(tmp_path / "figure3.csv").finished["dataset"].nunique() == 3


def test_a_model_of_several_families_is_refused(tmp_path: Path) -> None:
    frame = runs()
    frame["family"] = frame["family"].where(frame.index != 1, "hybrid")
    text = refusal(tmp_path, frame)
    assert "column family: vit is of several families (ViT, hybrid); a model has one" in text
    frame["family"] = frame["model"].map({"vit": "ViT", "resnet": "ResNet"}).where(frame.index != 1, " vit")
    assert set(load(write_study(tmp_path, frame)).runs["family"]) == {"ViT", "ResNet"}


@pytest.mark.parametrize(
    "name, value, message",
    [
        ("samples_seen", float("inf"), "inf is no whole number from 1 on"),
        ("samples_seen", 0, "0 is no whole number from 1 on"),
        ("samples_seen_at_best", -1, "-1 is no whole number from 0 on"),
        ("device_count", 0, "0 is no number of devices"),
        ("device_count", 1.5, "1.5 is no number of devices"),
        ("parameters", -5, "-5 is no number of parameters"),
        ("parameters", float("inf"), "inf is no number of parameters"),
        ("forward_macs_per_image", float("inf"), "inf is no whole number from 0 on"),
        ("draw", float("inf"), "inf is no whole number from 0 on"),
        ("seed", 0.5, "0.5 is no whole number from 0 on"),
        ("seed", 10_000_000.5, "10000000.5 is no whole number from 0 on"),
        ("training_flops_per_image", 12_500_000_000.25, "12500000000.25 is no whole number from 0 on"),
        ("device_seconds_train", float("inf"), "inf is no finite number from 0 on"),
    ],
)
def test_a_number_that_cannot_be_one_is_refused_by_column_and_run(
    tmp_path: Path, name: str, value: Any, message: str
) -> None:
    frame = runs().astype({name: float})
    frame.loc[4, name] = value
    assert f"runs: column {name}: {message}, in run vit-10000-s1" in refusal(tmp_path, frame)
    frame.loc[4, ["state", "best_val_top1"]] = ["failed", None]
    assert len(load(write_study(tmp_path, frame)).finished) == 17


def test_an_empty_cell_of_a_column_that_may_be_absent_is_no_mistake(tmp_path: Path) -> None:
    frame = runs()
    for name in ("samples_seen", "device_count", "parameters", "draw", "dataset", "exaflops_spent"):
        frame[name] = None
    frame.to_csv(tmp_path / "mine.csv", index=False)
    assert analyse(load(tmp_path / "mine.csv"))["scored_runs"] == 18


def test_parquet_beside_a_csv_that_says_something_else_is_refused(tmp_path: Path) -> None:
    frame = runs()
    frame["accuracy"] = frame["best_val_top1"] / 3  # digits that text may round; a column of the table's own
    frame["when"] = pd.Timestamp("2026-01-01")  # which CSV writes in a way of its own
    write_study(tmp_path, frame)
    assert len(scores(load(tmp_path), "accuracy")) == 18
    for name, wrong, message in (
        ("best_val_top1", frame["best_val_top1"].where(frame.index != 2, 0.123), "column best_val_top1, row 3"),
        ("accuracy", frame["accuracy"].where(frame.index != 0, 0.123), "column accuracy, row 1"),
        ("host", "another", "column host, row 1"),
    ):
        frame.to_parquet(tmp_path / "runs.parquet")
        assert len(scores(load(tmp_path), "accuracy")) == 18
        frame.assign(**{name: wrong}).to_parquet(tmp_path / "runs.parquet")
        with pytest.raises(TableError) as caught:
            load(tmp_path)
        assert f"runs.parquet and runs.csv are not the same table ({message}); remove the one out" in str(caught.value)
    frame[:5].to_parquet(tmp_path / "runs.parquet")
    with pytest.raises(TableError, match=r"\(5 and 18 rows\)"):
        load(tmp_path)
    frame.drop(columns="host").to_parquet(tmp_path / "runs.parquet")
    with pytest.raises(TableError, match=r"\(column host is in one of them\)"):
        load(tmp_path)


@pytest.mark.parametrize("value", [0, 0.5, 3.5, -1])
def test_degrees_of_freedom_are_a_whole_number_from_1_on(tmp_path: Path, value: float) -> None:
    write_study(tmp_path, runs(), rules={"min_degrees_of_freedom": value})
    with pytest.raises(TableError, match=r"study\.json: rules\.min_degrees_of_freedom: .* is no whole number from 1"):
        analyse(load(tmp_path))
    write_study(tmp_path, runs(), rules={"min_degrees_of_freedom": 1})
    assert analyse(load(tmp_path))["verdict"][0]["rules"]["min_degrees_of_freedom"] == 1


@pytest.mark.parametrize("value", ["18", "abc", [1], True, 0, -1, 12.5, 1e400])
def test_the_number_of_planned_runs_is_a_whole_number_from_1_on(tmp_path: Path, value: Any) -> None:
    write_study(tmp_path, runs(), expected_runs=value)
    with pytest.raises(TableError, match=r"study\.json: expected_runs: .* is no whole number from 1 on"):
        load(tmp_path)


def test_models_that_are_numbers_in_parquet_are_the_names_that_csv_gives(tmp_path: Path) -> None:
    frame = runs()
    frame["model"] = frame["model"].map({"vit": 101, "resnet": 50})
    write_study(tmp_path, frame, pairs=[["101", "50"]])
    from_csv = analyse(load(tmp_path))
    (tmp_path / "runs.csv").unlink()
    frame.to_parquet(tmp_path / "runs.parquet")
    assert analyse(load(tmp_path))["verdict"] == from_csv["verdict"]
    assert [gap["pairs"] for gap in from_csv["crossover"][0]["gaps"]] == [3, 3, 3]


@pytest.mark.parametrize("name, value", [("state", True), ("study", [1, 2]), ("dataset", {"a": 1})])
def test_text_columns_of_parquet_that_hold_something_else_end_without_a_traceback(
    tmp_path: Path, name: str, value: Any
) -> None:
    frame = runs()
    frame[name] = [value] * len(frame)
    frame.to_parquet(tmp_path / "runs.parquet")
    tables = load(tmp_path / "runs.parquet")
    assert set(tables.runs[name]) == {"[1 2]" if name == "study" else str(value)}
    assert len(tables.finished) == (0 if name == "state" else 18)


def test_an_empty_text_in_parquet_is_none_as_in_csv(tmp_path: Path) -> None:
    frame = runs().assign(recipe=["", "weak"] * 9)
    frame.to_parquet(tmp_path / "runs.parquet")
    frame.to_csv(tmp_path / "runs.csv", index=False)
    for name in ("runs.parquet", "runs.csv"):
        assert set(load(tmp_path / name).runs["model"]) == {"vit", "resnet"}
    frame.assign(model="").to_parquet(tmp_path / "runs.parquet")
    with pytest.raises(TableError, match="column model: empty in 18 finished runs"):
        load(tmp_path / "runs.parquet")
