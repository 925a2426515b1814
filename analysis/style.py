"""How every figure looks: column width, colour-blind safe, direct labels, hover texts, transparent ground.

Neutral ink is one colour, INK, which the report's style sheet turns light on a dark page.
"""

import io
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from analysis.looks import Look

INK = "#3a3a3a"
GRID = "#9a9a9a"
FAINT_INK = "#7d7d7d"  # of an overlay's text: 4 to 1 on light and on dark ground
POINTS_PER_INCH = 72.0
LABEL_POINTS = 11.5  # from one label to the next
LONGEST_LABEL = 25  # characters
EARLY = 0.95  # of the plot's width: a line that ends before it
LEGEND_POINTS = 14.0  # from one row to the next
LETTERS_PER_INCH = 14  # of a figure's height, in a label beside the plot
TICK_LETTERS = 50  # that fit side by side under a plot
ASIAN_FONTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Source Han Sans SC"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC", "Hiragino Sans GB"),
    *("Arial Unicode MS", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "SimHei"),
)
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
    """An empty chart with labelled axes; a long label of its height is wrapped."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_xlabel(x, parse_math=False)  # names of data: a dollar sign in them starts no formula
        axes.set_ylabel(fill(y, round(LETTERS_PER_INCH * height_inches), break_on_hyphens=False), parse_math=False)
        figure.patch.set_alpha(0)
        axes.patch.set_alpha(0)
    return Chart(figure, axes, title)


class End(NamedTuple):
    """The end of a line, and the name that its label says."""

    x: float | None  # None: a line across the whole plot, which ends at its right edge
    y: float
    text: str
    colour: str


def label_lines(chart: Chart, ends: list[End]) -> None:
    """Direct labels in a column right of the plot, where nothing is drawn, each tied to its line's end.

    To be called last: it needs the axes as they will be. With more labels than fit, the figure grows.
    """
    if not ends:
        return
    figure, axes = chart.figure, chart.axes
    with quiet_glyphs():
        figure.draw_without_rendering()  # the layout, which says how high the axes are
    height = axes.get_window_extent().height * POINTS_PER_INCH / figure.dpi
    missing = max(0.0, LABEL_POINTS * len(ends) - height)
    figure.set_figheight(figure.get_figheight() + missing / POINTS_PER_INCH)
    height += missing
    low, high = axes.get_ylim()
    ordered = sorted(ends, key=lambda end: end.y)
    heights = [(end.y - low) / (high - low) for end in ordered]
    names = short_names([end.text for end in ordered])
    for end, name, place in zip(ordered, names, apart(heights, LABEL_POINTS / height), strict=True):
        at, coordinates = ((1.0, end.y), ("axes fraction", "data")) if end.x is None else ((end.x, end.y), "data")
        right = axes.transAxes.inverted().transform(axes.transData.transform((end.x or 1.0, end.y)))[0]
        early = end.x is not None and right < EARLY
        leader = {"arrowstyle": "-", "color": end.colour, "lw": 0.6, "alpha": 0.5, "relpos": (0, 0.5)}
        leader |= {"ls": ":" if early else "-"}  # it crosses the plot, and is not the line going on
        look: dict[str, Any] = {"xycoords": coordinates, "textcoords": "axes fraction", "va": "center"}
        look |= {"arrowprops": leader | {"shrinkA": 8, "shrinkB": 0}, "annotation_clip": False, "parse_math": False}
        axes.annotate(name, at, (1.075, place), color=INK, fontsize=9, **look)
        sample = Line2D([1.04, 1.065], [place, place], color=end.colour, lw=2.2, transform=axes.transAxes)
        axes.add_artist(sample).set_clip_on(False)


def short_names(names: list[str]) -> list[str]:
    """Names with their middle left out where they would squeeze the plot; whole where that would make two alike."""
    half = (LONGEST_LABEL - 1) // 2
    cut = [name if len(name) <= LONGEST_LABEL else f"{name[:half]}…{name[-half:]}" for name in names]
    return [new if cut.count(new) == 1 else old for old, new in zip(names, cut, strict=True)]


def apart(places: list[float], gap: float) -> list[float]:
    """Rising places in 0 to 1, moved as little as makes them `gap` apart: what overlaps is spread about its mean."""
    groups: list[list[float]] = []
    for place in places:
        groups.append([place])
        while len(groups) > 1 and bottom(groups[-1], gap) < bottom(groups[-2], gap) + gap * len(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [bottom(group, gap) + gap * number for group in groups for number in range(len(group))]


def bottom(group: list[float], gap: float) -> float:
    """The lowest of `group` once it is spread about its mean, within 0 to 1."""
    length = gap * (len(group) - 1)
    return min(max(sum(group) / len(group) - length / 2, 0.0), max(1.0 - length, 0.0))


def legend(chart: Chart, names: dict[str, Look], marks: bool) -> None:
    """Names with their lines over the plot, in as many columns as fit; the figure grows by the rows past the first."""
    lines = [
        Line2D([], [], color=look.shade, ls=look.line, marker=look.mark if marks else "", ms=4)
        for look in names.values()
    ]
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2, "handlelength": 2.8}
    place["labelcolor"] = INK
    chart.figure.draw_without_rendering()  # the layout, which says how wide the axes are
    width = chart.axes.get_window_extent().width
    for columns in range(min(4, len(names)), 0, -1):
        box = chart.axes.legend(lines, [" "] * len(lines), ncols=columns, frameon=False, **place)
        for text, name in zip(box.get_texts(), short_names(list(names)), strict=True):
            text.set_parse_math(False)  # set here, as matplotlib drops lines whose name begins with an underscore
            text.set_text(name)
        with quiet_glyphs():
            if box.get_window_extent().width <= width:
                break
    rows = math.ceil(len(names) / columns)
    chart.figure.set_figheight(chart.figure.get_figheight() + (rows - 1) * LEGEND_POINTS / POINTS_PER_INCH)


def set_axis(chart: Chart, names: list[str]) -> None:
    """Ticks 0, 1, … with these names, slanted where they would run into one another; the figure grows by the slant."""
    axes, figure = chart.axes, chart.figure
    shown = short_names(names)
    axes.set_xticks(list(range(len(names))), shown, parse_math=False)
    if max(map(len, shown)) * len(shown) > TICK_LETTERS:
        axes.tick_params(axis="x", labelrotation=25)
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")
        figure.set_figheight(figure.get_figheight() + 0.03 * max(map(len, shown)))
        # The plot is no longer in the middle.
        axes.set_ylabel(fill(axes.get_ylabel(), 36, break_on_hyphens=False), parse_math=False)


COMPUTE_TICKS = FuncFormatter(lambda value, _: f"{value:.4g}".replace("e-0", "e-").replace("e+0", "e"))


def compute_axis(axes: Axes) -> None:
    """A log axis with ticks at 1, 2 and 5 times powers of ten (2e-7, 50), or at round numbers of a short range."""
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    if high < 5 * low:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 50 * low else (1.0,)))
    axes.xaxis.set_major_formatter(COMPUTE_TICKS)
    axes.xaxis.set_minor_formatter(NullFormatter())


def size_axis(axes: Axes, sizes: list[int]) -> None:
    """A log axis with the study's own sizes as ticks: 1k, 25k, 3M."""
    axes.set_xscale("log")
    named: list[int] = []  # sizes too close together for their names keep their grid line
    for size in sizes:
        if not named or math.log(size / named[-1]) > 0.07 * math.log(sizes[-1] / sizes[0]):
            named.append(size)
    axes.set_xticks(sizes, [short(size) if size in named else "" for size in sizes])
    axes.minorticks_off()
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 3, sizes[0] * 3)


def short(size: float) -> str:
    """25000 -> '25k', 63057 -> '63.1k'."""
    for unit, factor in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g}{unit}"
    return f"{size:g}"


@contextmanager
def quiet_glyphs() -> Iterator[None]:
    """No warning of letters that the font lacks: a page's browser has them, a PNG shows boxes (docs/analysis.md)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def png_fonts() -> list[str]:
    """DejaVu Sans, and the first of ASIAN_FONTS that is installed for the letters that it lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return ["sans-serif", *[name for name in ASIAN_FONTS if name in installed][:1]]


def write_png(chart: Chart, path: Path) -> None:
    """The figure on white, for papers and issues."""
    chart.figure.patch.set_alpha(1)
    fonts = png_fonts()
    for text in chart.figure.findobj(Text):
        text.set(family=fonts)
    with quiet_glyphs():
        chart.figure.savefig(path, dpi=160, facecolor="white")


def raw_svg(chart: Chart) -> str:
    """The figure as SVG, every mark with its <title>, which browsers show on hover; inline() puts it into a page."""
    buffer = io.StringIO()
    with rc_context(SETTINGS), quiet_glyphs():
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
