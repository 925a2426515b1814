"""What a table holds more than once: no mean is of it. Runs of several lengths are kept apart, repeats left out."""

import math

import pandas as pd

from analysis.words import counted
from harness.results_schema import FRACTION_METRICS, TRANSFER

SERIES = " · "  # between a model and its recipe or length
SAMPLES, EPOCHS = "samples seen", "epochs"  # units of a length
LENGTH = rf"{SERIES}[^·]* ({SAMPLES}|{EPOCHS})$"  # at the end of a model's name
ALIKE = 0.05  # lengths that differ by less are one: epochs end with a whole batch; computes too: timing, matched models
SAME_RUN = ["model", "subset_samples", "draw", "seed"]  # model with its recipe and length
SAME_ROW = [
    name for name in TRANSFER if name not in ("model", "family", "subset_samples", "draw", "seed", "value")
]  # of transfer
REPEATED = "repeated"  # state of a run that another one takes the place of
NAMED = 3  # run_ids that a note names


def apart_by_length(runs: pd.DataFrame) -> pd.DataFrame:
    """A model that was trained for several lengths at one size, whatever the seeds, is as many models:
    `NAME · 200000 samples seen`, or `NAME · 10 epochs` where it is the epochs that stay alike over the sizes."""
    finished = runs[(runs["state"] == "finished") & runs["samples_seen"].notna()]
    texts = pd.Series("", index=runs.index, dtype="string")
    for _, part in finished.groupby("model"):
        seen = part.groupby("subset_samples")["samples_seen"]
        if (seen.max() > (1 + ALIKE) * seen.min()).any():
            texts[part.index] = lengths_of(part)
    return runs.assign(model=runs["model"].astype("string") + texts) if (texts != "").any() else runs


def notes_on_recipes(runs: pd.DataFrame) -> list[str]:
    """A sentence a model whose recipe goes with the size: its sizes are one series all the same."""
    notes = []
    for model, part in runs[(runs["state"] == "finished") & runs["recipe"].notna()].groupby("model"):
        if len(part["recipe"].unique()) > 1:
            each = ", ".join(
                f"{size:,.0f} {recipe}"
                for size, recipe in part.drop_duplicates("subset_samples")
                .sort_values("subset_samples")[["subset_samples", "recipe"]]
                .itertuples(index=False, name=None)
            )
            notes.append(f"The recipe of {model} goes with the size ({each})")
    return notes


def notes_on_lengths(runs: pd.DataFrame, named: pd.DataFrame) -> list[str]:
    """What apart_by_length did and nobody asked for: runs of no known length, lengths that seeds do not share.

    Args:
        runs, named: its argument and what it made of that.
    """
    notes, finished = [], runs["state"] == "finished"
    split = (runs["model"].astype("string") != named["model"].astype("string")) & finished
    for model, part in runs[finished & runs["model"].isin(runs["model"][split])].groupby("model"):
        if unknown := int(part["samples_seen"].isna().sum()):
            notes.append(
                f"{counted(unknown, 'finished run')} of {model} in no pair: samples_seen, by which its runs are told "
                "apart, is empty"
            )
        known = part[part["samples_seen"].notna()]
        lengths = known.assign(length=named["model"]).groupby(SAME_RUN)["length"].nunique()
        if not (lengths > 1).any():  # each was trained for one: nobody compares lengths here
            least, most = known["samples_seen"].min(), known["samples_seen"].max()
            notes.append(
                f"Runs of {model} differ in samples_seen on one size and are told apart by it ({least:,.0f} to "
                f"{most:,.0f} in all); where they ended early and are to be compared all the same, leave out the column"
            )
    return notes


def lengths_of(runs: pd.DataFrame) -> pd.Series:
    """For every run of one model, ` · LENGTH`, in samples seen or in epochs, whichever tells fewer series apart."""
    lengths = runs["samples_seen"].astype(float).groupby(runs["subset_samples"]).transform(alike)
    keys = list(zip(runs["subset_samples"].astype(float), lengths, strict=True))
    sizes: dict[float, list[float]] = {}
    for size, seen in sorted(set(keys)):
        sizes.setdefault(size, []).append(seen)
    in_samples, in_epochs = series_of(sizes, SAMPLES), series_of(sizes, EPOCHS)
    unit, (_, _, series) = (SAMPLES, in_samples) if in_samples[:2] <= in_epochs[:2] else (EPOCHS, in_epochs)
    amounts: dict[int, set[float]] = {}
    for size, seen in keys:
        amounts.setdefault(series[size, seen], set()).add(amount_of(size, seen, unit))
    names = {number: length_name(every, unit) for number, every in amounts.items()}
    return pd.Series([SERIES + names[series[key]] for key in keys], runs.index, dtype="string")


def alike(amounts: pd.Series) -> pd.Series:
    """For every amount the least that counts as the same, up to ALIKE below it; NaN for what is not above zero."""
    least: dict[float, float] = {}
    start = -math.inf
    for value in sorted(amounts[amounts > 0].unique()):
        start = value if value > (1 + ALIKE) * start or math.isinf(start) else start
        least[value] = start
    return amounts.map(least)


def series_of(sizes: dict[float, list[float]], unit: str) -> tuple[int, float, dict[tuple[float, float], int]]:
    """How many series the lengths of every size make, how far lengths are from their series' first, and which is whose.

    Lengths of one size are of different series. A size of one length tells nothing apart: it joins the nearest series.
    """
    firsts: list[float] = []  # of each series the amount that began it
    total, series = 0.0, {}
    for size in sorted(sizes, key=lambda size: (len(sizes[size]), size), reverse=True):
        taken: set[int] = set()
        for seen in sizes[size]:
            amount = amount_of(size, seen, unit)
            apart = {n: abs(math.log(amount / first)) for n, first in enumerate(firsts) if n not in taken}
            number = min(apart, key=lambda n: apart[n], default=len(firsts))
            if not apart or (len(sizes[size]) > 1 and apart[number] > ALIKE):
                number = len(firsts)
                firsts.append(amount)
            total += apart.get(number, 0.0)
            taken.add(number)
            series[size, seen] = number
    return len(firsts), round(total, 6), series


def amount_of(size: float, seen: float, unit: str) -> float:
    """Samples seen, or epochs of a set of this size."""
    return seen if unit == SAMPLES else seen / size


def length_name(amounts: set[float], unit: str) -> str:
    """'200000 samples seen', '10 epochs', or the smallest and the largest where they differ over the sizes."""
    texts = [f"{amount:.0f}" if unit == SAMPLES else f"{amount:.10g}" for amount in (min(amounts), max(amounts))]
    return " to ".join(dict.fromkeys(texts)) + f" {unit}"


def is_of_length(model: str) -> bool:
    """Whether a model is there by length."""
    return model.endswith((f" {SAMPLES}", f" {EPOCHS}"))


def of_unequal_lengths(finished: pd.DataFrame, one: str, two: str) -> bool:
    """Whether two models that are there by length have no size at which both saw as many samples."""
    if not is_of_length(one) or not is_of_length(two):
        return False
    runs = [finished[finished["model"] == name] for name in (one, two)]
    pairs = runs[0].merge(runs[1], on="subset_samples")[["samples_seen_x", "samples_seen_y"]].astype(float)
    return not (pairs.max(axis=1) <= (1 + ALIKE) * pairs.min(axis=1)).any()


def mark_repeats(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Of finished runs alike in SAME_RUN the latest stays finished (by finished_at, else the last row); and a note."""
    finished = runs[runs["state"] == "finished"]
    finished = finished.sort_values("finished_at", key=times_of, kind="stable", na_position="first")
    last = finished.drop_duplicates(SAME_RUN, keep="last").set_index(SAME_RUN)["run_id"]
    repeated = finished[finished.duplicated(SAME_RUN, keep="last")].sort_index()
    if repeated.empty:
        return runs, []
    runs = runs.astype({"state": "object", "reason": "object"})
    kept = [last[key] for key in repeated[SAME_RUN].itertuples(index=False, name=None)]
    runs.loc[repeated.index, "state"] = REPEATED
    runs.loc[repeated.index, "reason"] = [f"same model, size, draw and seed as {name}, which counts" for name in kept]
    names = ", ".join(map(str, repeated["run_id"][:NAMED])) + " …" * (len(repeated) > NAMED)
    note = (
        f"{counted(len(repeated), 'repeated run')} of a model, size, draw and seed; the latest of each counts. "
        f"Left out: {names}"
    )
    return runs, [note]


def missing_runs(runs: pd.DataFrame) -> int:
    """Unfinished runs, of a model, size, draw and seed once, that no finished run was made in place of."""
    cells = runs[SAME_RUN].astype("string")
    cells["model"] = cells["model"].str.replace(LENGTH, "", regex=True)
    finished = cells[runs["state"] == "finished"].itertuples(index=False, name=None)
    others = cells[~runs["state"].isin(["finished", REPEATED])].fillna("").itertuples(index=False, name=None)
    return len(set(others) - set(finished))


def times_of(column: pd.Series) -> pd.Series:
    """ISO 8601 texts as times, UTC where they name no zone; what is no such text is no time."""
    return pd.to_datetime(column.astype("string"), format="ISO8601", utc=True, errors="coerce")


def without_repeated_rows(transfer: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Transfer rows with the last of those that are alike in all but the value; and a note."""
    twice = transfer.duplicated([name for name in SAME_ROW if name in transfer.columns], keep="last")
    if not twice.any():
        return transfer, []
    rows = counted(int(twice.sum()), "repeated transfer row")
    note = f"{rows}, alike in run, evaluation and seed; the last of each counts"
    return transfer[~twice], [note]


def without_wrong_values(curves: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Curve rows with numbers that can be drawn, accuracies of at most 1; and a note."""
    numbers = curves[["samples_seen", "exaflops", "value"]].astype(float)
    sound = ((numbers >= 0) & (numbers < float("inf"))).all(axis=1)
    sound &= ~(curves["metric"].isin(FRACTION_METRICS) & (numbers["value"] > 1))
    if sound.all():
        return curves, []
    note = f"{counted(int((~sound).sum()), 'row')} of curves left out: below 0, not finite, or an accuracy above 1"
    return curves[sound], [note]
