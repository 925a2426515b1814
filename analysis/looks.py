"""Colour, line and mark of each model: a family has a colour, and what shares one is told apart by the rest."""

from typing import NamedTuple

from matplotlib.typing import LineStyleType

# After Okabe and Ito's palette (jfly.uni-koeln.de/color), its light colours darker.
FAMILY_COLOURS = {"ViT": "#0072B2", "ResNet": "#D55E00", "hybrid": "#009E73"}
OTHER_COLOURS = ("#CC79A7", "#8C8000", "#7A5195", "#4F5B5D", "#3590C0")
# Each colour's second shade: darker, of the dark ones lighter. All have a contrast of 3 on white (WCAG 1.4.11) …
SHADES = {
    "#0072B2": "#00477A",
    "#D55E00": "#8A3D00",
    "#009E73": "#006B4E",
    "#CC79A7": "#8C4A6F",
    "#3590C0": "#1F5F82",
    "#8C8000": "#5C5400",
    "#7A5195": "#A884C0",
    "#4F5B5D": "#8793A0",
}
# … and those that lack it on the page's dark ground, or are there too like their other shade, are lighter there.
ON_DARK = {
    "#D55E00": "#F0772A",
    "#009E73": "#1FBF90",
    "#0072B2": "#4BA3DA",
    "#00477A": "#2B77A6",
    "#8A3D00": "#B25A17",
    "#006B4E": "#0B8F6A",
    "#8C4A6F": "#A9638A",
    "#3590C0": "#8CD3FF",
    "#1F5F82": "#5FAEDB",
    "#8C8000": "#E0D040",
    "#5C5400": "#9C9020",
    "#7A5195": "#8D63A8",
    "#A884C0": "#BBA3D0",
    "#4F5B5D": "#A3ADB0",
    "#8793A0": "#D5DCE2",
}
MARKS = "os^DvP*X<>"
LINES: tuple[LineStyleType, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


class Look(NamedTuple):
    """How one model, or one family, is drawn."""

    colour: str  # its family's
    shade: str  # of its line and marks
    line: LineStyleType
    mark: str


def colours(families: list[str]) -> dict[str, str]:
    """A colour a family: the three of the paper keep theirs, others follow in order."""
    others = [family for family in dict.fromkeys(families) if family not in FAMILY_COLOURS]
    return FAMILY_COLOURS | {family: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, family in enumerate(others)}


def looks(models: list[tuple[str, str]]) -> dict[str, Look]:
    """A look a model (name, family), in the table's order: no two of the first forty of one colour are alike.

    The first model of a colour has its first shade, a solid line and a round mark.
    """
    palette = colours([family for _, family in models])
    found: dict[str, Look] = {}
    used = dict.fromkeys(palette.values(), 0)  # by colour, which families past the eighth share
    for model, family in models:
        colour = palette[family]
        number, used[colour] = used[colour], used[colour] + 1
        shade = (colour, SHADES[colour])[number // len(LINES) % 2]
        found[model] = Look(colour, shade, LINES[number % len(LINES)], MARKS[number % len(MARKS)])
    return found
