"""The runs that compute is compared on: models of different compute, trained on one size of the data."""

from typing import Any

import pandas as pd

from analysis.compute_ratio import MIN_RUNGS, rung_count, usable
from analysis.repeats import alike
from analysis.results import Tables, scores
from analysis.words import images

LADDER_NEEDED = f"a ladder of {MIN_RUNGS} or more rungs (models, or lengths of training) of different compute"


def compute_of(runs: pd.DataFrame, unit: str) -> pd.Series:
    """exaFLOPs spent, or device-days: seconds in training steps, summed over devices as the column is, / 86,400."""
    if unit == "exaflops":
        return runs["exaflops_spent"].astype(float)
    return runs["device_seconds_train"].astype(float) / 86_400


def ladder(tables: Tables, metric: str, unit: str) -> pd.DataFrame:
    """Runs on the size that ladder_size takes: family, model, subset_samples, rung (samples seen), compute, value."""
    table = with_compute(tables, metric, unit)
    return table[table["subset_samples"] == ladder_size(tables, metric)]


def with_compute(tables: Tables, metric: str, unit: str) -> pd.DataFrame:
    """analysis.results.scores with the compute, the exaFLOPs and the rung (samples seen) of every run."""
    table = scores(tables, metric)
    rows = tables.finished.set_index("run_id").loc[table["run_id"]]
    return table.assign(
        compute=compute_of(rows, unit).to_numpy(),
        exaflops=compute_of(rows, "exaflops").to_numpy(),
        rung=rows.groupby("model")["samples_seen"].transform(alike).fillna(0).to_numpy(),
    )


def ladder_size(tables: Tables, metric: str) -> int | None:
    """The largest size at which two families have a ladder, else one, else the largest; None without runs."""
    return size_with_ladders(rungs_by_size(tables, metric))


def size_with_ladders(rungs: dict[int, dict[str, int]]) -> int | None:
    """The same of the rungs of every family at every size."""
    return max(rungs, key=lambda size: (min(2, ladders_in(rungs[size])), size), default=None)


def ladders_in(rungs: dict[str, int]) -> int:
    """How many families have a ladder."""
    return sum(count >= MIN_RUNGS for count in rungs.values())


def rungs_by_size(tables: Tables, metric: str) -> dict[int, dict[str, int]]:
    """A family's rungs at every size, in exaFLOPs, or in device-days where only these are known or make ladders."""

    def worth(rungs: dict[int, dict[str, int]]) -> tuple[int, bool]:
        ladders = max((min(2, ladders_in(here)) for here in rungs.values()), default=0)
        return ladders, any(count for here in rungs.values() for count in here.values())

    in_exaflops = rungs_in(tables, metric, "exaflops")
    if worth(in_exaflops) == (2, True):  # as good as it gets
        return in_exaflops
    return max(in_exaflops, rungs_in(tables, metric, "device_days"), key=worth)


def rungs_in(tables: Tables, metric: str, unit: str) -> dict[int, dict[str, int]]:
    """The same in one unit of compute."""
    return {
        int(part["subset_samples"].iloc[0]): {
            str(family): rung_count(usable(part, family)) for family in part["family"].unique()
        }
        for _, part in with_compute(tables, metric, unit).groupby("subset_samples")
    }


def ladder_row(tables: Tables, metric: str) -> dict[str, Any]:
    """The size taken, the rungs of each family there, and the reason where two families have no ladder to compare."""
    rungs = rungs_by_size(tables, metric)
    size = size_with_ladders(rungs)
    here = {} if size is None else rungs[size]
    return {
        "subset_samples": size,
        "largest_subset_samples": max(rungs, default=None),
        "rungs": here,
        "reason": "" if ladders_in(here) > 1 else no_ladder(rungs, size),
    }


def no_ladder(rungs: dict[int, dict[str, int]], size: int | None) -> str:
    """Why no two families can be compared."""
    families = {family for here in rungs.values() for family in here}
    if size is None or not any(count for here in rungs.values() for count in here.values()):
        return "no run has both an accuracy below 1 and a compute (exaflops_spent or device_seconds_train) above 0"
    if len(families) < 2:
        return f"all runs are of one family, {families.pop()}"
    counts = ", ".join(f"{family} {count}" for family, count in rungs[size].items())
    return f"it takes {LADDER_NEEDED} in two families on one size; on {images(size)} the rungs are: {counts}"


def size_said(row: dict[str, Any]) -> str:
    """'25,000 images, the largest size with ladders of two families', of a ladder_row."""
    size, largest = row["subset_samples"], row["largest_subset_samples"]
    whose = "ladders of two families" if ladders_in(row["rungs"]) > 1 else "a ladder"
    return images(size) + (f", the largest size with {whose}" if size < largest else "")
