"""Run folders to the three results tables of harness.results_schema. Reads result.json files, never a tracker."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from harness.data.on_demand import digest_here
from harness.errors import HarnessError
from harness.paths import data_root
from harness.results_schema import CURVES, RUNS, TRANSFER
from harness.run_folder import metric_lines, parse_metrics, read_json, status_problem, target_data, target_digest
from harness.study.damage import TRANSFER_RUN_COLUMNS, plan_problem, result_problem, sound_lines, sound_rows
from harness.study.status import run_state

DTYPES = {"str": "string", "int": "Int64", "float": "Float64"}
OUR_FOLDERS = ("report", "slurm")  # beside the runs in a study's folder; others begin with a dot
Item = dict[str, Any]
Contents = dict[str, Item | None]  # transfer_id: transfer file


def read_plan(folder: Path) -> dict[str, Any]:
    """plan.json of a study's folder. Raises HarnessError with what was started, or the command that starts one."""
    path = folder / "plan.json"
    plan = read_json(path)
    if plan is None and not path.exists():
        started = sorted(path.parent.name for path in folder.parent.glob("*@*/plan.json"))
        known = f" Started: {', '.join(started)}." if started else ""
        study, _, dataset = folder.name.partition("@")
        raise HarnessError(
            f"{folder}: no study was started here; `harness run {study}` (data=… for {dataset}) does.{known}"
        )
    bad = "no JSON object" if plan is None else plan_problem(plan)
    if plan is None or bad:
        raise HarnessError(f"{path}: damaged: {bad}; `harness run` of this study writes it anew")
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
    runs: list[Item] = []
    transfer: list[Item] = []
    curves: dict[str, list[Any]] = {name: [] for name in CURVES}
    evaluated: list[tuple[Path, Item, Contents]] = []
    odd = foreign_folders(folder, {row["run_id"] for row in plan["runs"]})
    for planned in plan["runs"]:
        path = folder / planned["run_id"]
        result, problems = sound_result(path, planned, plan["name"])
        if result is None:
            runs.append(unfinished_row(folder, plan, planned, is_damaged=bool(problems)))
            problems += damaged_status(path)
        else:
            runs.append(result)
            problems += add_curves(curves, path, result)
            evaluated.append((path, result, transfer_files(path)))
        odd += [{"folder": path.name, "problem": f"damaged: {problem}"} for problem in problems]
    images = images_that_count([content for _, _, contents in evaluated for content in contents.values()])
    for path, result, contents in evaluated:
        problems = add_transfer(transfer, images, result, contents)
        odd += [{"folder": path.name, "problem": f"damaged: {problem}"} for problem in problems]
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
    foreign = set(names) - planned - set(OUR_FOLDERS)
    return [{"folder": name.encode(errors="backslashreplace").decode(), "problem": problem} for name in foreign]


def sound_result(path: Path, planned: Item, study: str) -> tuple[Item | None, list[str]]:
    """result.json of a planned run, None where there is none to be used; and what is wrong with it."""
    result = read_json(path / "result.json")
    if result is None:
        return None, ["result.json is no JSON object"] if (path / "result.json").exists() else []
    bad = result_problem(result, planned, study)
    return (None, [f"result.json: {bad}"]) if bad else (result, [])


def damaged_status(path: Path) -> list[str]:
    """What is wrong with the status.json of an unfinished run."""
    content = read_json(path / "status.json")
    bad = status_problem(content) if content else "no JSON object" if (path / "status.json").exists() else ""
    return [f"status.json: {bad}; taken as waiting"] if bad else []


def unfinished_row(folder: Path, plan: Item, planned: Item, is_damaged: bool) -> Item:
    """A run that has no result, or one that is damaged: what the plan says of it, and its state."""
    state = run_state(folder, planned["run_id"])
    if is_damaged and state["state"] != "running":
        state = {"state": "failed", "reason": "damaged result.json"}
    known = {name: planned[name] for name in RUNS if name in planned and name not in ("samples_seen",)}
    return known | {
        "study": plan["name"],
        "dataset": plan["dataset"],
        "state": state["state"],
        "reason": state["reason"],
    }


def transfer_files(path: Path) -> Contents:
    """The transfer files of a run by name; None for one that is no JSON object."""
    return {file.stem: read_json(file) for file in sorted((path / "transfer").glob("*.json"))}


def images_that_count(contents: list[Item | None]) -> dict[str, str]:
    """The digest of each target's images, by data set, that rows are taken of; others are of a set packed anew.

    It is that of the images that lie here now, where a run was evaluated on them; else the one of most files.
    """
    found: dict[str, Counter[str]] = {}
    for content in contents:
        if digest := target_digest(content):
            found.setdefault(target_data(content), Counter())[digest] += 1
    here = {data: digest_here(data, data_root()) for data in found if data}
    return {
        data: now if (now := here.get(data)) and now in counts else counts.most_common(1)[0][0]
        for data, counts in found.items()
    }


def add_transfer(rows: list[Item], images: dict[str, str], result: Item, contents: Contents) -> list[str]:
    """Append the rows of every target and protocol that was evaluated for a run; returns what is wrong with files.

    A file's rows that are damaged are left out, and those on other images of the target than `images` says.
    """
    problems = []
    for name, content in contents.items():
        sound, bad = ([], "no JSON object") if content is None else sound_rows(content, name)
        digest = target_digest(content)
        if sound and digest and digest != images[target_data(content)]:
            sound, bad = [], "of other images than other runs or the set here; `harness transfer` evaluates it again"
        head = {column: result[column] for column in TRANSFER_RUN_COLUMNS} | {"transfer_id": name}
        rows += [row | head for row in sound]
        problems += [f"transfer/{name}.json: {bad}"] if bad else []
    return problems


def add_curves(columns: dict[str, list[Any]], path: Path, result: Item) -> list[str]:
    """Append metrics.jsonl in long form to the columns of CURVES (columns, since there are millions of rows).

    Returns what is wrong with the file; its lines that are damaged are left out.
    """
    lines = metric_lines(path)
    if lines is None:
        return ["metrics.jsonl is missing; the curves lack this run"]
    sound, bad = sound_lines(parse_metrics(lines), result["samples_seen"])
    end = max((line["samples_seen"] for line in sound), default=0)
    if not bad and end < result["samples_seen"]:
        bad = f"ends at {end:,} of {result['samples_seen']:,} samples; the curve stops short"
    flops = result["training_flops_per_image"]
    for line in sound:
        samples, split = line.pop("samples_seen"), line.pop("split")
        count = len(line)
        columns["run_id"] += [result["run_id"]] * count
        columns["samples_seen"] += [samples] * count
        columns["exaflops"] += [flops * samples / 1e18] * count
        columns["split"] += [split] * count
        columns["metric"] += line.keys()
        columns["value"] += line.values()
    return [f"metrics.jsonl: {bad}"] if bad else []


def table(rows: list[dict[str, Any]] | dict[str, list[Any]], columns: list[str]) -> pd.DataFrame:
    """A frame with exactly the documented columns, in order, typed."""
    frame = pd.DataFrame(rows, columns=pd.Index(columns))
    kinds = {**RUNS, **TRANSFER, **CURVES}
    return frame.astype({name: DTYPES[kinds[name].kind] for name in columns})


def write(tables: dict[str, pd.DataFrame], out: Path, form: str) -> list[Path]:
    """Write the tables as csv or parquet; returns the paths. Raises HarnessError for what cannot be written."""
    paths = [out / f"{name}.{form}" for name in tables]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    for path, frame in zip(paths, tables.values(), strict=True):
        with writing(path):
            if form == "csv":
                write_csv(frame, path)
            else:
                write_parquet(frame, path)
    return paths


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """An OSError inside is an error of the output path."""
    try:
        yield
    except OSError as error:
        elsewhere = "`harness results STUDY --out DIR` writes the tables to another folder"
        raise HarnessError(f"{path}: cannot be written ({error.strerror}); {elsewhere}") from error


def write_parquet(frame: pd.DataFrame, path: Path) -> None:
    """Raises HarnessError where the library for it is missing."""
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise HarnessError("parquet needs pyarrow: pip install pyarrow (or --format csv)") from error


def write_csv(frame: pd.DataFrame, path: Path) -> None:
    """The same bytes as DataFrame.to_csv, several times as fast: of what repeats, and most does, one text is made."""
    with path.open("w", newline="") as file:
        file.write(",".join(frame.columns) + "\n")
        file.writelines(map("{}\n".format, map(",".join, zip(*(fields(frame[name]) for name in frame), strict=True))))


def fields(column: pd.Series) -> list[str]:
    """A column as fields of a CSV file; empty for what is missing."""
    codes, values = pd.factorize(column)
    texts = [quoted(str(value)) for value in values.tolist()]
    return np.array([*texts, ""], dtype=object)[codes].tolist()  # missing values have code -1


def quoted(text: str) -> str:
    """A field as CSV has it."""
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text
