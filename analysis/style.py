"""How every figure looks: column width, colour-blind safe, direct labels, hover texts, transparent ground.

Neutral ink is one colour, INK, which the report's style sheet turns light on a dark page.
"""

import io
import re
from dataclasses import dataclass, field
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK = "#3a3a3a"
GRID = "#9a9a9a"
FAINT_INK = "#7d7d7d"  # of an overlay's text: 4 to 1 on light and on dark ground
# Okabe and Ito's palette (jfly.uni-koeln.de/color), without yellow, which is too light for lines.
FAMILY_COLOURS = {"ViT": "#0072B2", "ResNet": "#D55E00", "hybrid": "#009E73"}
OTHER_COLOURS = ("#CC79A7", "#56B4E9", "#E69F00", "#7A5195", "#5F6B6D")
SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "harness",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}


@dataclass
class Chart:
    """A figure, its axes, and the text that each hoverable mark shows."""

    figure: Figure
    axes: Axes
    title: str
    caption: str = ""
    tips: dict[str, list[str]] = field(default_factory=dict)

    def tip(self, *texts: str) -> str:
        """The gid of a new line (one text) or of new marks drawn in one call (a text each, in their order)."""
        gid = f"tip-{len(self.tips)}"
        self.tips[gid] = list(texts)
        return gid


def new_chart(title: str, x: str, y: str, width_inches: float = 5.6, height_inches: float = 3.6) -> Chart:
    """An empty chart with labelled axes."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
    return Chart(figure, axes, title)


def colours(families: list[str]) -> dict[str, str]:
    """A colour a family: the three of the paper keep theirs, others follow in order."""
    others = [family for family in dict.fromkeys(families) if family not in FAMILY_COLOURS]
    return FAMILY_COLOURS | {family: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, family in enumerate(others)}


def label_lines(chart: Chart, ends: list[tuple[float, float, str, str]]) -> None:
    """Direct labels (x, y, text, colour) right of the lines' ends, moved apart where they would overlap."""
    if not ends:
        return
    low, high = chart.axes.get_ylim()
    gap = (high - low) * 0.06
    placed = -float("inf")
    for x, y, text, colour in sorted(ends, key=lambda end: end[1]):
        placed = max(y, placed + gap)
        chart.axes.annotate(
            text,
            (x, placed),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )


def size_axis(axes: Axes, sizes: list[int]) -> None:
    """A log axis with the study's own sizes as ticks: 1k, 25k, 3M."""
    axes.set_xscale("log")
    axes.set_xticks(sizes, [short(size) for size in sizes])
    axes.minorticks_off()
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 3, sizes[0] * 3)


def short(size: float) -> str:
    """25000 -> '25k'."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= factor:
            return f"{size / factor:g}{unit}"
    return f"{size:g}"


def raw_svg(chart: Chart) -> str:
    """The figure as SVG, every mark with its <title>, which browsers show on hover; inline() puts it into a page."""
    buffer = io.StringIO()
    with rc_context(SETTINGS):
        chart.figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    first, *rest = re.split(r'<g id="(tip-\d+)">', buffer.getvalue())
    pieces = [first] + [titled(chart.tips[gid], part) for gid, part in zip(rest[::2], rest[1::2], strict=True)]
    return "".join(pieces)


def titled(texts: list[str], svg: str) -> str:
    """The SVG of a group's inside and of what follows, the first len(texts) marks of it carrying their titles."""
    if len(texts) == 1 and svg.lstrip().startswith("<path"):  # a line, not marks
        return f'<g class="mark"><title>{escape(texts[0])}</title>{svg}'
    titles = iter(texts)
    return '<g class="marks">' + re.sub(
        r"<use ([^>]*)/>",
        lambda match: f'<use class="mark" {match[1]}><title>{escape(next(titles))}</title></use>',
        svg,
        count=len(texts),
    )


def inline(svg: str, title: str, prefix: str) -> str:
    """SVG for a page: ids carry `prefix`, and the whole is one labelled image that the keyboard can reach."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    svg = re.sub(r"url\(#", f"url(#{prefix}-", svg)
    svg = re.sub(r'href="#', f'href="#{prefix}-', svg)
    return svg.replace("<svg ", f'<svg role="img" tabindex="0" aria-label="{escape(title)}" ', 1)


def overlay_axes(chart: Chart, x: str) -> Axes:
    """Axes of their own behind the chart's, for points of another scale: x on top, no y ticks."""
    with rc_context(SETTINGS):
        other = chart.figure.add_subplot(label="overlay")
    other.patch.set_alpha(0)
    other.set_zorder(chart.axes.get_zorder() - 1)
    other.grid(False)
    other.xaxis.tick_top()
    other.xaxis.set_label_position("top")
    other.set_xscale("log")
    other.set_xlabel(x, fontsize=7, color=FAINT_INK)
    other.tick_params(axis="x", labelsize=7, colors=FAINT_INK)
    other.set_yticks([])
    for spine in other.spines.values():
        spine.set_visible(False)
    return other
