"""One damaged file in one run of a published study: listed with field and reason, and no value of it in a table."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from harness.data.on_demand import open_or_pack
from harness.errors import ConfigError, HarnessError
from harness.study import collect
from harness.study.commands import report_command, write_tables


def replace_line(path: Path, line: str) -> None:
    """Put a line in the place of the last."""
    path.write_text("\n".join([*path.read_text().splitlines()[:-1], line]) + "\n")


@pytest.mark.parametrize(
    "line, problem",
    [
        ('{"samples_seen": 300, "split": "val", "top1": "high"}', "top1: 'high' is no number"),
        ('{"samples_seen": 300, "split": "val", "top1": 1.5}', "top1: 1.5 is not in [0, 1]"),
        ('{"samples_seen": 300, "split": "val", "loss": NaN}', "loss: nan is not in [0"),
        ('{"samples_seen": 300, "split": "val", "loss": [1]}', "loss: a list is no number"),
        ('{"samples_seen": 300, "split": ["val"], "loss": 1.0}', "split: a list is no text"),
        ('{"samples_seen": 300000, "split": "val", "loss": 1.0}', "samples_seen: 300000 is not in [0, 256000]"),
        ('{"samples_seen": 10.5, "split": "val", "loss": 1.0}', "samples_seen: 10.5 is no whole number"),
        ('{"split": "val", "loss": 1.0}', "samples_seen: missing"),
        ("{… bad}", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"samples_seen": 3, "split": "val"}, {"samples_seen": 3, "split": "val"}', "no JSON object"),
        ("[" * 100_000, "no JSON object"),
    ],
)
def test_a_damaged_line_of_metrics_is_left_out_and_listed(folder: Path, line: str, problem: str) -> None:
    plan = collect.read_plan(folder)
    plan["runs"] = plan["runs"][:1]
    path = folder / plan["runs"][0]["run_id"] / "metrics.jsonl"
    whole = collect.collect(folder, plan).tables["curves"]
    last = json.loads(path.read_text().splitlines()[-1])
    replace_line(path, line)
    found = collect.collect(folder, plan)
    listed = [item["problem"] for item in found.odd_folders if item["folder"] == path.parent.name]
    assert len(listed) == 1
    assert f"metrics.jsonl: line {len(path.read_text().splitlines())}: {problem}" in listed[0]
    pd.testing.assert_frame_equal(found.tables["curves"], whole[: len(whole) - (len(last) - 2)])


def test_an_empty_metrics_file_is_listed(folder: Path) -> None:
    path = next(folder.glob("*/metrics.jsonl"))
    path.write_text("")
    problem = "damaged: metrics.jsonl: empty; the curves lack this run"
    assert collect.collect(folder, collect.read_plan(folder)).odd_folders == [
        {"folder": path.parent.name, "problem": problem}
    ]


@pytest.mark.parametrize(
    "change, problem, lost",
    [
        ({"value": "x"}, "row 1: value: 'x' is no number", 1),
        ({"value": 1.2}, "row 1: value: 1.2 is not in [0, 1]", 1),
        ({"shots": "five"}, "row 1: shots: 'five' is no whole number", 1),
        ({"shots": None}, "row 1: shots: missing", 1),
        ({"target": None}, "row 1: target: missing", 1),
        ({"target": 3}, "row 1: target: 3 is no text", 1),
        (3, "rows: no list of rows", 9),
        ([1, 2], "row 1: 1 is no row (2 of 2 left out)", 9),
        ("ab", "rows: no list of rows", 9),
        (None, "rows: no list of rows", 9),
    ],
)
def test_damaged_transfer_rows_are_left_out_and_listed(folder: Path, change: Any, problem: str, lost: int) -> None:
    path = min(folder.glob("*/transfer/*.json"))
    content = json.loads(path.read_text())
    rows = content["rows"]
    content["rows"] = [rows[0] | change, *rows[1:]] if isinstance(change, dict) else change
    path.write_text(json.dumps(content))
    found = collect.collect(folder, collect.read_plan(folder))
    assert [(item["folder"], problem in item["problem"]) for item in found.odd_folders] == [
        (path.parent.parent.name, True)
    ]
    assert len(found.tables["transfer"]) == 15 * len(rows) - lost
    assert len(rows) == 9


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"best_val_top1": 1.7}, "best_val_top1: 1.7 is not in [0, 1]"),
        ({"test_top1": -1}, "test_top1: -1 is not in [0, 1]"),
        ({"subset_samples": 0}, "subset_samples: 0 is not in [1"),
        ({"subset_samples": 10**30}, "subset_samples: 1000000000000000000000000000000 is not in [1"),
        ({"num_classes": 0}, "num_classes: 0 is not in [1"),
        ({"exaflops_spent": -1.0}, "exaflops_spent: -1.0 is not in [0"),
        ({"exaflops_spent": 10**400}, "exaflops_spent: 1000000000000000000000000000000000000000… is not in [0"),
        ({"host": "\ud800"}, "host: '\\ud800' cannot be written as UTF-8"),
        ({"seed": 7}, "seed: 7 is not the plan's 0"),
        ({"model": "x"}, "model: 'x' is not the plan's"),
        ({"family": "x"}, "family: 'x' is not the plan's"),
        ({"state": "failed"}, "state: 'failed' is not the plan's 'finished'"),
        ({"config_hash": "0" * 64}, "config_hash: "),
        ({"schema_version": 99}, "schema_version: 99 is not 1"),
    ],
)
def test_a_result_that_cannot_be_true_is_listed_and_no_finished_row(
    folder: Path, change: dict[str, Any], problem: str
) -> None:
    path = min(folder.glob("*/result.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    found = collect.collect(folder, collect.read_plan(folder))
    assert [(item["folder"], problem in item["problem"]) for item in found.odd_folders] == [(path.parent.name, True)]
    row = found.tables["runs"].set_index("run_id").loc[path.parent.name]
    assert (row["state"], row["reason"]) == ("failed", "damaged result.json")
    assert path.parent.name not in set(found.tables["curves"]["run_id"])


@pytest.mark.parametrize(
    "file, text, problem",
    [
        ("result.json", "[" * 100_000 + "]" * 100_000, "result.json is no JSON object"),
        ("environment.json", '{"packages": [1]}', "environment.json: packages: a list is no object"),
        ("environment.json", '{"packages": "torch"}', "environment.json: packages: 'torch' is no object"),
        ("environment.json", '{"cores": NaN}', "environment.json: cores: nan is not in"),
        ("status.json", '{"state": "banana"}', "status.json: state: 'banana' is no state of a run"),
        ("status.json", '{"state": "running", "heartbeat": "x"}', "status.json: heartbeat: 'x' is no number"),
    ],
)
def test_a_damaged_file_of_a_run_is_listed(folder: Path, tmp_path: Path, file: str, text: str, problem: str) -> None:
    path = min(folder.glob("*/result.json")).parent / file
    if file == "status.json":  # of a finished run it is not read
        (path.parent / "result.json").unlink()
    path.write_text(text)
    _, odd_folders = write_tables(folder, collect.read_plan(folder), tmp_path / "out", "csv")
    assert [(item["folder"], problem in item["problem"]) for item in odd_folders] == [(path.parent.name, True)]


@pytest.mark.parametrize(
    "change, problem",
    [
        ({"runs": None}, "runs: no list of runs"),
        ({"runs": [1]}, "runs: no list of runs"),
        ({"runs": [{}]}, "runs: number 1: run_id: missing"),
        ({"name": None}, "name: missing"),
        ({"exaflops": None}, "runs: number 1: exaflops: missing"),
        ({"exaflops": "1"}, "runs: number 1: exaflops: '1' is no number"),
        ({"run_id": "../elsewhere"}, "runs: number 1: run_id: '../elsewhere'"),
        ({"skipped_sizes": [1]}, "skipped_sizes: "),
        ({"rules": {"confidense": 0.9}}, "rules: 'confidense' is none of confidence"),
        ({"rules": {"confidence": "high"}}, "rules: confidence: 'high' is no number"),
        ({"pairs": [["a"]]}, "pairs: "),
    ],
)
def test_a_damaged_plan_is_an_error_that_names_the_field(folder: Path, change: dict[str, Any], problem: str) -> None:
    plan = json.loads((folder / "plan.json").read_text())
    if change.keys() & {"exaflops", "run_id"}:
        change = {"runs": [plan["runs"][0] | change]}
    (folder / "plan.json").write_text(json.dumps(plan | change))
    with pytest.raises(HarnessError, match=re.escape(f"plan.json: damaged: {problem}")):
        collect.read_plan(folder)


@pytest.mark.parametrize("here", [True, False])
def test_a_target_that_was_packed_anew_in_between_is_not_mixed_with_the_old_one(
    folder: Path, roots: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """What counts are the images that lie here, were it of a single run; where none do, those of most runs."""
    plan = collect.read_plan(folder)
    whole = collect.collect(folder, plan).tables["transfer"]
    ids = [run["run_id"] for run in plan["runs"]]
    old = ids[:-1] if here else ids[:1]
    monkeypatch.setenv("HARNESS_DATA", str(roots / "data"))
    digest = open_or_pack("digits").digest if here else "1" * 64
    for run in ids:
        path = next((folder / run / "transfer").glob("*.json"))
        content = json.loads(path.read_text())
        path.write_text(json.dumps(content | {"target": {"digest": "0" * 64 if run in old else digest}}))
    found = collect.collect(folder, plan)
    rows = found.tables["transfer"]
    assert set(rows["run_id"]) == set(ids) - set(old)
    assert len(rows) == len(whole) - len(content["rows"]) * len(old)
    assert [item["folder"] for item in found.odd_folders] == sorted(old)
    assert "of other images than" in found.odd_folders[0]["problem"]


def test_a_copy_of_a_transfer_file_is_no_other_evaluation(folder: Path) -> None:
    plan = collect.read_plan(folder)
    whole = collect.collect(folder, plan).tables["transfer"]
    path = next(folder.glob("*/transfer/*.json"))
    (path.parent / "copy.json").write_bytes(path.read_bytes())
    found = collect.collect(folder, plan)
    pd.testing.assert_frame_equal(found.tables["transfer"], whole)
    assert f"transfer/copy.json: transfer_id: '{path.stem}' is not the file's name" in found.odd_folders[0]["problem"]


def test_of_repeated_rows_of_a_transfer_file_the_last_counts(folder: Path) -> None:
    plan = collect.read_plan(folder)
    whole = collect.collect(folder, plan).tables["transfer"]
    path = next(folder.glob("*/transfer/*.json"))
    content = json.loads(path.read_text())
    rows = [content["rows"][0] | {"value": 0.25}, *content["rows"]]
    path.write_text(json.dumps(content | {"rows": rows}))
    found = collect.collect(folder, plan)
    pd.testing.assert_frame_equal(found.tables["transfer"], whole)
    assert "row 1: row 2 is of the same evaluation and seed (1 of " in found.odd_folders[0]["problem"]


def test_a_file_in_the_way_of_the_report_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_RUNS", str(folder.parent))
    (folder / "report").write_text("mine")
    with pytest.raises(ConfigError, match="report: a file where the report's folder goes; move it elsewhere"):
        report_command("pocket", ["data=fashion_mnist"])
    assert (folder / "report").read_text() == "mine"
