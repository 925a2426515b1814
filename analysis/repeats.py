"""What a table holds more than once: no mean is of it. Runs of several lengths are kept apart, repeats left out."""

import pandas as pd

from harness.results_schema import FRACTION_METRICS, TRANSFER

SERIES = " · "  # between a model and its recipe or length
SAME_RUN = ["model", "subset_samples", "draw", "seed"]  # model with its recipe and length
SAME_ROW = [
    name for name in TRANSFER if name not in ("model", "family", "subset_samples", "draw", "seed", "value")
]  # of transfer
REPEATED = "repeated"  # state of a run that another one takes the place of
NAMED = 3  # run_ids that a note names


def apart_by_length(runs: pd.DataFrame) -> pd.DataFrame:
    """Where one size, draw and seed of a model was trained for several lengths, the model is as many models:
    `NAME · 200000 samples seen`."""
    finished = runs[(runs["state"] == "finished") & runs["samples_seen"].notna()]
    lengths = finished.groupby(SAME_RUN)["samples_seen"].nunique()
    several = set(lengths[lengths > 1].index.get_level_values("model"))
    if not several:
        return runs
    rename = runs["model"].isin(several) & runs["samples_seen"].notna()
    texts = runs["samples_seen"][rename].map("{:.0f} samples seen".format).astype("string")
    named = runs["model"].astype("string")
    return runs.assign(model=named.where(~rename, named + SERIES + texts))


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
        f"{len(repeated)} run(s) repeat the model, size, draw and seed of another; the latest of each counts. "
        f"Left out: {names}"
    )
    return runs, [note]


def times_of(column: pd.Series) -> pd.Series:
    """ISO 8601 texts as times, UTC where they name no zone; what is no such text is no time."""
    return pd.to_datetime(column.astype("string"), format="ISO8601", utc=True, errors="coerce")


def without_repeated_rows(transfer: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Transfer rows with the last of those that are alike in all but the value; and a note."""
    twice = transfer.duplicated([name for name in SAME_ROW if name in transfer.columns], keep="last")
    if not twice.any():
        return transfer, []
    note = f"{int(twice.sum())} row(s) of transfer repeat another's run, evaluation and seed; the last of each counts"
    return transfer[~twice], [note]


def without_wrong_values(curves: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Curve rows with numbers that can be drawn, accuracies of at most 1; and a note."""
    numbers = curves[["samples_seen", "exaflops", "value"]].astype(float)
    sound = ((numbers >= 0) & (numbers < float("inf"))).all(axis=1)
    sound &= ~(curves["metric"].isin(FRACTION_METRICS) & (numbers["value"] > 1))
    if sound.all():
        return curves, []
    note = f"{int((~sound).sum())} row(s) of curves left out: below 0, not finite, or an accuracy above 1"
    return curves[sound], [note]
