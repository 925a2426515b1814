"""A figure's labels can be read: not over one another, not over the data, as text."""

from itertools import combinations
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis import figures, figures_compute
from analysis.results import Tables, load
from analysis.style import Chart
from analysis.transfer import evaluations
from tests.analysis.studies import linear_gap, runs_table, write_study


def tables_of(tmp_path: Path, runs: pd.DataFrame) -> Tables:
    return load(write_study(tmp_path / "t", runs))


def assert_legible(chart: Chart, labels: int) -> None:
    """So many labels, over neither one another nor the plot, inside the figure."""
    chart.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in chart.axes.texts]  # of the words, without the leader
    assert len(boxes) == labels
    plot, whole = chart.axes.get_window_extent(), chart.figure.bbox
    for one, two in combinations(boxes, 2):
        assert Bbox.intersection(one, two.padded(-1)) is None
    for box in boxes:
        assert box.x0 > plot.x1
        assert whole.y0 <= box.y0 < box.y1 <= whole.y1
        assert box.x1 <= whole.x1
    assert plot.width > whole.width / 2


@pytest.mark.parametrize("models", [2, 12, 40])
def test_labels_are_legible_where_all_lines_end_together(tmp_path: Path, models: int) -> None:
    runs = runs_table(lambda model, size, seed: 0.5, seeds=1)
    first = runs[runs["model"] == "vit"]
    many = [
        first.assign(model=f"a_model_with_a_rather_long_name_number_{n:02}", run_id=first["run_id"] + f"-{n}")
        for n in range(models)
    ]
    tables = tables_of(tmp_path, pd.concat(many))
    assert_legible(figures.data_scaling(tables, overlay=True), models)
    assert_legible(figures.overfitting(tables), models)


def test_labels_of_a_transfer_figure_know_its_baselines(tmp_path: Path) -> None:
    """Two models close together; the axis is widened by baselines far below."""
    folder = write_study(tmp_path / "t", runs_table(linear_gap(6.0, 10_000), sizes=(1000,)))
    table = pd.read_csv(folder / "transfer.csv")
    table.loc[table["features"] != "pretrained", "value"] = 0.1
    table.to_csv(folder / "transfer.csv", index=False)
    tables = load(folder)
    chart = figures.transfer(tables, evaluations(tables.transfer)[0])
    assert_legible(chart, 3)
    assert [text.get_text() for text in chart.axes.texts] == ["raw pixels", "vit", "resnet"]


def test_the_papers_sizes_are_no_overlay_of_one_size(tmp_path: Path) -> None:
    chart = figures.data_scaling(tables_of(tmp_path, runs_table(linear_gap(6.0, 1e4), sizes=(1000,))), overlay=True)
    assert "Figure 4" not in chart.caption
    assert len(chart.figure.axes) == 1


def test_recipes_of_one_compute_are_no_compute_figure(tmp_path: Path) -> None:
    """Their device time differs by chance alone, so that is no ladder either."""
    runs = runs_table(linear_gap(6.0, 10_000), seeds=2)
    short, long = (runs.assign(recipe=name, run_id=runs["run_id"] + name) for name in ("short", "long"))
    both = pd.concat([short, long.assign(exaflops_spent=1.003e-7, device_seconds_train=0.7)])
    tables = tables_of(tmp_path, both)
    for unit in ("exaflops", "device_days"):
        assert figures_compute.compute_scaling(tables, "best_val_top1", unit) is None
    longer = tables_of(tmp_path, pd.concat([short, long.assign(exaflops_spent=1.2e-7, device_seconds_train=0.7)]))
    for unit in ("exaflops", "device_days"):
        chart = figures_compute.compute_scaling(longer, "best_val_top1", unit)
        assert chart is not None
        chart.figure.draw_without_rendering()
        boxes = [label.get_window_extent() for label in chart.axes.get_xticklabels() if label.get_text()]
        inside = [box for box in boxes if box.x1 > chart.axes.get_window_extent().x0]
        assert len(inside) >= 2
        assert not any(one.overlaps(two) for one, two in combinations(inside, 2))
