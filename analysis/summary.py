"""Everything that a table says, as plain data: crossover, verdict, compute ratio, overfitting, fits.

`harness analyze` prints it; the report draws from the same. Numbers that are not there are None, never NaN.
"""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pandas as pd

from analysis import overfitting
from analysis.compute_ratio import ComputeRatio, compare_compute, matched_pairs, rungs_of
from analysis.crossover import Comparison, compare, sign_change, sign_changes
from analysis.fits import Fit, fit_each
from analysis.ladder import ladder, ladder_row, size_said
from analysis.repeats import is_of_length
from analysis.results import Tables, evaluations_of, pairs_of, scores, transfer_means, transfer_title
from analysis.verdict import judge_in, rules_of
from analysis.words import counted, images, signed

X_AXES = ("images", "exaflops", "device_days")
COMPUTE_UNITS = ("exaflops", "device_days")
FAMILY_ORDER = ("hybrid", "ViT", "ResNet")  # of two, the first against the second; others go before ResNet


def analyse(tables: Tables, x: str = "images", metric: str | None = None) -> dict[str, Any]:
    """Points 2 to 5 of an analysis for every pair that tables.study names.

    Args:
        x: what fits are against: 'images', 'exaflops' or 'device_days' (the last two over the runs of analysis.ladder).
    Raises analysis.results.TableError for a metric or column that is not there.
    """
    metric = str(tables.study.get("metric", "best_val_top1")) if metric is None else metric
    rules = rules_of(tables.study)
    table = scores(tables, metric)
    comparisons = [compare(table, one, two, rules) for one, two in pairs_of(tables)]
    ladders = {unit: ladder(tables, metric, unit) for unit in COMPUTE_UNITS}
    taken = ladder_row(tables, metric)
    result = {
        "title": tables.study.get("title") or tables.study.get("name"),
        "metric": metric,
        "metric_name": metric_name(tables, metric),
        "finished_runs": len(tables.finished),
        "scored_runs": len(table),
        "notes": notes_of(tables, metric, len(table), bool(comparisons)),
        "crossover": [crossover_row(item) for item in comparisons],
        "verdict": [verdict_row(item, tables, metric) for item in comparisons],
        "ladder": taken,
        "compute_ratio": [item.row() | {"subset_samples": taken["subset_samples"]} for item in ratios(ladders)],
        "matched_compute_pairs": {
            f"{one} over {two}": matched_pairs(ladders["exaflops"], one, two)
            for one, two in family_pairs(ladders["exaflops"])
        },
        "overfitting": {
            "train_against_validation": overfitting.train_against_validation(tables),
            "bigger_against_smaller": [
                crossover_row(item) | {"sentence": overfitting.sentence(item)}
                for item in overfitting.bigger_against_smaller(tables, metric, rules)
            ],
        },
        "fits": {
            "x": x,
            "subset_samples": None if x == "images" else taken["subset_samples"],  # None: every size
            "rows": fit_rows(tables, metric, x),
        },
    }
    plain_result: dict[str, Any] = plain(result)
    return plain_result


def notes_of(tables: Tables, metric: str, scored: int, judged: bool) -> list[str]:
    """What was left out and what is not known, a sentence each without its full stop; `scored` runs have the metric."""
    notes, finished = list(tables.notes), len(tables.finished)
    if scored < finished:
        lack = "1 lacks it and is" if finished - scored == 1 else f"{finished - scored:,} lack it and are"
        of = missing_evaluations(tables, metric) if metric.startswith("transfer:") else ""
        notes.append(
            f"Not all of the {counted(finished, 'finished run')} have the metric {metric}{of}: {lack} left out"
        )
    if judged and metric.startswith("transfer:"):
        notes.append("Chance is not known for a transfer metric: min_times_chance leaves out no size")
    return notes


def missing_evaluations(tables: Tables, metric: str) -> str:
    """' (pets, 5-shot, mean per-class accuracy: 9; …)': runs without each part of an average; '' of a single target."""
    parts = evaluations_of(tables, metric)
    runs = tables.finished["run_id"]
    lacking = {part.title: int((~runs.isin(transfer_means(tables, part).index)).sum()) for part in parts}
    each = "; ".join(f"{title}: {count}" for title, count in lacking.items() if count)
    return f" ({each})" if len(parts) > 1 else ""


def metric_name(tables: Tables, metric: str) -> str:
    """What is measured in words, 'pets, 5-shot, mean per-class accuracy'; '' where nothing says more than `metric`."""
    if metric.startswith("transfer:"):
        return transfer_title(tables, metric)
    about = tables.study
    return str(about.get("metric_title", "")) if metric == about.get("metric", "best_val_top1") else ""


def metric_said(result: dict[str, Any]) -> str:
    """'metric transfer:pets:5 (pets, 5-shot, mean per-class accuracy)', of what analyse returns."""
    return result["metric"] + (f" ({result['metric_name']})" if result["metric_name"] else "")


def crossover_row(item: Comparison) -> dict[str, Any]:
    """A comparison with the sizes between which its measured gap changes sign; the one change, None where several."""
    changes = {"measured_change_of_sign": sign_change(item), "measured_changes_of_sign": sign_changes(item.used)}
    return dataclasses.asdict(item) | changes


def verdict_row(item: Comparison, tables: Tables, metric: str) -> dict[str, Any]:
    """The verdict on a comparison by the study's rules."""
    found = judge_in(tables, item, metric)
    return {
        "pair": [item.first, item.second],
        "outcome": found.outcome,
        "sentence": found.sentence,
        "would_decide": found.would_decide,
        "rules": found.rules,
    }


def family_pairs(table: pd.DataFrame) -> list[tuple[str, str]]:
    """Every two families of the table, ViT against ResNet first."""

    def place(family: str) -> tuple[float, str]:
        return (FAMILY_ORDER.index(family) if family in FAMILY_ORDER else 1.5, family)

    families = sorted({str(family) for family in table["family"]}, key=place)
    return sorted(itertools.combinations(families, 2), key=lambda pair: pair != ("ViT", "ResNet"))


def ratios(ladders: dict[str, pd.DataFrame]) -> list[ComputeRatio]:
    """Every pair of families in every unit of compute."""
    found = []
    for unit, table in ladders.items():
        if not (table["compute"] > 0).any():
            continue
        found += [compare_compute(table, one, two, unit) for one, two in family_pairs(table)]
    return found


def fits_of(tables: Tables, metric: str, x: str) -> dict[str, Fit]:
    """Error against x: a model's sizes, or a family's rungs of compute on one size (analysis.ladder)."""
    if x == "images":
        table = scores(tables, metric)
        return fit_each(table, "model", table["subset_samples"])
    table = ladder(tables, metric, x)
    table = table[table["compute"] > 0]
    rungs = pd.concat([rungs_of(part) for _, part in table.groupby("family")]) if len(table) else table["compute"]
    return fit_each(table, "family", table["compute"].groupby([table["family"], rungs]).transform("mean"))


def fit_rows(tables: Tables, metric: str, x: str) -> list[dict[str, Any]]:
    """A row a fit, failed ones too."""
    return [{"name": name} | fit.row() for name, fit in fits_of(tables, metric, x).items()]


def off_by(log_ratio: float) -> str:
    """'38.4 % too low' of log(predicted / measured)."""
    percent = 100 * math.expm1(log_ratio)
    if round(abs(percent), 1) == 0:
        return "right to 0.1 %"
    return f"{abs(percent):.1f} % too {'high' if percent > 0 else 'low'}"


def plain(value: Any) -> Any:
    """What json can write: dataclasses as dicts, numpy numbers as Python's, NaN and infinity as None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def lines(result: dict[str, Any]) -> list[str]:
    """The same for people: a sentence a finding."""
    finished = counted(result["finished_runs"], "finished run")
    found = [f"{result['title'] or 'Results'}: {finished}, metric {metric_said(result)}"]
    found += [f"  {note}." for note in result["notes"]]
    for verdict, crossing in zip(result["verdict"], result["crossover"], strict=True):
        found.append(verdict["sentence"])
        change = crossing["measured_change_of_sign"]
        if change and crossing["crossover"]["size"] is None:
            ahead = crossing["first"] if change["upwards"] else crossing["second"]
            found.append(
                f"  As measured, without an interval: {ahead} overtakes between {change['below']:,} and "
                f"{change['above']:,} images."
            )
        if verdict["would_decide"]:
            found.append(f"  What would decide it: {verdict['would_decide']}")
    return found + other_lines(result)


def other_lines(result: dict[str, Any]) -> list[str]:
    """Compute, overfitting and fits: what a verdict does not say."""
    taken, found = result["ladder"], []
    if taken["reason"]:
        found.append(f"No compute ratio: {taken['reason']}.")
    else:
        if taken["subset_samples"] < taken["largest_subset_samples"]:
            found.append(f"Compute is compared on {size_said(taken)}.")
        climbing = [name for name, count in taken["rungs"].items() if count > 1]
        rows = [row for row in result["compute_ratio"] if row["first"] in climbing and row["second"] in climbing]
        found += dict.fromkeys(ratio_line(row) for row in rows)
    for row in result["compute_ratio"]:
        found += [f"  {text}" for text in band_lines(row)]
    found += matched_lines(result)
    found += size_sentences(result["overfitting"]["bigger_against_smaller"])
    fits = result["fits"]
    found += [fit_line(row, fits["x"], fits["subset_samples"]) for row in fits["rows"]]
    return found


def matched_lines(result: dict[str, Any]) -> list[str]:
    """ViT and ResNet of equal accuracy and what each needs, a sentence a pair; other families' are in the JSON."""
    size = result["ladder"]["subset_samples"]
    return [
        f"Matched in accuracy (ViT over ResNet, {images(size)}): {matched_side(pair, 'first')}, "
        f"{matched_side(pair, 'second')}: {times_less(pair['times_less'])}"
        for pair in result["matched_compute_pairs"].get("ViT over ResNet", [])
    ]


def times_less(times: float) -> str:
    """'2.6 x less compute', '1.3 x more compute', 'about the same compute'."""
    if about_one(times):
        return "about the same compute"
    return f"{times:.1f} x less compute" if times > 1 else f"{1 / times:.1f} x more compute"


def about_one(times: float) -> bool:
    """Whether it and its inverse are 1.0 to one digit."""
    return round(max(times, 1 / times), 1) == 1


def matched_side(pair: dict[str, Any], side: str) -> str:
    """'ViT-B/32 (2.12e+09 samples seen) 90.79 %': one model at two lengths is two rungs; a name may have its length."""
    seen = 0 if is_of_length(pair[side]) else pair[f"{side}_samples_seen"]
    return f"{pair[side]}{f' ({seen:.3g} samples seen)' if seen else ''} {100 * pair[f'{side}_value']:.2f} %"


def size_sentences(rows: list[dict[str, Any]]) -> list[str]:
    """Larger models that do worse somewhere, a sentence each; one for all where none does."""
    worse = [row["sentence"] for row in rows if any(gap["gap"]["value"] < 0 for gap in row["gaps"])]
    if rows and not worse:
        return [
            "No larger model of a family (by a fifth or more in parameters, or in MACs where those are alike) does "
            "worse than a smaller one at any size measured."
        ]
    return worse


def ratio_line(row: dict[str, Any]) -> str:
    """'ViT needs 0.26 x (0.16 to 0.43) the compute of ResNet …'."""
    head = f"{row['first']} against {row['second']} in {unit_name(row['unit'])} on {images(row['subset_samples'])}"
    if row["ratio"] is None:
        return f"{head}: no compute ratio: {row['status']}"
    ratio, less = row["ratio"], row["times_less"]
    low, high = row["accuracy_range"]
    inverse = ""
    if about_one(ratio["value"]):
        inverse = ", that is about the same"
    elif less["value"] > 1:
        inverse = f", that is {less['value']:.1f} x less ({less['low']:.1f} to {less['high']:.1f})"
    return (
        f"{head}: {ratio['value']:.2f} x the compute ({ratio['low']:.2f} to {ratio['high']:.2f}){inverse}, "
        f"at accuracies that both reach, {100 * low:.1f} to {100 * high:.1f} %"
    )


def unit_name(unit: str) -> str:
    """As it is written in a sentence."""
    return {"exaflops": "exaFLOPs", "device_days": "device-days"}[unit]


def band_lines(row: dict[str, Any]) -> list[str]:
    """Who is ahead at equal compute, by band."""
    return [
        f"{row['first']} is {band['verdict']} ({signed(band['gap_points']['value'])} points, "
        f"{signed(band['gap_points']['low'])} to {signed(band['gap_points']['high'])}) against {row['second']} at "
        f"{band['compute_low']:.3g} to {band['compute_high']:.3g} {unit_name(row['unit'])}"
        for band in row["bands"]
    ]


def fit_line(row: dict[str, Any], x: str, size: int | None = None) -> str:
    """A fit in one line; `size` is the one that runs are of, where it is one."""
    head = f"Fit of {row['name']} against {x}" + ("" if size is None else f" on {images(size)}")
    if row["status"] != "ok":
        return f"{head}: {row['status']}"
    values = ", ".join(
        f"{name} = {value:.4g}"
        + (f" ({row['intervals'][name][0]:.3g} to {row['intervals'][name][1]:.3g})" if row["intervals"] else "")
        for name, value in row["parameters"].items()
    )
    held = row["held_out_log_ratio"]
    tail = "" if held is None else f"; largest rung, held out: predicted error {off_by(held)}"
    return f"{head}: {row['form']}, {values}{tail}. {row['note']}".strip()
