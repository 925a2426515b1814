"""Figures of a study: each function takes tables and returns a Chart (a matplotlib figure with hover texts)."""

import pandas as pd

from analysis.results import Tables
from analysis.style import GRID, INK, Chart, colours, label_lines, new_chart, short, size_axis
from analysis.verdict import Verdict

PERCENT = 100.0
METRIC_NAMES = {
    "best_val_top1": "Validation top-1 [%], best along training",
    "test_top1": "Test top-1 [%]",
}


def models_in(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """(model, family) in the table's order."""
    return list(runs[["model", "family"]].drop_duplicates().itertuples(index=False, name=None))


def lines_by_size(chart: Chart, frame: pd.DataFrame, style: str = "-", labels: bool = True) -> None:
    """Mean over seeds against subset size, a line a model; every run a mark of its own.

    Args:
        frame: run_id, model, family, subset_samples, seed, percent.
    """
    palette = colours(frame["family"].tolist())
    ends = []
    for model, family in models_in(frame):
        rows = frame[frame["model"] == model]
        means = rows.groupby("subset_samples")["percent"].mean()
        chart.axes.plot(means.index.tolist(), means.tolist(), style, color=palette[family], lw=1.6)
        marks = zip(rows["run_id"], rows["subset_samples"], rows["seed"], rows["percent"], strict=True)
        for run_id, size, seed, percent in marks:
            gid = chart.tip(f"{run_id}: {percent:.1f} % at {size:,} images, seed {seed}")
            chart.axes.plot([size], [percent], "o", color=palette[family], ms=4.5, alpha=0.75, gid=gid)
        ends.append((float(means.index[-1]), float(means.iloc[-1]), model, palette[family]))
    size_axis(chart.axes, sorted(int(size) for size in frame["subset_samples"].unique()))
    if labels:
        label_lines(chart, ends)


def with_percent(frame: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Rows that have a value, as percent."""
    return frame.assign(percent=PERCENT * values.astype(float)).dropna(subset=["percent"])


def data_scaling(tables: Tables, metric: str = "best_val_top1") -> Chart:
    """Top-1 against subset size, the paper's Figure 4 for this study."""
    title = "Test accuracy (held-out split)" if metric == "test_top1" else "Accuracy against training images"
    chart = new_chart(title, "Training images", METRIC_NAMES.get(metric, metric))
    lines_by_size(chart, with_percent(tables.finished, tables.finished[metric]))
    chart.caption = "Lines: mean over seeds; marks: runs. Equal optimiser steps at every size."
    return chart


def overfitting(tables: Tables) -> Chart:
    """Train minus validation top-1 at the end of training against subset size."""
    runs = tables.finished
    chart = new_chart("Overfitting", "Training images", "Train − validation top-1, end of training [points]")
    lines_by_size(chart, with_percent(runs, runs["train_top1_final"] - runs["val_top1_final"]))
    chart.axes.axhline(0, color=INK, lw=0.8)
    chart.caption = (
        "Top-1 on a fixed sample of the training subset minus validation top-1, both in evaluation mode, at the end of "
        "the horizon."
    )
    return chart


def gaps(verdict: Verdict) -> Chart:
    """The gap first - second at each size with its interval; sizes at chance are hollow."""
    comparison = verdict.comparison
    title = f"{comparison.first} − {comparison.second}"
    chart = new_chart(title, "Training images", f"{title} [points]", height_inches=3.0)
    chart.axes.axhline(0, color=INK, lw=0.8)
    for item in comparison.gaps:
        gap = item.gap
        text = f"{item.size:,} images: {gap.value:+.2f} points"
        if gap.known:
            text += f" ({gap.low:+.2f} to {gap.high:+.2f}), {item.pairs} paired seeds"
            chart.axes.plot([item.size, item.size], [gap.low, gap.high], color=INK, lw=1.4)
        face = INK if item.used else "none"
        chart.axes.plot([item.size], [gap.value], "o", color=INK, mfc=face, ms=6, gid=chart.tip(text))
    size = comparison.crossover.size
    if size is not None:
        chart.axes.axvspan(size.low, size.high, color=GRID, alpha=0.2, lw=0)
        chart.axes.axvline(size.value, color=GRID, lw=1, ls="--")
    if comparison.gaps:
        size_axis(chart.axes, [item.size for item in comparison.gaps])
    level = PERCENT * verdict.rules.confidence
    chart.caption = (
        f"Above zero {comparison.first} is ahead. Bars: {level:.0f} % intervals, variance of seed pairs pooled over "
        "sizes. Hollow: under the multiple of chance that the rules ask for, shown and not used. Band: crossover."
    )
    return chart


def learning_curves(tables: Tables) -> Chart:
    """Validation top-1 against compute spent, a line a run; darker for larger subsets."""
    chart = new_chart("Learning curves", "Pre-training compute [exaFLOPs]", "Validation top-1 [%]")
    curves = tables.curves[(tables.curves["split"] == "val") & (tables.curves["metric"] == "top1")]
    runs = tables.finished
    palette = colours(runs["family"].tolist())
    sizes = sorted(runs["subset_samples"].unique())
    columns = zip(runs["run_id"], runs["family"], runs["subset_samples"], strict=True)
    for run_id, family, size in columns:
        part = curves[curves["run_id"] == run_id].sort_values("samples_seen")
        if part.empty:
            continue
        strength = 0.3 + 0.7 * (sizes.index(size) + 1) / len(sizes)
        text = f"{run_id}: {short(size)} images"
        chart.axes.plot(
            part["exaflops"],
            PERCENT * part["value"].astype(float),
            color=palette[family],
            alpha=strength,
            lw=0.6 + strength,
            gid=chart.tip(text),
        )
    for family in dict.fromkeys(runs["family"].tolist()):
        chart.axes.plot([], [], color=palette[family], label=family)
    chart.axes.legend(loc="upper left", labelcolor="linecolor")
    chart.caption = "One line a run; stronger lines are larger subsets. 2 FLOPs a MAC, forward and backward."
    return chart


def transfer(tables: Tables, target: str, shots: int) -> Chart:
    """Few-shot top-1 against subset size with the two baselines."""
    rows = tables.transfer
    rows = rows[(rows["target"] == target) & (rows["shots"] == shots)]
    chart = new_chart(f"Transfer to {target}", "Pre-training images", f"{shots}-shot top-1 on {target} [%]")
    keys = ["run_id", "model", "family", "subset_samples", "seed"]
    means = rows[rows["features"] == "pretrained"].groupby(keys, sort=False)["value"].mean().reset_index()
    lines_by_size(chart, with_percent(means, means["value"]))
    untrained = rows[rows["features"] == "untrained"]
    palette = colours(means["family"].tolist())
    for model, family in models_in(untrained):
        percent = PERCENT * float(untrained[untrained["model"] == model]["value"].mean())
        line = chart.axes.axhline(percent, color=palette[family], lw=0.9, ls=":")
        line.set_gid(chart.tip(f"{model}, untrained: {percent:.1f} %"))
    raw = rows[rows["features"] == "raw_pixels"]["value"].astype(float)
    if len(raw):
        line = chart.axes.axhline(PERCENT * raw.mean(), color=INK, lw=1, ls="--")
        line.set_gid(chart.tip(f"raw pixels: {PERCENT * raw.mean():.1f} %"))
        chart.axes.annotate(
            "raw pixels",
            (0.01, PERCENT * raw.mean()),
            xycoords=("axes fraction", "data"),
            xytext=(0, 3),
            textcoords="offset points",
            fontsize=8,
        )
    chart.caption = (
        "Closed-form linear classifier on frozen features, mean over support sets. Dashed: the same classifier on raw "
        "pixels; dotted: on the untrained networks."
    )
    return chart
