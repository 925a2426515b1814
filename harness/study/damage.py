"""What is wrong with the files of a study's folder: the field and why, '' where nothing is. Nothing is read here."""

from pathlib import Path
from typing import Any

from harness.results_schema import (
    CURVES,
    FRACTION_METRICS,
    LARGEST,
    RUNS,
    SCHEMA_VERSION,
    TRANSFER,
    Column,
    problem,
    shown,
    wrong,
)
from harness.run_folder import HASH_CHARACTERS
from harness.study.spec import Rules

TRANSFER_RUN_COLUMNS = ("run_id", "model", "family", "subset_samples", "draw", "seed")  # of `transfer`, from the run
TRANSFER_ROW = {name: column for name, column in TRANSFER.items() if name not in (*TRANSFER_RUN_COLUMNS, "transfer_id")}
SAME_AS_PLANNED = ("model", "family", "recipe", "subset_samples", "draw", "seed", "precision", "attention")
FRACTION = CURVES["value"]._replace(most=1)
USUAL_METRICS = {"loss": LARGEST["float"], "learning_rate": LARGEST["float"]} | dict.fromkeys(FRACTION_METRICS, 1.0)

TEXT, NUMBER = Column("str", "", required=False), Column("float", "", required=False)
PLAN_TEXTS = ("title", "paper_section", "paper_finding", "metric", "dataset_title", "device")
PLAN = dict.fromkeys(PLAN_TEXTS, TEXT) | {
    "name": Column("str", "", least=1),
    "dataset": Column("str", "", least=1),
    "dataset_samples": Column("int", "", required=False),
}
PLAN_KEYS = (*PLAN, "smoke", "pairs", "rules", "skipped_sizes")  # what study.json has of it
PLAN_RUN = {name: RUNS[name] for name in (*TRANSFER_RUN_COLUMNS, "samples_seen")} | {
    "exaflops": Column("float", ""),
    "device_days": Column("float", ""),
}
PLAN_RUN_OPTIONAL = {
    name: RUNS[name]._replace(required=False)
    for name in ("recipe", "parameters", "forward_macs_per_image", "training_flops_per_image", "precision", "attention")
}
ENVIRONMENT_TEXTS = ("python", "platform", "processor", "device_kind", "host", "harness_version", "git_sha")
ENVIRONMENT = dict.fromkeys(ENVIRONMENT_TEXTS, TEXT) | {"cores": NUMBER, "memory_bytes": NUMBER}


def plan_problem(plan: dict[str, Any]) -> str:
    """Of plan.json: what the tables, study.json and the analysis take from it."""
    if bad := problem(plan, PLAN):
        return bad
    if not isinstance(plan.get("smoke", False), bool):
        return f"smoke: {shown(plan['smoke'])} is neither true nor false"
    pairs, rules, skipped = plan.get("pairs") or [], plan.get("rules") or {}, plan.get("skipped_sizes") or []
    if not is_list_of(pairs, list) or not all(is_list_of(pair, str) and len(pair) == 2 for pair in pairs):
        return "pairs: no list of pairs of models"
    if not isinstance(rules, dict):
        return f"rules: {shown(rules)} is no object"
    for name, value in rules.items():
        if name not in vars(Rules()):
            return f"rules: {shown(name)} is none of {', '.join(vars(Rules()))}"
        if why := wrong(value, FRACTION if name == "confidence" else Column("float", "")):
            return f"rules: {name}: {why}"
    if not is_list_of(skipped, dict) or any(problem(item, {"subset": TEXT, "reason": TEXT}) for item in skipped):
        return "skipped_sizes: no list of objects with subset and reason"
    return plan_runs_problem(plan.get("runs"))


def plan_runs_problem(runs: Any) -> str:
    """Of the planned runs."""
    if not is_list_of(runs, dict) or not runs:
        return "runs: no list of runs"
    seen = set()
    for number, run in enumerate(runs, start=1):
        if bad := problem(run, PLAN_RUN) or problem(run, PLAN_RUN_OPTIONAL):
            return f"runs: number {number}: {bad}"
        run_id = run["run_id"]
        if run_id in seen or Path(run_id).name != run_id or "\0" in run_id or len(run_id) > 255:
            return f"runs: number {number}: run_id: {shown(run_id)} is there twice, or no name of a folder"
        seen.add(run_id)
    return ""


def is_list_of(value: Any, kind: type) -> bool:
    """Whether a value read from JSON is a list with only such items."""
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def result_problem(result: dict[str, Any], planned: dict[str, Any], study: str) -> str:
    """Of result.json: the schema, a wrong value, or a disagreement with the plan that it should belong to."""
    if result.get("schema_version") != SCHEMA_VERSION:
        return f"schema_version: {shown(result.get('schema_version'))} is not {SCHEMA_VERSION}"
    if bad := problem(result, RUNS):
        return bad
    expected = {"run_id": planned["run_id"], "study": study, "state": "finished"}
    expected |= {name: planned[name] for name in SAME_AS_PLANNED if planned.get(name) is not None}
    for name, value in expected.items():
        if result[name] != value:
            return f"{name}: {shown(result[name])} is not the plan's {shown(value)}"
    config_hash = result.get("config_hash")
    if not isinstance(config_hash, str) or not planned["run_id"].endswith(f"-{config_hash[:HASH_CHARACTERS]}"):
        return f"config_hash: {shown(config_hash)} is not the one in the folder's name"
    return ""


def sound_rows(content: dict[str, Any], name: str) -> tuple[list[dict[str, Any]], str]:
    """Rows of the transfer file `name` that can go to the table, and what is wrong with the others.

    A file under another name is a copy, whose rows would count as an evaluation of their own.
    """
    if content.get("transfer_id", name) != name:
        return [], f"transfer_id: {shown(content['transfer_id'])} is not the file's name"
    rows = content.get("rows")
    if not isinstance(rows, list) or not rows:
        return [], "rows: no list of rows"
    problems = [problem(row, TRANSFER_ROW) if isinstance(row, dict) else f"{shown(row)} is no row" for row in rows]
    last = {row_key(row): number for number, row in enumerate(rows) if not problems[number]}
    for number, row in enumerate(rows):
        if not problems[number] and last[row_key(row)] != number:
            problems[number] = f"row {last[row_key(row)] + 1} is of the same evaluation and seed"
    return [row for row, bad in zip(rows, problems, strict=True) if not bad], first_of(problems, "row")


def row_key(row: dict[str, Any]) -> tuple[Any, ...]:
    """All of a sound transfer row but its value."""
    return tuple(row.get(name) for name in TRANSFER_ROW if name != "value")


def sound_lines(lines: list[Any], samples_seen: int) -> tuple[list[dict[str, Any]], str]:
    """Lines of metrics.jsonl that can go to the curves of a run of so many samples; what is wrong with the others."""
    if not lines:
        return [], "empty; the curves lack this run"
    clock = CURVES["samples_seen"]._replace(most=samples_seen)
    problems = ["" if is_plain(line, samples_seen) else line_problem(line, clock) for line in lines]
    return [line for line, bad in zip(lines, problems, strict=True) if not bad], first_of(problems, "line")


def is_plain(line: Any, samples_seen: int) -> bool:
    """Whether a line is sound, as nearly all are: `line_problem` for the usual ones, in a fifth of its time."""
    if type(line) is not dict or line.get("split") not in ("step", "val", "train"):
        return False
    if type(line.get("samples_seen")) is not int or not 0 <= line["samples_seen"] <= samples_seen:
        return False
    for name, value in line.items():
        if name in USUAL_METRICS:
            if type(value) is not float or not 0 <= value <= USUAL_METRICS[name]:
                return False
        elif name not in ("samples_seen", "split"):
            return False
    return True


def line_problem(line: Any, clock: Column) -> str:
    """Of one line of metrics.jsonl."""
    if not isinstance(line, dict):
        return "no JSON object"
    if bad := problem(line, {"samples_seen": clock, "split": CURVES["split"]}):
        return bad
    for name in line.keys() - {"samples_seen", "split"}:
        column = FRACTION if name in FRACTION_METRICS else CURVES["value"]
        if why := wrong(name, CURVES["metric"]) or wrong(line[name], column):
            return f"{name}: {why}"
    return ""


def first_of(problems: list[str], what: str) -> str:
    """The first problem with its number, and how many there are."""
    bad = [f"{what} {number}: {text}" for number, text in enumerate(problems, start=1) if text]
    return f"{bad[0]} ({len(bad)} of {len(problems)} left out)" if bad else ""


def environment_problem(content: dict[str, Any]) -> str:
    """Of environment.json."""
    if bad := problem(content, ENVIRONMENT):
        return bad
    packages = content.get("packages") or {}
    if not isinstance(packages, dict):
        return f"packages: {shown(packages)} is no object"
    bad = problem(packages, dict.fromkeys(packages, TEXT))
    return f"packages: {bad}" if bad else ""
