"""Figures of a study: each function takes tables and returns a Chart (a matplotlib figure with hover texts)."""

import math
from typing import Any

import pandas as pd
from matplotlib.ticker import MaxNLocator
from scipy.special import stdtrit

from analysis import paper
from analysis.crossover import Interval
from analysis.looks import FAMILY_COLOURS, looks
from analysis.results import Tables
from analysis.style import (
    COMPUTE_TICKS,
    GRID,
    INK,
    Chart,
    End,
    label_lines,
    legend,
    new_chart,
    overlay_axes,
    short,
    short_names,
    size_axis,
)
from analysis.transfer import Evaluation
from analysis.verdict import Verdict
from analysis.words import counted, images, signed

Keywords = dict[str, Any]  # keyword arguments of matplotlib
PERCENT = 100.0
METRIC_NAMES = {
    "best_val_top1": "Validation top-1 [%], best along training",
    "test_top1": "Test top-1 [%]",
}
SCALING_TITLES = {
    "best_val_top1": "Validation accuracy against training images",
    "test_top1": "Test accuracy (held-out split) against training images",
}
MOST_LINES = 60  # learning curves; above that a line a model and size
FLOPS = "2 FLOPs a MAC, forward and backward."  # unless study.json says otherwise


def models_in(runs: pd.DataFrame) -> list[tuple[str, str]]:
    """(model, family) in the table's order."""
    return list(runs[["model", "family"]].drop_duplicates().itertuples(index=False, name=None))


def metric_title(tables: Tables, metric: str) -> str | None:
    """What study.json calls the study's metric; None for any other metric or where it says nothing."""
    title = tables.study.get("metric_title")
    return str(title) if title and metric == tables.study.get("metric", "best_val_top1") else None


def measured_by(metric: str) -> str:
    """What a caption calls a metric: a phrase of ours, or its name."""
    return METRIC_NAMES.get(metric, f"{metric} [%]").replace(" [%]", "")


def top1_axis(tables: Tables, metric: str, name: str | None) -> str:
    """`Top-1 [%], NAME`; for the study's metric with what study.json says is measured in place of Top-1."""
    own = metric == tables.study.get("metric", "best_val_top1")
    measure = str(tables.study.get("metric_measure", "Top-1")) if own else "Top-1"
    return f"{measure} [%]" + (f", {name}" if name else "")


def runs_said(frame: pd.DataFrame, keys: list[str]) -> str:
    """What a caption says of runs, by how many of them agree in `keys`: as much of seeds as there are."""
    most = frame.groupby(keys).size().max() if len(frame) else 0
    if most < 2:
        return "One run a point."
    bars = " Bars: 95 % t-intervals of the mean where three or more seeds carry one." if most > 2 else ""
    return f"Lines: mean over seeds; marks: runs.{bars}"


def mean_bars(chart: Chart, x: float, values: pd.Series, colour: str) -> None:
    """The 95 % t-interval of a mean over three or more seeds, as a bar."""
    count = len(values)
    if count >= 3:
        half = float(stdtrit(count - 1, 0.975)) * float(values.std(ddof=1)) / math.sqrt(count)
        chart.axes.plot([x, x], [values.mean() - half, values.mean() + half], color=colour, lw=1.2, alpha=0.7)


def lines_by_size(chart: Chart, frame: pd.DataFrame) -> list[End]:
    """Mean over seeds against subset size, a line a model; every run a mark of its own. Returns the lines' ends.

    Args:
        frame: run_id, model, family, subset_samples, seed, percent.
    """
    ends = []
    for model, (colour, shade, line, mark) in looks(models_in(frame)).items():
        rows = frame[frame["model"] == model]
        means = rows.groupby("subset_samples")["percent"].mean()
        chart.axes.plot(means.index.tolist(), means.tolist(), ls=line, color=shade, lw=1.6)
        for size, values in rows.groupby("subset_samples")["percent"]:
            mean_bars(chart, float(str(size)), values, shade)
        marks = zip(rows["run_id"], rows["subset_samples"], rows["seed"], rows["percent"], strict=True)
        texts = [f"{run_id}: {percent:.1f} % at {images(size)}, seed {seed}" for run_id, size, seed, percent in marks]
        places = (rows["subset_samples"].tolist(), rows["percent"].tolist())
        look: Keywords = {"color": shade, "ms": 4.5, "alpha": 0.75}
        chart.axes.plot(*places, mark, gid=chart.tip(*texts), **look)
        ends.append(End(float(means.index[-1]), float(means.iloc[-1]), model, colour))
    size_axis(chart.axes, sorted(int(size) for size in frame["subset_samples"].unique()))
    return ends


def with_percent(frame: pd.DataFrame, values: pd.Series) -> pd.DataFrame:
    """Rows that have a value, as percent."""
    return frame.assign(percent=PERCENT * values.astype(float)).dropna(subset=["percent"])


def data_scaling(tables: Tables, metric: str = "best_val_top1", overlay: bool = False) -> Chart:
    """Top-1 against subset size, the paper's Figure 4 for this study; with `overlay` its points, faint, behind."""
    title = SCALING_TITLES.get(metric, "Accuracy against training images")
    own = metric_title(tables, metric)
    axis = top1_axis(tables, metric, own) if own else METRIC_NAMES.get(metric, metric)
    chart = new_chart(title, "Training images", axis)
    frame = with_percent(tables.finished, tables.finished[metric])
    ends = lines_by_size(chart, frame)
    chart.caption = runs_said(frame, ["model", "subset_samples"])
    seen = frame.groupby("model")["samples_seen"]
    if frame["samples_seen"].notna().all() and (seen.max() <= 1.01 * seen.min()).all():
        chart.caption += " Equal numbers of samples seen at every size."
    if overlay and len(set(frame["subset_samples"])) > 1:
        chart.caption += " " + overlay_figure4(chart)
    label_lines(chart, ends)
    return chart


def overlay_figure4(chart: Chart) -> str:
    """Two models of the digitised Figure 4 on axes of their own; returns what the caption says of it."""
    runs = paper.figure4().runs
    axes = overlay_axes(chart, "JFT images; faint: the paper's\nViT-B/32, blue, and ResNet50x1, orange")
    said = []
    for model, family in (("ViT-B/32", "ViT"), ("ResNet50x1", "ResNet")):
        rows = runs[runs["model"] == model]
        percent = PERCENT * rows["best_val_top1"]
        axes.plot(rows["subset_samples"], percent, "s--", color=FAMILY_COLOURS[family], alpha=0.25, lw=1, ms=3.5)
        said.append(f"{model} ({percent.iloc[0]:.0f} to {percent.iloc[-1]:.0f} %)")
    sizes = list(paper.SIZES_FIGURE4.values())
    axes.set_xticks(sizes, list(paper.SIZES_FIGURE4))
    axes.minorticks_off()
    axes.margins(y=0.25)
    return (
        f"Faint, on axes of their own (top: JFT-300M images; height: linear 5-shot ImageNet top-1): "
        f"{' and '.join(said)} of arXiv 2010.11929v2, Figure 4, digitised to 0.2-0.4 points."
    )


def overfitting(tables: Tables) -> Chart:
    """Train minus validation top-1 at the end of training against subset size."""
    runs = tables.finished
    chart = new_chart("Overfitting", "Training images", "Train − validation top-1, end of training [points]")
    frame = with_percent(runs, runs["train_top1_final"] - runs["val_top1_final"])
    ends = lines_by_size(chart, frame)
    chart.axes.axhline(0, color=INK, lw=0.8)
    label_lines(chart, ends)
    chart.caption = (
        "Top-1 on a fixed sample of the training subset minus validation top-1, both in evaluation mode, at the end of "
        f"the horizon. {runs_said(frame, ['model', 'subset_samples'])}"
    )
    return chart


def gaps(verdict: Verdict) -> Chart:
    """The gap first - second at each size with its interval; sizes at chance are hollow."""
    comparison = verdict.comparison
    title = f"{comparison.first} − {comparison.second}"
    axis = " − ".join(short_names([comparison.first, comparison.second]))
    chart = new_chart(title, "Training images", f"{axis} [points]", height_inches=3.0)
    chart.axes.axhline(0, color=INK, lw=0.8)
    for item in comparison.gaps:
        gap = item.gap
        text = f"{images(item.size)}: {signed(gap.value)} points"
        if gap.known:
            text += f" ({signed(gap.low)} to {signed(gap.high)}), {counted(item.pairs, 'paired seed')}"
            chart.axes.plot([item.size, item.size], [gap.low, gap.high], color=INK, lw=1.4)
        face = INK if item.used else "none"
        chart.axes.plot([item.size], [gap.value], "o", color=INK, mfc=face, ms=6, gid=chart.tip(text))
    size = comparison.crossover.size
    if size is not None:
        chart.axes.axvspan(size.low, size.high, color=GRID, alpha=0.2, lw=0)
        if math.isfinite(size.value):
            chart.axes.axvline(size.value, color=GRID, lw=1, ls="--")
    if comparison.gaps:
        size_axis(chart.axes, [item.size for item in comparison.gaps])
    said = [f"{measured_by(verdict.metric)}. Above zero {comparison.first} is ahead."]
    if any(item.gap.known for item in comparison.gaps):
        pooled = " pooled over sizes" if len(comparison.used) > 1 else ""
        said.append(f"Bars: {PERCENT * verdict.rules.confidence:.0f} % intervals, variance of seed pairs{pooled}.")
    if len(comparison.used) < len(comparison.gaps):
        said.append("Hollow: near chance by the rules, shown and not used.")
    chart.caption = " ".join(said) + band_said(size)
    return chart


def band_said(crossover: Interval | None) -> str:
    """What the caption says of the band: nothing where none is drawn."""
    if crossover is None:
        return ""
    named = math.isfinite(crossover.value)
    return " Band: crossover." if named else " Band: changes of sign, several, so no single crossover."


def learning_curves(tables: Tables) -> Chart:
    """Validation top-1 against compute spent, a line a run (a model and size, where runs are many)."""
    chart = new_chart("Learning curves", "Pre-training compute [exaFLOPs]", "Validation top-1 [%]")
    curves = tables.curves[(tables.curves["split"] == "val") & (tables.curves["metric"] == "top1")]
    runs = tables.finished[["run_id", "model", "family", "subset_samples"]].drop_duplicates("run_id")
    joined = curves.merge(runs, on="run_id")
    shown = models_in(runs[runs["run_id"].isin(curves["run_id"])])
    drawn = looks(shown)
    by_model = len({family for _, family in shown}) < len(shown)
    sizes = sorted(runs["subset_samples"].unique())
    repeated = runs.groupby(["model", "subset_samples"]).size().max() > 1
    many = bool(repeated) and joined["run_id"].nunique() > MOST_LINES
    if many:
        keys = ["model", "family", "subset_samples", "samples_seen"]
        joined = joined.groupby(keys, sort=False)[["exaflops", "value"]].mean().reset_index()
        joined["run_id"] = joined["model"] + ", mean over seeds"
    for _, part in joined.groupby(["run_id", "model", "subset_samples"], sort=False):
        rows = part.sort_values("samples_seen")
        name, model, size = rows[["run_id", "model", "subset_samples"]].iloc[0]
        percent = PERCENT * rows["value"].astype(float)
        strength = 0.3 + 0.7 * (sizes.index(size) + 1) / len(sizes)
        seen = counted(rows["samples_seen"].iloc[-1], "sample")
        text = f"{name}: {images(size, short(size))}, {percent.iloc[-1]:.1f} % after {seen}"
        look: Keywords = {"color": drawn[model].shade, "ls": drawn[model].line}
        look |= {"alpha": strength, "lw": 0.6 + strength}
        if by_model or len(rows) == 1:  # one evaluation is a point, no line
            look |= {"marker": drawn[model].mark, "ms": 4, "markevery": [-1]}
        chart.axes.plot(rows["exaflops"], percent, gid=chart.tip(text), **look)
    chart.axes.xaxis.set_major_locator(MaxNLocator(6))
    chart.axes.xaxis.set_major_formatter(COMPUTE_TICKS)
    legend(chart, {model if by_model else family: drawn[model] for model, family in shown}, marks=by_model)
    line = "model and size, mean over seeds" if many else "run"
    stronger = "; stronger lines are larger subsets" if len(sizes) > 1 else ""
    marks = ", its mark at its end" if by_model else ""
    chart.caption = f"One line a {line}{marks}{stronger}. {tables.study.get('compute_note', FLOPS)}"
    return chart


def transfer(tables: Tables, evaluation: Evaluation) -> Chart:
    """Transfer accuracy against subset size with the baselines; `evaluation` is one of analysis.transfer."""
    rows = evaluation.rows(tables.transfer)
    kind = evaluation.kind[0].upper() + evaluation.kind[1:]
    axis = f"{kind} {evaluation.measure} on {evaluation.target} [%]"
    chart = new_chart(f"Transfer to {evaluation.title}", "Pre-training images", axis)
    keys = ["run_id", "model", "family", "subset_samples", "seed"]
    means = rows[rows["features"] == "pretrained"].groupby(keys, sort=False)["value"].mean().reset_index()
    ends = lines_by_size(chart, with_percent(means, means["value"]))
    untrained = rows[rows["features"] == "untrained"]
    drawn = looks(models_in(means))
    for model, _ in models_in(untrained):
        percent = PERCENT * float(untrained[untrained["model"] == model]["value"].mean())
        line = chart.axes.axhline(percent, color=drawn[model].shade, lw=0.9, ls=":")
        line.set_gid(chart.tip(f"{model}, untrained: {percent:.1f} %"))
    raw = evaluation.raw_pixels(tables.transfer)
    if len(raw):
        line = chart.axes.axhline(PERCENT * raw.mean(), color=INK, lw=1, ls="--")
        line.set_gid(chart.tip(f"raw pixels: {PERCENT * raw.mean():.1f} %"))
        ends.append(End(None, PERCENT * raw.mean(), "raw pixels", INK))
    label_lines(chart, ends)
    said = [how_evaluated(rows, evaluation), runs_said(means, ["model", "subset_samples"])]
    said += ["Dashed: the same classifier on raw pixels."] if len(raw) else []
    if len(untrained):
        tuned = evaluation.protocol == "finetune"
        said.append(f"Dotted: the untrained networks, {'fine-tuned' if tuned else 'by the same classifier'}.")
    chart.caption = " ".join(said)
    return chart


def how_evaluated(rows: pd.DataFrame, evaluation: Evaluation) -> str:
    """What a transfer figure's caption says of one run's accuracy: a mean where it has several values."""
    several = bool(rows[rows["features"] == "pretrained"].groupby("run_id").size().max() > 1)
    if evaluation.protocol == "finetune":
        return "Fine-tuned" + ", a run's mean over fine-tuning seeds" * several + "."
    images_of = "a run's mean over support sets" if several else "one support set"
    return (
        f"Closed-form linear classifier on frozen features, {images_of if evaluation.shots else 'all training images'}."
    )
