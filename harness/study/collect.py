"""Run folders to the three results tables of harness.results_schema. Reads result.json files, never a tracker."""

import csv
from pathlib import Path
from typing import Any

import pandas as pd

from harness.errors import HarnessError
from harness.results_schema import CURVES, RUNS, TRANSFER
from harness.run_folder import missing_columns, read_json, read_metrics, read_result
from harness.study.status import run_state

DTYPES = {"str": "string", "int": "Int64", "float": "Float64"}
TRANSFER_RUN_COLUMNS = ("run_id", "model", "family", "subset_samples", "draw", "seed")


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json of a study's folder. Raises HarnessError with what was started, or the command that starts one."""
    plan = read_json(folder / "plan.json")
    if plan is None or "runs" not in plan:
        started = sorted(path.parent.name for path in folder.parent.glob("*@*/plan.json"))
        known = f" Started: {', '.join(started)}." if started else ""
        study, _, dataset = folder.name.partition("@")
        raise HarnessError(
            f"{folder}: no study was started here; `harness run {study}` (data=… for {dataset}) does.{known}"
        )
    return plan


def collect(folder: Path, plan: dict[str, Any]) -> dict[str, pd.DataFrame]:
    """The tables `runs`, `transfer`, `curves` of the planned runs; unfinished ones are rows with their state."""
    runs, transfer = [], []
    curves: dict[str, list[Any]] = {name: [] for name in CURVES}
    for planned in plan["runs"]:
        run_id = planned["run_id"]
        result = read_result(folder / run_id)
        if result is None or result["run_id"] != run_id:
            runs.append(unfinished_row(folder, plan, planned))
            continue
        runs.append(result)
        transfer += transfer_rows(folder / run_id, result)
        add_curves(curves, folder / run_id, result)
    return {
        "runs": table(runs, list(RUNS)),
        "transfer": table(transfer, list(TRANSFER)),
        "curves": table(curves, list(CURVES)),
    }


def odd_folders(folder: Path, plan: dict[str, Any]) -> list[dict[str, str]]:
    """Folders below a study's that give no row, or a row without a result that should be there: damaged or foreign.

    Each has `folder` and `problem`; nothing is touched. The report's own folder is none of them.
    """
    planned = {row["run_id"] for row in plan["runs"]}
    found = []
    for path in sorted(item for item in folder.iterdir() if item.is_dir() and item.name != "report"):
        result = path / "result.json"
        if path.name not in planned:
            problem = "foreign: no run of this plan has this name"
        elif not result.exists():
            continue
        else:
            problem = damage(path)
        if problem:
            found.append({"folder": path.name, "problem": problem})
    return found


def damage(folder: Path) -> str:
    """What is wrong with the files of a run that has a result.json; '' when nothing is."""
    content = read_json(folder / "result.json")
    if content is None:
        return "damaged: result.json is no JSON object"
    missing = missing_columns(content)
    if missing:
        return f"damaged: result.json has no valid {missing[0]}"
    if content.get("run_id") != folder.name:
        return f"damaged: result.json is of {content.get('run_id')}"
    bad = [path.name for path in sorted((folder / "transfer").glob("*.json")) if read_json(path) is None]
    if bad:
        return f"damaged: transfer/{bad[0]} is no JSON object; its rows are left out"
    return damaged_metrics(folder / "metrics.jsonl")


def damaged_metrics(path: Path) -> str:
    """'' for a file of lines that look like objects; they are parsed elsewhere, and the curves lack those that fail."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return "damaged: metrics.jsonl is missing; the curves lack this run"
    bad = sum(not (line.startswith(b"{") and line.endswith(b"}")) for line in lines)
    return f"damaged: {bad} of {len(lines)} lines of metrics.jsonl cannot be read" if bad else ""


def unfinished_row(folder: Path, plan: dict[str, Any], planned: dict[str, Any]) -> dict[str, Any]:
    """A run that has no result: what the plan says of it, and its state."""
    state = run_state(folder, planned["run_id"])
    if state["state"] == "finished":  # it says so, and its result cannot be used
        state = {"state": "failed", "reason": "damaged result.json"}
    known = {name: planned[name] for name in RUNS if name in planned and name not in ("samples_seen",)}
    return known | {
        "study": plan["name"],
        "dataset": plan["dataset"],
        "state": state["state"],
        "reason": state["reason"],
    }


def transfer_rows(folder: Path, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of every target and protocol that was evaluated for this run."""
    rows = []
    for path in sorted((folder / "transfer").glob("*.json")):
        content = read_json(path)
        for row in (content or {}).get("rows", []):
            rows.append({name: result[name] for name in TRANSFER_RUN_COLUMNS} | row)
    return rows


def add_curves(columns: dict[str, list[Any]], folder: Path, result: dict[str, Any]) -> None:
    """Append metrics.jsonl in long form to the columns of CURVES (columns, since there are millions of rows)."""
    flops = result["training_flops_per_image"]
    for line in read_metrics(folder):
        samples, split = line.pop("samples_seen", None), line.pop("split", None)
        if samples is None or split is None:
            continue
        count = len(line)
        columns["run_id"] += [result["run_id"]] * count
        columns["samples_seen"] += [samples] * count
        columns["exaflops"] += [flops * samples / 1e18] * count
        columns["split"] += [split] * count
        columns["metric"] += line.keys()
        columns["value"] += line.values()


def table(rows: list[dict[str, Any]] | dict[str, list[Any]], columns: list[str]) -> pd.DataFrame:
    """A frame with exactly the documented columns, in order, typed."""
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    kinds = {**RUNS, **TRANSFER, **CURVES}
    return frame.astype({name: DTYPES[kinds[name].kind] for name in columns})


def write(tables: dict[str, pd.DataFrame], out: Path, form: str) -> list[Path]:
    """Write the tables as csv or parquet; returns the paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, frame in tables.items():
        path = out / f"{name}.{form}"
        if form == "csv":
            write_csv(frame, path)
        else:
            try:
                frame.to_parquet(path, index=False)
            except ImportError as error:
                raise HarnessError("parquet needs pyarrow: pip install pyarrow (or --format csv)") from error
        paths.append(path)
    return paths


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """The same bytes as DataFrame.to_csv, several times as fast on typed columns."""
    columns = [frame[name].to_numpy(dtype=object, na_value="") for name in frame.columns]
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(frame.columns)
        writer.writerows(zip(*columns, strict=True))
