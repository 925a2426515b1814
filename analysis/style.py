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
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

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
    """Direct labels (x, y, text, colour) at the lines' ends: right of the longest lines, over or under shorter ones."""
    if not ends:
        return
    low, high = chart.axes.get_ylim()
    last = max(x for x, *_ in ends)
    outer = sorted((end for end in ends if end[0] > 0.8 * last), key=lambda end: end[1])
    for (x, _, text, colour), y in zip(outer, apart([end[1] for end in outer], 0.06 * (high - low)), strict=True):
        look: dict[str, Any] = {"xytext": (7, 0), "textcoords": "offset points", "va": "center"}
        chart.axes.annotate(text, (x, y), color=colour, fontsize=9, annotation_clip=False, **look)
    inner = sorted((end for end in ends if end[0] <= 0.8 * last), key=lambda end: end[1])
    for (x, _, text, colour), y in zip(inner, apart([end[1] for end in inner], 0.06 * (high - low)), strict=True):
        rise = 11 if y >= max(end[1] for end in ends) else -11  # away from the line above it
        look = {"xytext": (0, rise), "textcoords": "offset points", "va": "center", "ha": "center"}
        chart.axes.annotate(text, (x, y), color=colour, fontsize=9, annotation_clip=False, **look)


def apart(places: list[float], gap: float) -> list[float]:
    """Rising places moved as little as it takes to be `gap` apart: what overlaps is spread about its mean."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and bottom(groups[-1], gap) < bottom(groups[-2], gap) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [bottom(group, gap) + gap * number for group in groups for number in range(len(group))]


def bottom(group: list[float], gap: float) -> float:
    """The lowest of `group` once it is spread about its mean."""
    return sum(group) / len(group) - gap * (len(group) - 1) / 2


def compute_axis(axes: Axes) -> None:
    """A log axis with ticks at 1, 2 and 5 times powers of ten: 2e-7, 50."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 50 * low else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=subs))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:g}".replace("e-0", "e-").replace("e+0", "e"))
    )
    axes.xaxis.set_minor_formatter(NullFormatter())


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
