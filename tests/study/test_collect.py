"""Results tables from the published run folders, whole and damaged, and from ten thousand of them."""

import json
import shutil
import time
from pathlib import Path

import pandas as pd
import pytest

from harness.errors import HarnessError
from harness.results_schema import CURVES, RUNS, TRANSFER
from harness.study import collect
from harness.study.commands import analyze_command, write_tables
from tests.study.conftest import PUBLISHED


def test_the_tables_have_the_documented_columns_and_every_run(folder: Path) -> None:
    tables = collect.collect(folder, collect.read_plan(folder)).tables
    assert [list(tables[name].columns) for name in ("runs", "transfer", "curves")] == [
        list(columns) for columns in (RUNS, TRANSFER, CURVES)
    ]
    assert len(tables["runs"]) == 15
    assert (tables["runs"]["state"] == "finished").all()
    lines = sum(len(path.read_text().splitlines()) for path in folder.glob("*/metrics.jsonl"))
    assert tables["curves"][["run_id", "samples_seen", "split"]].drop_duplicates().shape[0] <= lines
    one = json.loads(next(iter(sorted(folder.glob("*/result.json")))).read_text())
    row = tables["runs"].set_index("run_id").loc[one["run_id"]]
    assert {name: row[name] for name in ("best_val_top1", "test_top1", "samples_seen", "exaflops_spent")} == {
        name: one[name] for name in ("best_val_top1", "test_top1", "samples_seen", "exaflops_spent")
    }


def test_csv_and_parquet_hold_the_same(folder: Path, tmp_path: Path) -> None:
    plan = collect.read_plan(folder)
    for form in ("csv", "parquet"):
        write_tables(folder, plan, tmp_path / form, form)
    for name in ("runs", "transfer", "curves"):
        parquet = pd.read_parquet(tmp_path / "parquet" / f"{name}.parquet")
        csv = pd.read_csv(tmp_path / "csv" / f"{name}.csv").astype(parquet.dtypes.to_dict())
        pd.testing.assert_frame_equal(csv, parquet)


def test_damaged_and_foreign_folders_are_listed_and_crash_nothing(folder: Path, tmp_path: Path) -> None:
    runs = sorted(path.parent for path in folder.glob("*/result.json"))
    (runs[0] / "result.json").write_text('{"run_id": "cut')
    content = json.loads((runs[1] / "result.json").read_text())
    (runs[1] / "result.json").write_text(json.dumps({k: v for k, v in content.items() if k != "best_val_top1"}))
    shutil.copy(runs[3] / "result.json", runs[2] / "result.json")
    next((runs[4] / "transfer").glob("*.json")).write_text("[]")
    (runs[5] / "metrics.jsonl").write_bytes(b'\xff\xfe{"samples_seen": 1\n')
    rows = (runs[6] / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs[6] / "metrics.jsonl").write_text("".join(rows[: len(rows) // 2]))  # at the end of a line
    (folder / "holiday photos").mkdir()
    (folder / "holiday photos" / "result.json").write_text("no JSON")
    (folder / "a file").write_text("")
    plan = collect.read_plan(folder)
    problems = {item["folder"]: item["problem"] for item in collect.collect(folder, plan).odd_folders}
    assert "no JSON object" in problems[runs[0].name]
    assert "best_val_top1" in problems[runs[1].name]
    assert runs[3].name in problems[runs[2].name]
    assert problems[runs[4].name].startswith("damaged: transfer/")
    assert "metrics.jsonl" in problems[runs[5].name]
    assert "the curve stops short" in problems[runs[6].name]
    assert problems["holiday photos"].startswith("foreign")
    assert len(problems) == 7
    tables = collect.collect(folder, plan).tables
    assert len(tables["runs"]) == 15
    assert int((tables["runs"]["state"] == "finished").sum()) == 12
    write_tables(folder, plan, tmp_path / "out", "csv")
    assert len(json.loads((tmp_path / "out" / "study.json").read_text())["odd_folders"]) == 7


@pytest.mark.parametrize("name", ["runs.csv", "study.json"])
def test_an_output_that_is_a_folder_is_an_error_that_names_it(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    with pytest.raises(HarnessError, match=rf"{name}: cannot be written \(Is a directory\); `harness results STUDY"):
        write_tables(folder, collect.read_plan(folder), tmp_path / "out", "csv")


def test_csv_files_are_as_pandas_writes_them(tmp_path: Path) -> None:
    text = pd.Series(['a "b"', "x, y", None, "line\nline"], dtype="string")
    numbers = pd.Series([0.1, 1e-7, None, 3.0], dtype="Float64")
    frame = pd.DataFrame({"text": text, "numbers": numbers, "counts": pd.Series([1, None, 2**62, 1], dtype="Int64")})
    collect.write_csv(frame, tmp_path / "x.csv")
    assert (tmp_path / "x.csv").read_text() == frame.to_csv(index=False)


def test_a_run_folder_is_analysed_without_a_table_in_between(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert analyze_command(folder, None, "images", None, True) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["finished_runs"] == 15
    assert found["verdict"][0]["outcome"] == "not reproduced"
    assert analyze_command(folder, "hybrid_pocket:resnet_pocket", "exaflops", "test_top1", False) == 0
    assert "hybrid_pocket - resnet_pocket" in capsys.readouterr().out
    assert analyze_command(folder, "vit_pocket:nothing", "images", None, False) == 2
    assert "no finished run of nothing" in capsys.readouterr().out


@pytest.mark.slow
def test_ten_thousand_runs_are_collected_in_20_s(tmp_path: Path) -> None:
    source = next(path.parent for path in sorted(PUBLISHED.glob("*/result.json")))
    content = json.loads((source / "result.json").read_text())
    plan = collect.read_plan(PUBLISHED)
    row = next(row for row in plan["runs"] if row["run_id"] == source.name)
    ids = [f"{number}-{source.name}" for number in range(10_000)]
    transfer = next((source / "transfer").glob("*.json"))
    for run_id in ids:
        (tmp_path / "s" / run_id / "transfer").mkdir(parents=True)
        (tmp_path / "s" / run_id / "result.json").write_text(json.dumps(content | {"run_id": run_id}))
        (tmp_path / "s" / run_id / "metrics.jsonl").hardlink_to(shared(tmp_path, source / "metrics.jsonl"))
        (tmp_path / "s" / run_id / "transfer" / transfer.name).hardlink_to(shared(tmp_path, transfer))
    big = plan | {"runs": [row | {"run_id": run_id} for run_id in ids]}
    start = time.process_time()
    write_tables(tmp_path / "s", big, tmp_path / "out", "csv")
    seconds = time.process_time() - start
    print(f"\n10,000 runs: {seconds:.1f} CPU-seconds")
    assert sum(1 for _ in (tmp_path / "out" / "runs.csv").open()) == 10_001
    assert seconds < 20


def shared(folder: Path, source: Path) -> Path:
    """One copy on the test's file system, for hard links."""
    copy = folder / source.name
    if not copy.exists():
        shutil.copy(source, copy)
    return copy
