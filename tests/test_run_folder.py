"""Names, atomic files, and what counts as a finished run."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness import run_folder as rf
from harness.results_schema import RUNS, SCHEMA_VERSION


def whole_result() -> dict[str, Any]:
    values = {"str": "x", "int": 1, "float": 0.5}
    return {"schema_version": SCHEMA_VERSION, "config_hash": "h"} | {
        name: values[column.kind] for name, column in RUNS.items()
    }


def test_the_hash_knows_values_and_not_the_order_of_keys() -> None:
    assert rf.identity_hash({"a": 1, "b": [2]}) == rf.identity_hash({"b": [2], "a": 1})
    assert rf.identity_hash({"a": 1}) != rf.identity_hash({"a": 2})
    with pytest.raises(ValueError, match="JSON"):
        rf.identity_hash({"a": float("nan")})


def test_a_whole_result_is_finished_and_anything_less_is_not(tmp_path: Path) -> None:
    assert rf.read_result(tmp_path) is None
    rf.write_json(tmp_path / "result.json", whole_result())
    assert rf.read_result(tmp_path) == whole_result()
    assert rf.read_result(tmp_path, "h") is not None
    assert rf.read_result(tmp_path, "other") is None
    for damage in (
        {"test_top1": None},
        {"test_top1": "0.5"},
        {"seed": True},
        {"test_top1": 1.5},
        {"schema_version": 0},
    ):
        rf.write_json(tmp_path / "result.json", whole_result() | damage)
        assert rf.read_result(tmp_path) is None, damage
    (tmp_path / "result.json").write_text(json.dumps(whole_result())[:-20])
    assert rf.read_result(tmp_path) is None


def test_nan_never_reaches_a_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        rf.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert not (tmp_path / "x.json").exists()


def test_an_atomic_write_replaces_and_leaves_no_temporary(tmp_path: Path) -> None:
    rf.write_atomic(tmp_path / "f", "one")
    rf.write_atomic(tmp_path / "f", "two")
    assert (tmp_path / "f").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_rewinding_drops_later_rows_and_a_line_cut_short(tmp_path: Path) -> None:
    rf.append_metrics(tmp_path, [{"samples_seen": s, "split": "step", "loss": 1.0} for s in (10, 20, 30)])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"samples_seen": "x"}\n{"split": "step"}\n{"samples_seen": 40, "spl')
    rf.rewind_metrics(tmp_path, 20)
    assert [row["samples_seen"] for row in rf.read_metrics(tmp_path)] == [10, 20]
    assert (tmp_path / "metrics.jsonl").read_text().endswith("}\n")
