"""The commands about studies: plan, calibrate, results, report."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from harness.config import DeviceConfig
from harness.errors import ConfigError
from harness.paths import runs_root
from harness.run_folder import read_json, study_folder, write_json
from harness.study import collect, spec
from harness.study.console import duration, wide_console
from harness.study.damage import ENVIRONMENT, PLAN_KEYS, environment_problem

NOT_AXES_WARNING = "status, results and report read what `harness run` left; of overrides they take data=NAME alone"


def plan_command(name: str, overrides: list[str], as_csv: bool, as_json: bool) -> int:
    """Print every run of a study and what it will cost; start nothing."""
    from harness.study import plan as planning

    if as_csv and as_json:
        raise ConfigError("Give one of --csv and --json, not both.")
    plan = planning.make(name, overrides)
    selected = {cell.run_id for cell in plan.selected}
    rows = [row for row in planning.rows(plan) if row["run_id"] in selected]
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    if as_csv:
        import pandas as pd

        print(pd.DataFrame(rows).to_csv(index=False), end="")
        return 0
    console = wide_console()
    table = Table(title=f"{plan.study.title} on {plan.dataset.name}", caption_justify="left")
    several = len({row["recipe"] for row in rows}) > 1
    columns = {header: value for header, value in PLAN_COLUMNS.items() if header != "recipe" or several}
    for header in columns:
        table.add_column(header, justify="left" if header in ("run", "recipe") else "right", no_wrap=header == "run")
    for row in rows:
        table.add_row(*(value(row) for value in columns.values()))
    console.print(table)
    console.print(totals(rows, plan.cells[0].config.device), highlight=False)
    print_skipped(plan.skipped)
    return 0


def memory(row: dict[str, Any]) -> str:
    """Estimated memory of a training step of the whole batch, and how many devices' worth that is above one's."""
    need, has = row["peak_memory_bytes"], row["device_memory_bytes"]
    text = f"{need / 1e9:,.1f} GB"
    return text if not has or need <= has else f"{text} ({need / has:.0f} devices)"


PLAN_COLUMNS: dict[str, Callable[[dict[str, Any]], str]] = {
    "run": lambda row: row["run_id"],
    "recipe": lambda row: row["recipe"],  # shown where a study has several
    "images": lambda row: f"{row['subset_samples']:,}",
    "epochs": lambda row: f"{row['epochs_of_subset']:.1f}",
    "samples seen": lambda row: f"{row['samples_seen']:,}",
    "parameters": lambda row: f"{row['parameters']:,}",
    "forward MFLOPs": lambda row: f"{2 * row['forward_macs_per_image'] / 1e6:.2f}",
    "exaFLOPs": lambda row: f"{row['exaflops']:.3g}",
    "device": lambda row: duration(row["device_seconds"]),
    "cost": lambda row: f"{row['cost']:.2f} {row['currency']}" if row["cost"] else "",
    "memory": memory,
}


def totals(rows: list[dict[str, Any]], device: DeviceConfig) -> str:
    """The plan in one line, with what its times rest on."""
    seconds = sum(row["device_seconds"] for row in rows)
    measured = sum(row["time_basis"] == "measured" for row in rows)
    basis = f"{measured} of {len(rows)} times measured by `harness calibrate`"
    if measured < len(rows):
        basis += f", others from {100 * device.utilisation:.0f} % of the peak of {device.name}"
    cost = f"{sum(row['cost'] for row in rows):.2f} {device.currency}"
    return (
        f"{len(rows)} runs ({sum(row['finished'] for row in rows)} finished), "
        f"{sum(row['exaflops'] for row in rows):.3g} exaFLOPs, {duration(seconds)} of one device ({basis}), "
        f"{cost if device.price_per_hour else 'no price (device.price_per_hour)'}, "
        f"{sum(row['checkpoint_bytes'] for row in rows) / 1e6:,.1f} MB of checkpoints"
    )


def calibrate_command(name: str, overrides: list[str]) -> int:
    """Time a few steps of each model of a study on this machine; `plan` uses what is found."""
    from harness.study import calibrate
    from harness.study import plan as planning

    plan = planning.make(name, overrides)
    slots = planning.slots_of(plan.cells[0].config.launcher)
    print(f"timing each model, {slots} side by side, about {calibrate.SECONDS_A_MODEL:.0f} s each …")
    for cell, speed in calibrate.calibrate(plan.selected, plan.dataset.channels, slots, runs_root()):
        flops = speed * cell.cost.training_flops_per_image
        print(f"  {cell.config.model.name:20s} {speed:10,.0f} images/s  {flops / 1e9:8.1f} GFLOP/s a run")
    print(calibrate.calibration_path(runs_root()))
    return 0


def results_command(name: str, overrides: list[str], out: Path, form: str) -> int:
    """Write the results tables of a study."""
    folder = instance_folder(name, overrides)
    plan = collect.read_plan(folder)
    paths, odd_folders = write_tables(folder, plan, out, form)
    for path in paths:
        print(path)
    for item in odd_folders:
        print(f"not in the tables: {item['folder']}: {item['problem']}")
    return 0


def report_command(name: str, overrides: list[str]) -> int:
    """Tables, figures, the verdict and an HTML page, from the run folders."""
    from analysis.commands import report_command as build_report

    folder = instance_folder(name, overrides)
    plan = collect.read_plan(folder)
    out = folder / "report"
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: a file where the report's folder goes; move it elsewhere")
    write_tables(folder, plan, out / "tables", "csv")
    return build_report(out / "tables", out)


def analyze_command(table: Path | None, pairs: str | None, x: str, metric: str | None, as_json: bool) -> int:
    """The analysis of a table, of a study's run folder (its plan.json says so), or of the paper's numbers (None)."""
    from analysis.commands import analyze_command as analyze
    from analysis.commands import paper_command

    if table is None:
        return paper_command(as_json)
    if not (table / "plan.json").is_file():
        return analyze(table, pairs, x, metric, as_json)
    with tempfile.TemporaryDirectory() as scratch:
        write_tables(table, collect.read_plan(table), Path(scratch), "csv")
        return analyze(Path(scratch), pairs, x, metric, as_json)


def write_tables(folder: Path, plan: dict[str, Any], out: Path, form: str) -> tuple[list[Path], list[dict[str, str]]]:
    """Write runs, transfer, curves and study.json of a study's run folders; their paths, and folders that are odd."""
    found = collect.collect(folder, plan)
    environments, damaged = read_environments(folder, [row["run_id"] for row in plan["runs"]])
    odd_folders = sorted(found.odd_folders + damaged, key=lambda item: item["folder"])
    paths = collect.write(found.tables, out, form)
    with collect.writing(out / "study.json"):
        write_json(out / "study.json", study_json(folder, plan, environments, odd_folders))
    return paths, odd_folders


def read_environments(folder: Path, run_ids: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """environment.json of every planned run that has one, and the folders where it is damaged."""
    environments, damaged = [], []
    for run_id in sorted(run_ids):
        path = folder / run_id / "environment.json"
        content = read_json(path)
        bad = environment_problem(content) if content is not None else "no JSON object" if path.exists() else ""
        if bad:
            damaged.append({"folder": run_id, "problem": f"damaged: environment.json: {bad}"})
        elif content is not None:
            environments.append(content)
    return environments, damaged


def study_json(
    folder: Path, plan: dict[str, Any], environments: list[dict[str, Any]], odd_folders: list[dict[str, str]]
) -> dict[str, Any]:
    """What the analysis needs to know of a study beside its tables."""
    from harness.submission import own_transfer_id

    study = plan["name"]
    default_data = spec.load(study).data if is_shipped(study) else plan["dataset"]
    data = "" if default_data == plan["dataset"] else f" data={plan['dataset']}"
    environment = (environments or [{}])[0]
    return {key: value for key, value in plan.items() if key in PLAN_KEYS} | {
        "command": f"harness run {study}{data} && harness report {study}{data}",
        "sizes": sorted({row["subset_samples"] for row in plan["runs"]}),
        "transfer_ids": sorted({own_transfer_id(folder / row["run_id"]) for row in plan["runs"]} - {""}),
        "expected_runs": len(plan["runs"]),
        "planned": {
            "runs": len(plan["runs"]),
            "exaflops": sum(row["exaflops"] for row in plan["runs"]),
            "device_days": sum(row["device_days"] for row in plan["runs"]),
        },
        "environment": {key: value for key, value in environment.items() if key in (*ENVIRONMENT, "packages")},
        "environment_differs": environment_differs(environments),
        "odd_folders": odd_folders,
    }


def environment_differs(environments: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Library and Python versions, platform and code changes that are not the same in every run, with their values.

    What the runs table has a column for (commit, torch, timm, device) is told from there.
    """
    seen: dict[str, set[str]] = {}
    for item in environments:
        packages = {
            name: value for name, value in (item.get("packages") or {}).items() if name not in ("torch", "timm")
        }
        for name, value in (packages | {key: item.get(key) for key in ("python", "platform", "processor")}).items():
            seen.setdefault(name, set()).add(str(value))
    differing = {name: sorted(values) for name, values in seen.items() if len(values) > 1}
    changed = sum(bool(item.get("git_diff")) for item in environments)
    if changed:
        differing["uncommitted code changes"] = [f"{changed} of {len(environments)} runs have some"]
    return differing


def is_shipped(study: str) -> bool:
    """Whether `study` is a file in sweeps/."""
    try:
        spec.find(study)
    except ConfigError:
        return False
    return True


def instance_folder(name: str, overrides: list[str]) -> Path:
    """The folder of a study's instance: `data=` names another one than the study's own."""
    data = None
    for override in overrides:
        key, _, value = override.partition("=")
        if key not in ("data", "data.name"):
            raise ConfigError(f"{override}: {NOT_AXES_WARNING}")
        data = value
    folder = study_folder(runs_root(), spec.study_name(name), data or "")
    if data is not None:
        return folder
    if is_shipped(name):
        return study_folder(runs_root(), spec.study_name(name), spec.load(name).data)
    spec.find(name)  # raises, with near matches
    return folder


def print_skipped(skipped: list[dict[str, Any]]) -> None:
    """Say which sizes are left out, and why."""
    for item in skipped:
        print(f"subset {item['subset']} is left out: {item['reason']}")
