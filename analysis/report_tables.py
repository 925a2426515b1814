"""The tables of a report's page, each as HTML."""

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pandas as pd

from analysis import page
from analysis.results import Tables
from analysis.summary import off_by, unit_name
from analysis.transfer import Evaluation, evaluations


def subsets_table(tables: Tables) -> str:
    """Distinct originals behind each subset size."""
    runs = tables.finished
    rows = []
    for size, part in runs.groupby("subset_samples"):
        origins = part["distinct_origins"].dropna()
        low, high = (int(origins.min()), int(origins.max())) if len(origins) else (None, None)
        shown = "" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,} over draws"
        epochs = float((part["samples_seen"] / part["subset_samples"]).mean())
        rows.append([(f"{size:,}", size), (shown, low), (f"{epochs:.1f}", epochs), (str(len(part)), len(part))])
    return page.table(("Training images", "Distinct originals", "Epochs", "Runs"), rows)


TRANSFER_HEADERS = ("Features", "Target", "Metric", "Pre-training images", "Accuracy [%]", "SD [points]", "Values")


def transfer_table(tables: Tables) -> list[list[page.Cell]]:
    """Rows of transfer accuracy by model and size, baselines in the same table."""
    rows = []
    for evaluation in evaluations(tables.transfer):
        found = evaluation.rows(tables.transfer)
        networks = found[found["features"] != "raw_pixels"]
        for key, part in networks.groupby(["features", "model", "subset_samples"], sort=False):
            features, model, _ = key
            size = int(part["subset_samples"].iloc[0])
            rows.append(transfer_row(f"{model}, {features}", evaluation, size, part["value"].astype(float)))
        raw = evaluation.raw_pixels(tables.transfer)
        if len(raw):
            rows.append(transfer_row("raw pixels", evaluation, None, raw))
    return rows


def transfer_row(name: str, evaluation: Evaluation, size: int | None, values: pd.Series) -> list[page.Cell]:
    """One line of the transfer table."""
    values = 100 * values
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    target = evaluation._replace(metric="top1").title  # the metric has a column of its own
    return [
        (name, name),
        (target, target),
        (evaluation.measure, evaluation.measure),
        ("" if size is None else f"{size:,}", size),
        (f"{values.mean():.2f}", float(values.mean())),
        ("" if spread != spread else f"{spread:.2f}", spread),
        (str(len(values)), len(values)),
    ]


RUN_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("subset_samples", "Images", "{:,.0f}".format),
    ("seed", "Seed", "{:.0f}".format),
    ("best_val_top1", "Val top-1 [%]", lambda value: f"{100 * value:.2f}"),
    ("test_top1", "Test [%]", lambda value: f"{100 * value:.2f}"),
    ("train_top1_at_best", "Train at best [%]", lambda value: f"{100 * value:.2f}"),
    ("samples_seen_at_best", "Samples at best", "{:,.0f}".format),
    ("parameters", "Parameters", "{:,.0f}".format),
    ("training_flops_per_image", "Training FLOPs/image", "{:,.0f}".format),
    ("exaflops_spent", "exaFLOPs", "{:.3g}".format),
    ("device_seconds_train", "Device s", "{:,.0f}".format),
    ("images_per_second", "Images/s", "{:,.0f}".format),
)


def link_to(run_id: object, folders: set[str]) -> str | None:
    """To a run's folder, which is beside the report's; None where `folders` lacks it: the run waits."""
    return f"../{quote(str(run_id))}/" if str(run_id) in folders else None


def runs_table(tables: Tables, folders: set[str]) -> str:
    """Every run, finished or not, linked to its folder."""
    rows, links = [], []
    for row in tables.runs.to_dict("records"):
        cells: list[page.Cell] = [text_cell(row[name]) for name in ("run_id", "state", "family")]
        for name, _, form in RUN_COLUMNS:
            value = row[name]
            cells.append(("", None) if pd.isna(value) else (form(float(value)), float(value)))
        rows.append(cells)
        links.append(link_to(row["run_id"], folders))
    return page.table(("Run", "State", "Family", *[header for _, header, _ in RUN_COLUMNS]), rows, links)


UNFINISHED_HEADERS = ("Run", "State", "Reason")


def unfinished_table(runs: pd.DataFrame) -> list[list[page.Cell]]:
    """Rows of runs without a result and why."""
    return [[text_cell(row[name]) for name in ("run_id", "state", "reason")] for row in runs.to_dict("records")]


def text_cell(value: Any) -> page.Cell:
    """A cell of text, empty where there is none."""
    return ("", None) if pd.isna(value) else (str(value), value)


def number_cell(value: float | None, form: str) -> page.Cell:
    """A number by a format, empty where there is none; what rounds to zero is no -0.00."""
    if value is None:
        return "", None
    rounded = round(value, int(form[-2])) + 0.0 if form.endswith("f") else value
    return format(rounded, form), value


ODD_HEADERS = ("Folder", "Problem")


def odd_folders_table(items: list[dict[str, str]]) -> list[list[page.Cell]]:
    """Rows of run folders that give no row, or lack some."""
    return [[text_cell(row["folder"]), text_cell(row["problem"])] for row in items]


def ratio_table(rows: list[dict[str, Any]]) -> str:
    """Compute ratios of families, or why there is none."""
    out = []
    for row in rows:
        ratio, less = row["ratio"] or {}, row["times_less"] or {}
        reach = row["accuracy_range"]
        out.append(
            [
                text_cell(f"{row['first']} against {row['second']}"),
                text_cell(unit_name(row["unit"])),
                interval_cell(ratio),
                interval_cell(less),
                text_cell("" if reach is None else f"{100 * reach[0]:.1f} to {100 * reach[1]:.1f}"),
                text_cell(row["status"]),
            ]
        )
    headers = ("Families", "In", "Compute, first over second", "Times less", "At accuracy [%]", "Status")
    return page.table(headers, out)


def interval_cell(item: dict[str, float]) -> page.Cell:
    """'0.26 (0.16 to 0.43)'."""
    if not item:
        return "", None
    return f"{item['value']:.2f} ({item['low']:.2f} to {item['high']:.2f})", item["value"]


def overfitting_table(rows: list[dict[str, Any]]) -> str:
    """Train against validation top-1 by model and subset."""
    headers = (
        *("Model", "Training images", "Train, end [%]", "Val, end [%]", "Difference [points]", "SD over seeds"),
        *("Best over last val [points]", "Runs"),
    )
    names = (
        *(("subset_samples", ",d"), ("train_top1_percent", ".2f"), ("val_top1_percent", ".2f"), ("gap_points", "+.2f")),
        *(("gap_sd_points", ".2f"), ("best_over_last_points", "+.2f"), ("runs", "d")),
    )
    return page.table(headers, [[text_cell(r["model"]), *[number_cell(r[n], f) for n, f in names]] for r in rows])


def fits_table(rows: list[dict[str, Any]]) -> str:
    """Error curves: form, parameters with intervals, error of the held-out largest rung; failed ones say why."""
    out = []
    for row in rows:
        values = []
        for name, value in row["parameters"].items():
            low_high = row["intervals"].get(name)
            values.append(f"{name} {value:.4g}" + (f" ({low_high[0]:.3g} to {low_high[1]:.3g})" if low_high else ""))
        held = row["held_out_log_ratio"]
        out.append(
            [
                text_cell(row["name"]),
                text_cell(row["form"] or row["status"]),
                text_cell("; ".join(values)),
                ("", None) if held is None else (off_by(held), held),
                text_cell(row["note"]),
            ]
        )
    return page.table(("Model", "Form", "Parameters", "Held-out largest size: predicted error", "Note"), out)
