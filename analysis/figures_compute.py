"""Figures against compute (the paper's Figure 5) and against pre-training sets (Figure 3)."""

import pandas as pd

from analysis import paper
from analysis.figures import (
    FLOPS,
    PERCENT,
    Keywords,
    mean_bars,
    metric_title,
    models_in,
    runs_said,
    top1_axis,
    with_percent,
)
from analysis.ladder import ladder, ladder_row, size_said
from analysis.looks import FAMILY_COLOURS, looks
from analysis.results import Tables, evaluations_of
from analysis.style import GRID, Chart, End, compute_axis, label_lines, new_chart, overlay_axes, set_axis
from analysis.summary import unit_name
from analysis.transfer import axis_of, title_of

LEAST_STEP = 1.05  # two computes closer than this are one: recipes of one model, repeated runs
AXIS_NAMES = {"exaflops": "Pre-training compute", "device_days": "Pre-training time"}


def compute_scaling(tables: Tables, metric: str, unit: str = "exaflops", overlay: bool = False) -> Chart | None:
    """Accuracy against compute on one size, a line a family; None where no family has two computes.

    Args:
        metric: a column of runs, or 'transfer:TARGET:SHOTS'.
        unit: 'exaflops' or 'device_days'.
    """
    rows = ladder(tables, metric, unit)
    rows = rows[rows["compute"] > 0]
    rows = with_percent(rows, rows["value"])
    rungs = rows.groupby(["family", "model", "rung"], sort=False)[["compute", "percent"]].mean().reset_index()
    climbing = families_with_steps(rows)
    if unit != "exaflops":  # equal compute on a busy machine is no ladder
        climbing &= families_with_steps(ladder(tables, metric, "exaflops"))
    if not climbing:
        return None
    if metric.startswith("transfer:"):
        evaluated = evaluations_of(tables, metric)
        name, axis = title_of(evaluated), axis_of(evaluated)
    else:
        name = metric_title(tables, metric) or {"best_val_top1": "validation"}.get(metric, metric)
        axis = top1_axis(tables, metric, name)
    spent = "exaFLOPs" if unit == "exaflops" else str(tables.study.get("device_unit", unit_name(unit)))
    chart = new_chart(f"Compute scaling in {spent}: {name}", f"{AXIS_NAMES[unit]} [{spent}]", axis)
    chart.axes.set_xscale("log")
    families = dict.fromkeys(rows["family"])
    ends = []
    for family, (colour, shade, stroke, mark) in looks([(family, family) for family in families]).items():
        line = rungs[rungs["family"] == family].sort_values("compute")
        if family in climbing:
            chart.axes.plot(line["compute"], line["percent"], ls=stroke, color=shade, lw=1.2, alpha=0.6)
        part = rows[rows["family"] == family]
        for _, values in part.groupby(["model", "rung"]):
            mean_bars(chart, float(values["compute"].mean()), values["percent"], shade)
        marks = zip(part["run_id"], part["percent"], part["compute"], strict=True)
        texts = [f"{run_id}: {percent:.2f} % for {compute:.3g} {spent}" for run_id, percent, compute in marks]
        look: Keywords = {"color": shade, "ms": 4.5, "alpha": 0.8}
        chart.axes.plot(part["compute"].tolist(), part["percent"].tolist(), mark, gid=chart.tip(*texts), **look)
        ends.append(End(float(line["compute"].iloc[-1]), float(line["percent"].iloc[-1]), family, colour))
    compute_axis(chart.axes)
    chart.caption = (
        f"Runs on {size_said(ladder_row(tables, metric))}; lines join rungs. {runs_said(rows, ['model', 'rung'])}"
    )
    if unit == "exaflops":
        chart.caption += f" {tables.study.get('compute_note', FLOPS)}"
    if overlay and unit == "exaflops":
        chart.caption += " " + overlay_table6(chart)
    label_lines(chart, ends)
    return chart


def families_with_steps(rows: pd.DataFrame) -> set[str]:
    """Families whose runs differ in compute; all of them where no compute is known."""
    known = rows[rows["compute"] > 0]
    if known.empty:
        return set(rows["family"])
    computes = known.groupby("family")["compute"]
    steps = computes.max() / computes.min()
    return set(steps.index[steps >= LEAST_STEP])


def overlay_table6(chart: Chart) -> str:
    """Table 6's average of five on axes of their own; returns what the caption says of it."""
    runs = paper.table6().runs
    axes = overlay_axes(chart, "exaFLOPs on JFT-300M (faint: the paper)")
    for family in ("ResNet", "ViT", "hybrid"):
        rows = runs[runs["family"] == family]
        percent = PERCENT * rows["best_val_top1"].astype(float)
        axes.plot(rows["exaflops_spent"], percent, "s", color=FAMILY_COLOURS[family], alpha=0.25, ms=3.5)
    values = PERCENT * runs["best_val_top1"].astype(float)
    return (
        "Faint, on axes of their own (top: exaFLOPs by the paper's convention, padding not counted; height: mean of "
        "five fine-tuned targets, Pets and Flowers by mean per-class accuracy, "
        f"{values.min():.1f} to {values.max():.1f} %): arXiv 2010.11929v2, Table 6."
    )


def pretraining_sets(tables: Tables, metric: str = "best_val_top1", overlay: bool = False) -> Chart | None:
    """Top-1 against the pre-training set, smallest first (Figure 3); None for a table of one set.

    With `overlay` the range of BiT's models on ImageNet, ImageNet-21k and JFT-300M, where these are the sets.
    """
    frame = with_percent(tables.finished, tables.finished[metric])
    frame = frame[frame["subset_samples"] == frame.groupby("dataset")["subset_samples"].transform("max")]
    sizes = frame.groupby("dataset")["subset_samples"].max().sort_values()
    if len(sizes) < 2:
        return None
    place = {str(name): number for number, name in enumerate(sizes.index)}
    own = metric_title(tables, metric)
    chart = new_chart("Pre-training sets", "Pre-training set, smallest first", top1_axis(tables, metric, own))
    ends = []
    for model, (colour, shade, line, mark) in looks(models_in(frame)).items():
        rows = frame[frame["model"] == model].assign(place=lambda part: part["dataset"].map(place))
        means = rows.groupby("place")["percent"].mean()
        chart.axes.plot(means.index.tolist(), means.tolist(), ls=line, color=shade, lw=1.3, alpha=0.7)
        for number, values in rows.groupby("place")["percent"]:
            mean_bars(chart, float(str(number)), values, shade)
        marks = zip(rows["run_id"], rows["percent"], strict=True)
        texts = [f"{run_id}: {percent:.2f} %" for run_id, percent in marks]
        look: Keywords = {"color": shade, "marker": mark, "ms": 4.5, "alpha": 0.8, "ls": ""}
        chart.axes.plot(rows["place"].tolist(), rows["percent"].tolist(), gid=chart.tip(*texts), **look)
        ends.append(End(float(means.index[-1]), float(means.iloc[-1]), model, colour))
    set_axis(chart, list(place))
    chart.caption = f"Every set whole. {runs_said(frame, ['model', 'dataset'])}"
    if overlay and set(place) == set(paper.PRETRAINING_SETS):
        chart.caption += " " + bit_band(chart, place)
    label_lines(chart, ends)
    return chart


def bit_band(chart: Chart, place: dict[str, int]) -> str:
    """The shaded range of BiT in Figure 3; returns what the caption says of it."""
    points = paper.read("fig3_digitised")
    edges: list[pd.Series] = []
    for edge in ("BiT lower edge", "BiT upper edge"):
        rows = points[points["series"] == edge]
        edges.append(rows.assign(place=rows["pretrain_dataset"].map(place)).set_index("place")["imagenet_top1"])
    low, high = (edge.sort_index() for edge in edges)
    chart.axes.fill_between(low.index.tolist(), low.tolist(), high.tolist(), color=GRID, alpha=0.2, lw=0)
    return "Shaded: the range of BiT's ResNets, Figure 3 of arXiv 2010.11929v2, digitised to 0.1-0.3 points."
