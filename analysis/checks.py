"""What a results table must hold for a conclusion: each check names the file, the column and the run at fault."""

from pathlib import Path

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from analysis.words import exact
from harness.results_schema import LARGEST, RUNS, Column

# What every conclusion needs of `runs`; other documented columns may be absent from a table of someone else's.
NEEDED = ("run_id", "state", "model", "family", "subset_samples", "seed", "num_classes")
FAMILIES = {"vit": "ViT", "resnet": "ResNet", "hybrid": "hybrid"}  # as they are written here; others stay as given
FRACTIONS = tuple(name for name, column in RUNS.items() if column.most == 1)  # the accuracies of runs
# Numbers that conclusions are drawn from or that a report shows: whole ones, and amounts.
COUNTS = (
    *("subset_samples", "num_classes", "draw", "seed", "samples_seen", "samples_seen_at_best", "distinct_origins"),
    *("parameters", "forward_macs_per_image", "training_flops_per_image", "device_count"),
)
AMOUNTS = ("exaflops_spent", "device_seconds_train", "images_per_second")
LEAST = {name: column.least for name, column in RUNS.items()} | {"num_classes": 2}
NUMBER_OF = {
    "subset_samples": "number of images",
    "num_classes": "number of classes",
    "parameters": "number of parameters",
    "device_count": "number of devices",
}
ROUNDING = 1e-9  # of numbers that were written as text


class TableError(Exception):
    """A table that cannot be used; the message names the file and the column."""


def check(path: Path, frame: pd.DataFrame, needed: tuple[str, ...]) -> None:
    """Raise TableError naming a needed column that is absent or an accuracy outside [0, 1]."""
    absent = [name for name in needed if name not in frame.columns]
    if absent:
        raise TableError(f"{path}: column {absent[0]} is missing (documented in docs/results.md)")
    for name in (*FRACTIONS, "value"):
        if name not in frame.columns or (name == "value" and "protocol" not in frame.columns):
            continue
        check_fractions(f"{path}: column {name}", frame[name])


def check_fractions(where: str, column: pd.Series) -> None:
    """Raise TableError for an accuracy outside [0, 1]; empty values are none."""
    values = column.dropna().astype(float)
    wrong = values[(values < 0) | (values > 1)]
    if len(wrong):
        raise TableError(f"{where}: {wrong.iloc[0]:g} is no fraction; accuracies are in [0, 1]")


def check_rows(path: Path, runs: pd.DataFrame) -> None:
    """Raise TableError naming the column and the run where a finished run lacks what is needed, or is there twice."""
    if runs.empty:
        raise TableError(f"{path}: the table holds no run")
    near = [
        state
        for state in runs["state"].dropna().unique()
        if state != "finished" and state.strip().lower() == "finished"
    ]
    if near:
        raise TableError(f"{path}: column state: {near[0]!r}; runs that count are 'finished'")
    finished = runs[runs["state"] == "finished"]
    check_filled(path, finished, NEEDED, "finished runs")
    twice = finished[finished["run_id"].duplicated()]
    if len(twice):
        raise TableError(f"{path}: column run_id: {twice['run_id'].iloc[0]} is there more than once; a run is a row")
    check_numbers(path, finished)
    check_one_set(path, finished)
    check_one_family(path, finished)


def check_numbers(path: Path, finished: pd.DataFrame) -> None:
    """Raise TableError naming the column and the run of a number that cannot be one; empty values are none."""
    for name in finished.columns.intersection([*COUNTS, *AMOUNTS]):
        values = finished.set_index("run_id")[name].dropna().astype(float)
        if name in COUNTS:
            wrong = values[(values < LEAST[name]) | (values % 1 != 0) | (values >= LARGEST["int"])]
            what = NUMBER_OF.get(name, f"whole number from {LEAST[name]:g} on")
        else:
            wrong = values[(values < LEAST[name]) | (values == float("inf"))]
            what = "finite number from 0 on"
        if len(wrong):
            raise TableError(f"{path}: column {name}: {exact(wrong.iloc[0])} is no {what}, in run {wrong.index[0]}")


def check_one_set(path: Path, finished: pd.DataFrame) -> None:
    """Raise TableError where runs of one size are of several data sets: no mean and no gap of them means anything.

    Sets that differ by size stay together: the paper's Figure 3 has ImageNet, ImageNet-21k and JFT.
    """
    for name in finished.columns.intersection(["dataset", "num_classes"]):
        for size, part in finished.dropna(subset=[name]).groupby("subset_samples"):
            runs = part.drop_duplicates(name).sort_values(name)
            if len(runs) > 1:
                shown = runs[name].map("{:g}".format if name == "num_classes" else str)
                each = " and ".join(f"{value} ({run})" for value, run in zip(shown, runs["run_id"], strict=True))
                raise TableError(
                    f"{path}: column {name}: runs of {each} at {size:,.0f} images; runs of one size are compared, so "
                    "they must be of one data set: make a table for each"
                )


def check_one_family(path: Path, finished: pd.DataFrame) -> None:
    """Raise TableError for a model that is of several families."""
    families = family_names(finished["family"]).groupby(finished["model"]).unique()
    for model, names in families[families.map(len) > 1].items():
        text = ", ".join(sorted(map(str, names)))
        raise TableError(f"{path}: column family: {model} is of several families ({text}); a model has one")


def family_names(column: pd.Series) -> pd.Series:
    """Families as they are written here, however the table writes them."""
    family = column.astype("string").str.strip()
    return family.str.lower().map(FAMILIES).fillna(family)


def difference(one: pd.DataFrame, two: pd.DataFrame, columns: dict[str, Column]) -> str:
    """The first difference of two tables, as the end of a message; '' where they agree but for rounding.

    Of columns that are not documented only numbers are compared: CSV writes dates and lists in ways of its own.
    """
    if len(one) != len(two):
        return f"{len(one)} and {len(two)} rows"
    for name in sorted(map(str, set(one.columns) ^ set(two.columns))):
        return f"column {name} is in one of them"
    for name in one.columns:
        first, second = one[name].reset_index(drop=True), two[name].reset_index(drop=True)
        if name in columns and columns[name].kind == "str":
            same = (first.astype("string").fillna("") == second.astype("string").fillna("")).to_numpy(bool)
        elif is_numeric_dtype(first) and is_numeric_dtype(second):
            numbers = first.astype(float).to_numpy(), second.astype(float).to_numpy()
            same = np.isclose(*numbers, rtol=ROUNDING, atol=0, equal_nan=True)
        else:
            continue
        if not same.all():
            return f"column {name}, row {int(np.argmin(same)) + 1}"
    return ""


def check_filled(path: Path, frame: pd.DataFrame, needed: tuple[str, ...], what: str = "rows") -> None:
    """Raise TableError naming a needed column with empty values and the run of the first."""
    for name in needed:
        empty = frame[frame[name].isna()]
        if len(empty):
            first = empty["run_id"].iloc[0]
            raise TableError(f"{path}: column {name}: empty in {len(empty)} {what}, the first {first}")


def check_shots(path: Path, transfer: pd.DataFrame) -> None:
    """Raise TableError for shots that are no count."""
    shots = transfer["shots"].astype(float)
    wrong = shots[(shots < 0) | (shots % 1 != 0)]
    if len(wrong):
        raise TableError(f"{path}: column shots: {wrong.iloc[0]:g} is no number of images a class")
