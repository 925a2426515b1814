"""Study files: grids, narrowing, and mistakes that name the field."""

from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.study import spec

GOOD = """
title: t
data: glyphs
recipe: pocket
transfer: digits
cells:
  - {model: [a, b], subset: [1k, 2k], seed: [0, 1]}
  - {model: [c], subset: [1k], seed: [0]}
pairs: [[a, b]]
"""


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return str(path)


def test_the_grid_is_the_product_and_blocks_add(tmp_path: Path) -> None:
    study = spec.load(written(tmp_path, GOOD))
    cells = spec.coordinates(study)
    assert len(cells) == 2 * 2 * 2 + 1
    assert cells[0] == spec.Coordinates("a", "1k", 0, "pocket")
    assert cells[-1] == spec.Coordinates("c", "1k", 0, "pocket")


def test_narrowing_keeps_what_is_named_and_hands_back_the_rest(tmp_path: Path) -> None:
    cells = spec.coordinates(spec.load(written(tmp_path, GOOD)))
    kept, others = spec.narrow(cells, ["model=a,c", "subset=1k", "recipe.batch_size=8"])
    assert {(cell.model, cell.seed) for cell in kept} == {("a", 0), ("a", 1), ("c", 0)}
    assert others == ["recipe.batch_size=8"]
    with pytest.raises(ConfigError, match=r"subset=3k.*(1k, 2k|2k, 1k)"):
        spec.narrow(cells, ["subset=3k"])


@pytest.mark.parametrize(
    "change, words",
    [
        (("[[a, b]]", "[[a, d]]"), ["pairs", "d"]),
        (("[[a, b]]", "[[a, b, c]]"), ["pairs"]),
        (("title: t", "titel: t"), ["titel"]),
        (("seed: [0]", "seed: [zero]"), ["zero"]),
        (("model: [c]", "model: [a]"), ["twice"]),
        (("transfer: digits", "transfer: digits\ndraw: often"), ["draw"]),
        (("pairs: [[a, b]]", "pairs: [[a, b]"), ["s.yaml", "line 10", "not YAML"]),
        (("title: t\n", ""), ["s.yaml", "title"]),
        (
            ("title: t", "title: t\nrules: {min_degrees_of_freedom: 0}"),
            ["min_degrees_of_freedom: 0", "from 1"],
        ),
        (("title: t", "title: t\nrules: {min_degrees_of_freedom: 0.5}"), ["s.yaml", "0.5"]),
    ],
)
def test_mistakes_name_the_file_and_the_field(tmp_path: Path, change: tuple[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        spec.load(written(tmp_path, GOOD.replace(*change)))
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_study_lists_near_ones() -> None:
    with pytest.raises(ConfigError, match="pocket"):
        spec.load("pockt")
    with pytest.raises(ConfigError, match="no such study file"):
        spec.load("nowhere/mine.yaml")
