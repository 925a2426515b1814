"""A figure's labels can be read: not over one another, not over the data, as text."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from analysis import figures, figures_compute, style
from analysis.looks import FAMILY_COLOURS, ON_DARK, OTHER_COLOURS, SHADES, looks
from analysis.report_tables import number_cell
from analysis.results import Tables, load
from analysis.style import INK, Chart
from analysis.transfer import evaluations
from analysis.verdict import judge_all
from tests.analysis.studies import SIZES, linear_gap, runs_table, write_study


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


def assert_inside(chart: Chart) -> None:
    """All that is drawn, labels and legend too, is inside the figure."""
    chart.figure.draw_without_rendering()
    drawn, (width, height) = chart.figure.get_tightbbox(), chart.figure.get_size_inches()
    assert -0.01 < drawn.x0 < drawn.x1 < width + 0.01
    assert -0.01 < drawn.y0 < drawn.y1 < height + 0.01


def test_forty_models_of_one_colour_are_drawn_apart() -> None:
    """By shade, line and mark together; the first, which most studies have alone, is plain."""
    found = looks([(f"m{n}", "ViT") for n in range(40)])
    assert len({look[1:] for look in found.values()}) == 40
    assert found["m0"] == ("#0072B2", "#0072B2", "-", "o")
    assert len({look[1:] for look in looks([(f"m{n}", f"family {n}") for n in range(16)]).values()}) == 16


@pytest.mark.parametrize("models", [2, 12])
def test_learning_curves_name_the_models_of_a_family(tmp_path: Path, models: int) -> None:
    runs = runs_table(lambda model, size, seed: 0.5, seeds=1)
    first = runs[runs["model"] == "vit"].assign(family="A_family_name_of_forty_letters_or_so_long")
    many = [first.assign(model=f"a_model_{n:02}", run_id=first["run_id"] + f"-{n}") for n in range(models)]
    chart = figures.learning_curves(tables_of(tmp_path, pd.concat(many)))
    assert_inside(chart)
    names = chart.axes.get_legend().get_texts()
    assert [text.get_text() for text in names] == [f"a_model_{n:02}" for n in range(models)]
    assert chart.axes.get_window_extent().height > 150
    alone = figures.learning_curves(tables_of(tmp_path, many[0]))
    assert_inside(alone)
    assert [text.get_text() for text in alone.axes.get_legend().get_texts()] == ["A_family_nam…s_or_so_long"]


def test_long_names_of_sets_models_and_metrics_stay_in_the_figure(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 1e4), seeds=1).replace(
        {"model": {"vit": "a_model_with_a_name_of_forty_characters"}}
    )
    sets = ("a_long_name_of_a_set_of_photographs", "imagenet21k_winter_release_deduplicated", "jft300m_of_some_kind")
    runs["dataset"] = runs["subset_samples"].map(dict(zip(SIZES, sets, strict=True)))
    tables = load(write_study(tmp_path / "t", runs, metric_title="top-1 of a metric " + "with a long name " * 4))
    chart = figures_compute.pretraining_sets(tables)
    assert chart is not None
    assert_inside(chart)
    labels = chart.axes.get_xticklabels()
    assert [label.get_rotation() > 0 for label in labels] == [True] * 3  # too long for a row
    assert_inside(figures.data_scaling(tables, overlay=True))


def test_a_gap_of_nothing_at_one_image_is_said_well(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, runs_table(lambda model, size, seed: 0.5 - 1e-7 * (model == "vit"), sizes=(1,)))
    (said,) = figures.gaps(judge_all(tables)[0]).tips["tip-0"]
    assert said.startswith("1 image: +0.00 points")
    assert number_cell(-0.001, "+.2f")[0] == "+0.00"
    assert number_cell(1000, ",d")[0] == "1,000"


@pytest.mark.parametrize(
    "gaps, said",
    [
        ((-9, 0, 9), "Band: crossover."),
        ((5, 5, 5), "variance of seed pairs pooled over sizes."),
        ((-9, 9, -9), "Band: changes of sign, several, so no single crossover."),
    ],
)
def test_a_caption_speaks_of_the_band_that_is_drawn(tmp_path: Path, gaps: tuple[int, ...], said: str) -> None:
    gap = dict(zip(SIZES, gaps, strict=True))

    def accuracy(model: str, size: int, seed: int) -> float:
        return 0.5 + (model == "vit") * (gap[size] + seed) / 100

    chart = figures.gaps(judge_all(tables_of(tmp_path, runs_table(accuracy)))[0])
    assert chart.caption.endswith(said)
    assert len(chart.axes.patches) == ("Band" in said)
    dashed = [line for line in chart.axes.lines if line.get_linestyle() == "--"]
    assert len(dashed) == (said == "Band: crossover.")


def test_letters_that_the_font_lacks_come_from_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def png(title: str, fonts: tuple[str, ...]) -> bytes:
        monkeypatch.setattr(style, "ASIAN_FONTS", fonts)
        chart = style.new_chart("", title, "y")
        style.write_png(chart, tmp_path / "chart.png")
        return (tmp_path / "chart.png").read_bytes()

    serif = ("no such font", "DejaVu Serif")  # it has an arrow that DejaVu Sans lacks
    assert png("⤀", serif) != png("⤀", ())
    assert png("⤀", ("no such font",)) == png("⤀", ())
    assert png("plain words", serif) == png("plain words", ())


def contrast(one: str, other: str) -> float:
    """WCAG 2.2's contrast ratio of two colours as #rrggbb."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return float(np.dot([0.2126, 0.7152, 0.0722], linear))

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_every_line_stands_out_on_white_and_on_the_dark_page() -> None:
    """WCAG 1.4.11: 3 to 1; text, which is ink, 4.5 to 1. The two shades of a colour are not one."""
    for first, second in SHADES.items():
        for colour in (first, second):
            assert contrast(colour, "#ffffff") >= 3, colour
            assert contrast(ON_DARK.get(colour, colour), "#1d2024") >= 3, colour
        assert contrast(first, second) >= 1.5
        assert contrast(ON_DARK.get(first, first), ON_DARK.get(second, second)) >= 1.3
    assert contrast(INK, "#ffffff") > 4.5
    assert contrast("#cfd3d7", "#1d2024") > 4.5
    assert {*FAMILY_COLOURS.values(), *OTHER_COLOURS} == set(SHADES)


@pytest.mark.parametrize("dark", [False, True])
def test_no_two_families_look_alike(dark: bool) -> None:
    """Blue and a lighter blue of another family were one on the dark page."""
    colours = [ON_DARK.get(one, one) if dark else one for one in (*FAMILY_COLOURS.values(), *OTHER_COLOURS)]
    for one, two in combinations(colours, 2):
        apart = [int(one[at : at + 2], 16) - int(two[at : at + 2], 16) for at in (1, 3, 5)]
        assert np.linalg.norm(apart) > 55, (one, two)


@pytest.mark.parametrize(
    "options, classes, said",
    [
        ({"seeds": 1}, 100, ""),
        ({"seeds": 1}, 2, " Hollow: near chance by the rules, shown and not used."),
        ({"sizes": (1000,), "seeds": 5}, 100, " Bars: 95 % intervals, variance of seed pairs."),
    ],
)
def test_a_gap_caption_speaks_of_the_bars_and_marks_that_are_drawn(
    tmp_path: Path, options: dict[str, object], classes: int, said: str
) -> None:
    runs = runs_table(linear_gap(6.0, 1e7, noise=0.1), num_classes=classes, **options)  # type: ignore[arg-type]
    chart = figures.gaps(judge_all(tables_of(tmp_path, runs))[0])
    assert chart.caption == f"Validation top-1, best along training. Above zero vit is ahead.{said}"


@pytest.mark.parametrize(
    "protocol, shots, of_one, of_three",
    [
        ("fewshot_linear", 5, "frozen features, one support set.", "features, a run's mean over support sets."),
        ("linear_probe", 0, "frozen features, all training images.", "features, all training images."),
        ("finetune", 0, "Fine-tuned.", "Fine-tuned, a run's mean over fine-tuning seeds."),
    ],
)
def test_a_transfer_caption_speaks_of_the_means_that_are_taken(
    tmp_path: Path, protocol: str, shots: int, of_one: str, of_three: str
) -> None:
    for seeds, values, wanted, runs_are in ((1, 1, of_one, "One run a point."), (3, 3, of_three, "Lines: mean over")):
        folder = write_study(tmp_path / str(seeds), runs_table(linear_gap(6.0, 10_000, noise=0.5), seeds=seeds))
        table = pd.read_csv(folder / "transfer.csv").assign(protocol=protocol, shots=shots)
        table = table[table["support_seed"] < values]
        kept = {1: ["pretrained"], 3: ["pretrained", "untrained", "raw_pixels"]}[seeds]
        table[table["features"].isin(kept)].to_csv(folder / "transfer.csv", index=False)
        tables = load(folder)
        caption = figures.transfer(tables, evaluations(tables.transfer)[0]).caption
        assert f"{wanted} {runs_are}" in caption
        assert ("Dotted: the untrained" in caption) == ("Dashed: the same classifier" in caption) == (seeds == 3)
        assert ("Bars" in caption) == (seeds == 3)


def test_curves_of_one_seed_each_are_no_means(tmp_path: Path) -> None:
    first = runs_table(linear_gap(6.0, 10_000), sizes=(1000,), seeds=1).head(1)
    many = [first.assign(model=f"m{n}", run_id=f"run-{n}") for n in range(figures.MOST_LINES + 1)]
    assert figures.learning_curves(tables_of(tmp_path, pd.concat(many))).caption.startswith("One line a run, its mark")
