"""Run folders to the three results tables of harness.results_schema. Reads result.json files, never a tracker."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from harness.errors import HarnessError
from harness.results_schema import CURVES, RUNS, SCHEMA_VERSION, TRANSFER
from harness.run_folder import metric_lines, missing_columns, parse_metrics, read_json
from harness.study.status import run_state

DTYPES = {"str": "string", "int": "Int64", "float": "Float64"}
OUR_FOLDERS = ("report", "slurm")  # beside the runs in a study's folder; others begin with a dot
TRANSFER_RUN_COLUMNS = ("run_id", "model", "family", "subset_samples", "draw", "seed")


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json of a study's folder. Raises HarnessError with what was started, or the command that starts one."""
    plan = read_json(folder / "plan.json")
    if (folder / "plan.json").exists() and (plan is None or "runs" not in plan):
        raise HarnessError(f"{folder / 'plan.json'}: damaged; `harness run` of this study writes it anew")
    if plan is None:
        started = sorted(path.parent.name for path in folder.parent.glob("*@*/plan.json"))
        known = f" Started: {', '.join(started)}." if started else ""
        study, _, dataset = folder.name.partition("@")
        raise HarnessError(
            f"{folder}: no study was started here; `harness run {study}` (data=… for {dataset}) does.{known}"
        )
    return plan


class Found(NamedTuple):
    """What a study's run folders hold: the tables, and the folders that give no row or less than they should."""

    tables: dict[str, pd.DataFrame]
    odd_folders: list[dict[str, str]]  # folder, problem


def collect(folder: Path, plan: dict[str, Any]) -> Found:
    """The tables `runs`, `transfer`, `curves` of the planned runs, each file read once.

    Unfinished runs are rows with their state. Odd folders are damaged or foreign; nothing is touched, and the report's
    own folder is none of them.
    """
    runs, transfer, odd = [], [], []
    curves: dict[str, list[Any]] = {name: [] for name in CURVES}
    for planned in plan["runs"]:
        run_id, path = planned["run_id"], folder / planned["run_id"]
        result = read_json(path / "result.json")
        problem = damaged_result(result, path)
        if result is None or problem or result.get("schema_version") != SCHEMA_VERSION:
            runs.append(unfinished_row(folder, plan, planned))
        else:
            runs.append(result)
            targets = {file.name: read_json(file) for file in sorted((path / "transfer").glob("*.json"))}
            lines = metric_lines(path)
            transfer += transfer_rows(targets, result)
            add_curves(curves, parse_metrics(lines or []), result)
            problem = damaged_targets(targets) or damaged_metrics(lines)
        if problem:
            odd.append({"folder": run_id, "problem": problem})
    odd += foreign_folders(folder, {row["run_id"] for row in plan["runs"]})
    tables = {
        "runs": table(runs, list(RUNS)),
        "transfer": table(transfer, list(TRANSFER)),
        "curves": table(curves, list(CURVES)),
    }
    return Found(tables, sorted(odd, key=lambda item: item["folder"]))


def foreign_folders(folder: Path, planned: set[str]) -> list[dict[str, str]]:
    """Folders that belong to no run of the plan."""
    names = [item.name for item in folder.iterdir() if item.is_dir() and not item.name.startswith(".")]
    problem = "foreign: no run of this plan has this name"
    return [{"folder": name, "problem": problem} for name in names if name not in {*planned, *OUR_FOLDERS}]


def damaged_result(content: dict[str, Any] | None, folder: Path) -> str:
    """What is wrong with a result.json; '' when nothing is, or there is none."""
    if content is None:
        return "damaged: result.json is no JSON object" if (folder / "result.json").exists() else ""
    missing = missing_columns(content)
    if missing:
        return f"damaged: result.json has no valid {missing[0]}"
    if content.get("run_id") != folder.name:
        return f"damaged: result.json is of {content.get('run_id')}"
    return ""


def damaged_targets(targets: dict[str, dict[str, Any] | None]) -> str:
    """'' when every transfer file is an object."""
    bad = [name for name, content in targets.items() if content is None]
    return f"damaged: transfer/{bad[0]} is no JSON object; its rows are left out" if bad else ""


def damaged_metrics(lines: list[str] | None) -> str:
    """'' for lines that look like objects; the curves lack those that fail."""
    if lines is None:
        return "damaged: metrics.jsonl is missing; the curves lack this run"
    bad = sum(not (line.startswith("{") and line.endswith("}")) for line in lines)
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


def transfer_rows(targets: dict[str, dict[str, Any] | None], result: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of every target and protocol that was evaluated for this run."""
    head = {name: result[name] for name in TRANSFER_RUN_COLUMNS}
    heads = {name: head | {"transfer_id": Path(name).stem} for name in targets}
    return [heads[name] | row for name, content in targets.items() for row in (content or {}).get("rows", [])]


def add_curves(columns: dict[str, list[Any]], metrics: list[dict[str, Any]], result: dict[str, Any]) -> None:
    """Append metrics.jsonl in long form to the columns of CURVES (columns, since there are millions of rows)."""
    flops = result["training_flops_per_image"]
    for line in metrics:
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
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"{out}: no folder to write tables to ({error.strerror})") from error
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
