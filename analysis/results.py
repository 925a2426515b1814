"""Load and check results tables (columns and units: harness.results_schema). Tables need not come from harness."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.checks import (
    FRACTIONS,
    NEEDED,
    TableError,
    check,
    check_filled,
    check_fractions,
    check_rows,
    check_shots,
    difference,
    family_names,
)
from analysis.repeats import (
    REPEATED,
    SERIES,
    apart_by_length,
    mark_repeats,
    notes_on_lengths,
    notes_on_recipes,
    of_unequal_lengths,
    without_repeated_rows,
    without_wrong_values,
)
from analysis.transfer import AVERAGE, Evaluation, NothingEvaluated, average_of, choose, title_of
from harness.results_schema import CURVES, RUNS, TRANSFER, Column

__all__ = ["TableError"]  # defined with the checks, looked for here


class NotEvaluated(TableError):
    """A transfer metric, and no transfer yet: a report is made without a verdict."""


@dataclass(frozen=True)
class Tables:
    """runs, transfer, curves, and what study.json says of the study."""

    runs: pd.DataFrame
    transfer: pd.DataFrame
    curves: pd.DataFrame
    study: dict[str, Any]
    notes: tuple[str, ...] = ()  # what was left out of the tables, a sentence each

    @property
    def finished(self) -> pd.DataFrame:
        """Rows of runs that have a result; only these are scored."""
        return self.runs[self.runs["state"] == "finished"]


def load(folder: Path) -> Tables:
    """Tables in `folder`: runs.csv or .parquet, and where they are there transfer, curves and study.json.

    `folder` may also be one file that holds `runs`, whatever its name.

    Raises TableError for a table that is missing, lacks a column, or holds values out of range.
    """
    if folder.is_file():
        return load_file(folder)
    runs = read_table(folder, "runs", RUNS)
    if runs is None and not folder.exists():
        raise TableError(f"{folder}: no such file or folder")
    if runs is None:
        raise TableError(f"{folder}: neither runs.csv nor runs.parquet is there")
    runs, notes = checked_runs(folder / "runs", runs)
    transfer = read_table(folder, "transfer", TRANSFER)
    curves = read_table(folder, "curves", CURVES)
    for name, frame, columns in (("transfer", transfer, TRANSFER), ("curves", curves, CURVES)):
        if frame is not None and len(frame):
            required = tuple(key for key, column in columns.items() if column.required)
            check(folder / name, frame, required)
            check_filled(folder / name, frame, required)
    if transfer is not None and len(transfer):
        check_shots(folder / "transfer", transfer)
    study_path = folder / "study.json"
    study = read_study(study_path) if study_path.exists() else {}
    if transfer is not None:
        names = runs.drop_duplicates("run_id").set_index("run_id")["model"]
        if "transfer_id" not in transfer.columns:
            transfer["transfer_id"] = ""
        transfer["transfer_id"] = transfer["transfer_id"].fillna("")
        transfer["model"] = transfer["run_id"].map(names).fillna(transfer["model"])
    left_out = set(runs["run_id"][runs["state"] == REPEATED])
    if transfer is not None:
        transfer, repeated = without_repeated_rows(transfer[~transfer["run_id"].isin(left_out)])
        notes += repeated
    if curves is not None and len(curves):
        curves, wrong = without_wrong_values(curves[~curves["run_id"].isin(left_out)])
        notes += wrong
    return Tables(
        runs=runs,
        transfer=pd.DataFrame(columns=pd.Index(list(TRANSFER))) if transfer is None else transfer,
        curves=pd.DataFrame(columns=pd.Index(list(CURVES))) if curves is None else curves,
        study=study,
        notes=tuple(notes),
    )


STUDY_LISTS = {"odd_folders": {"folder", "problem"}, "skipped_sizes": {"subset", "reason"}}  # in study.json


def read_study(path: Path) -> dict[str, Any]:
    """study.json. Raises TableError for one that is damaged, or whose pairs are no pairs."""
    try:
        study = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise TableError(f"{path}: cannot be read ({error}); without it the tables are still analysed") from error
    if not isinstance(study, dict):
        raise TableError(f"{path}: no JSON object")
    study = {name: value for name, value in study.items() if value is not None}
    try:
        json.dumps(study, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise TableError(f"{path}: half a character (a lone surrogate), which cannot be written") from error
    if wrong := study_problem(study):
        raise TableError(f"{path}: {wrong}")
    return study


def study_problem(study: dict[str, Any]) -> str:
    """The first value of a wrong kind, as the rest of a message; '' where all is well."""
    for name in ("rules", "planned", "environment", "environment_differs"):
        if not isinstance(study.get(name, {}), dict):
            return f"{name}: {study[name]!r} is no object"
    for name in ("rules", "planned"):
        for key, value in study.get(name, {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"{name}.{key}: {value!r} is no number"
    if not isinstance(study.get("environment", {}).get("packages") or {}, dict):
        return "environment.packages: no object"
    if not all(map(is_texts, study.get("environment_differs", {}).values())):
        return "environment_differs: no object of lists of texts"
    for name, keys in STUDY_LISTS.items():
        items = study.get(name, [])
        if not isinstance(items, list) or not all(isinstance(item, dict) and keys <= set(item) for item in items):
            return f"{name}: no list of objects with {' and '.join(sorted(keys))}"
    expected = study.get("expected_runs", 1)
    if isinstance(expected, bool) or not isinstance(expected, int) or expected < 1:
        return f"expected_runs: {expected!r} is no whole number from 1 on"
    degrees = study.get("rules", {}).get("min_degrees_of_freedom", 1)
    if not isinstance(degrees, int) or degrees < 1:
        return f"rules.min_degrees_of_freedom: {degrees!r} is no whole number from 1 on"
    pairs, ids = study.get("pairs", []), study.get("transfer_ids", [])
    if not isinstance(pairs, list) or not all(is_texts(pair) and len(pair) == 2 for pair in pairs):
        return f'pairs: {pairs!r}; write [["ViT-B/32", "ResNet50x1"]]'
    return "" if is_texts(ids) else f"transfer_ids: {ids!r} is no list of names"


def is_texts(value: object) -> bool:
    """Whether it is a list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def load_file(path: Path) -> Tables:
    """One CSV or parquet file as the runs table, without transfer and curves."""
    if path.suffix not in (".csv", ".parquet"):
        raise TableError(f"{path}: neither .csv nor .parquet")
    runs, notes = checked_runs(path, read_file(path, RUNS))
    empty = [pd.DataFrame(columns=pd.Index(list(columns))) for columns in (TRANSFER, CURVES)]
    return Tables(runs, empty[0], empty[1], {}, tuple(notes))


def read_table(folder: Path, name: str, columns: dict[str, Column]) -> pd.DataFrame | None:
    """A table as parquet or CSV with its documented types; None when it is not there.

    Raises TableError where both are there and hold other things: one of them is out of date.
    """
    paths = [path for path in (folder / f"{name}.parquet", folder / f"{name}.csv") if path.exists()]
    frames = [read_file(path, columns) for path in paths]
    if len(frames) == 2 and (differs := difference(frames[0], frames[1], columns)):
        raise TableError(
            f"{folder}: {name}.parquet and {name}.csv are not the same table ({differs}); remove the one out of date"
        )
    return frames[0] if frames else None


def read_file(path: Path, columns: dict[str, Column]) -> pd.DataFrame:
    """Exactly this file, .parquet or .csv, with the documented types."""
    try:
        frame = read_parquet(path) if path.suffix == ".parquet" else read_csv(path, columns)
    except (ValueError, TypeError, OSError) as error:
        raise TableError(f"{path}: cannot be read ({error})") from error
    for mark, name in ((";", "semicolons"), ("\t", "tabs")):
        if len(frame.columns) == 1 and mark in frame.columns[0]:
            raise TableError(f"{path}: columns are separated by {name}; save it with commas")
    for column in frame.columns.intersection(list(columns)):
        if columns[column].kind == "str":
            texts = frame[column].astype("string")  # as CSV has it: a model in parquet may be the number 50 …
            frame[column] = texts.mask(texts == "")  # … and an empty text is none
            continue
        try:
            frame[column] = pd.to_numeric(frame[column])
        except (ValueError, TypeError) as error:
            raise TableError(f"{path}: column {column}: cannot be read as numbers ({error})") from error
    return frame


def read_csv(path: Path, columns: dict[str, Column]) -> pd.DataFrame:
    """Documented texts as they stand: only an empty cell is empty there, and a model may be named None or NA."""
    texts = {name: "string" for name, column in columns.items() if column.kind == "str"}
    frame = pd.read_csv(path, dtype=texts)
    as_written = pd.read_csv(path, dtype="string", keep_default_na=False, na_values=[""])
    for name in frame.columns.intersection(list(texts)):
        frame[name] = as_written[name].array
    return frame


def read_parquet(path: Path) -> pd.DataFrame:
    """Raises TableError that says what to install."""
    try:
        return pd.read_parquet(path)
    except ImportError as error:
        raise TableError(f"{path}: parquet needs pyarrow: pip install pyarrow") from error


def checked_runs(path: Path, runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """The runs table, fit for every conclusion and with every documented column, and notes on repeated runs.

    Raises as the two checks do.
    """
    check(path, runs, NEEDED)
    check_rows(path, runs)
    whole = with_defaults(runs)
    named = apart_by_length(whole)
    marked, notes = mark_repeats(named)
    return marked, [*notes_on_recipes(whole), *notes_on_lengths(whole, named), *notes]


def with_defaults(runs: pd.DataFrame) -> pd.DataFrame:
    """Every documented column, empty where the table has none; draw 0 where none is given.

    A model trained by several recipes at one size is as many models, `NAME · RECIPE`: their runs are no repetitions of
    one another. A recipe that goes with the size, as in the paper's Figure 4, tells nothing apart.
    """
    frame = runs.reindex(columns=[*RUNS, *[name for name in runs.columns if name not in RUNS]]).reset_index(drop=True)
    frame["draw"] = frame["draw"].fillna(0)
    frame["family"] = family_names(frame["family"])
    finished = frame[frame["state"] == "finished"]
    here = finished.groupby(["model", "subset_samples"])["recipe"].nunique()
    several = frame["model"].isin(here[here > 1].index.get_level_values("model"))
    named = frame["model"].astype("string") + SERIES + frame["recipe"].astype("string").fillna("?")
    frame["model"] = frame["model"].where(~several, named)
    return frame


def pairs_of(tables: Tables) -> list[tuple[str, str]]:
    """The study's pairs; of a model with several recipes, each of them with each of the other side's.

    Where both sides were trained for several lengths, those of equal length are paired; where none are equal the pair
    stays as the study names it, without runs. The one with the most runs comes first.
    """
    models = sorted(map(str, tables.runs["model"].unique()))
    runs = tables.finished["model"].value_counts()

    def fewest_last(pair: tuple[str, str]) -> tuple[int, tuple[str, str]]:
        return -min(int(runs.get(name, 0)) for name in pair), pair

    def series(name: str) -> list[str]:
        return [model for model in models if model.startswith(name + SERIES)] or [name]

    found: list[tuple[str, str]] = []
    for first, second in tables.study.get("pairs", []):
        every = sorted(((one, two) for one in series(first) for two in series(second)), key=fewest_last)
        equal = [pair for pair in every if not of_unequal_lengths(tables.finished, *pair)]
        found += every if len(every) == 1 else equal or [(first, second)]
    return list(dict.fromkeys(found))


def scores(tables: Tables, metric: str) -> pd.DataFrame:
    """One row a finished run: run_id, model, family, subset_samples, draw, seed, chance, value (fraction).

    Args:
        metric: an accuracy column of runs, or 'transfer:TARGET:SHOTS' (mean over support seeds; analysis.transfer).
    Raises TableError for a metric that the tables do not have.
    """
    frame = tables.finished
    columns = ["run_id", "model", "family", "subset_samples", "draw", "seed"]
    if not metric.startswith("transfer:"):
        if metric not in frame.columns:
            raise TableError(f"metric {metric}: runs has no such column")
        if metric in RUNS and metric not in FRACTIONS:
            raise TableError(
                f"metric {metric}: no accuracy; of the documented columns these are: {', '.join(FRACTIONS)}"
            )
        out = frame[columns].assign(value=numbers(metric, frame[metric]), chance=1 / frame["num_classes"].astype(float))
        if len(out) and out["value"].isna().all():
            raise TableError(f"metric {metric}: empty in every finished run; --metric names another accuracy of runs")
        check_fractions(f"metric {metric}", out["value"])
        return out.dropna(subset=["value"])
    means = [transfer_means(tables, evaluation) for evaluation in evaluations_of(tables, metric)]
    mean = pd.concat(means, axis=1).dropna().mean(axis=1)  # of several targets, the runs that have them all
    return frame[columns].merge(mean.rename("value").reset_index(), on="run_id").assign(chance=0.0)


def numbers(metric: str, column: pd.Series) -> pd.Series:
    """A column of a table's own as numbers. Raises TableError for one of text."""
    try:
        return pd.to_numeric(column).astype(float)
    except (ValueError, TypeError) as error:
        raise TableError(f"metric {metric}: no accuracy; the column cannot be read as numbers ({error})") from error


def transfer_means(tables: Tables, evaluation: Evaluation) -> pd.Series:
    """A run's mean over support seeds, by run_id."""
    rows = evaluation.rows(tables.transfer)
    return rows[rows["features"] == "pretrained"].groupby("run_id")["value"].mean()


def evaluations_of(tables: Tables, metric: str) -> list[Evaluation]:
    """What 'transfer:TARGET:SHOTS' names here, of 'transfer:average:SHOTS' one a target. Raises TableError if it cannot
    be told."""
    own = tables.study.get("transfer_ids", [])
    words = metric.split(":")
    try:
        if words[1] == AVERAGE and len(words) == 3 and not (tables.transfer["target"] == AVERAGE).any():
            return average_of(tables.transfer, words[2], own)
        return [choose(tables.transfer, metric, own)]
    except NothingEvaluated as error:
        raise NotEvaluated(str(error)) from error
    except ValueError as error:
        raise TableError(str(error)) from error


def transfer_title(tables: Tables, metric: str) -> str:
    """As analysis.transfer.title_of says it: 'digits, 5-shot', 'average of 5 targets, 5-shot'."""
    return title_of(evaluations_of(tables, metric))
