"""Study files: which cells, which pairs, which rules. `sweeps/NAME.yaml`, or a path to a file of the user's."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml
from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.compose import yaml_mistake
from harness.errors import ConfigError, near_matches
from harness.paths import sweeps_dir, user_config_dir
from harness.results_schema import RUNS

AXES = ("model", "subset", "seed")
METRICS = sorted(name for name, column in RUNS.items() if "top1" in name and column.kind == "float")


@dataclass
class Rules:
    """Numbers that decide the verdict; fixed in the study file before the runs."""

    confidence: float = 0.95
    min_times_chance: float = 5.0
    min_degrees_of_freedom: int = 3
    smallest_interesting_slope_points_per_decade: float = 2.0


@dataclass
class CellBlock:
    """A grid: every combination of its axes is a cell."""

    model: list[str] = MISSING
    subset: list[str] = MISSING
    seed: list[int] = MISSING
    recipe: str | None = None  # where it is not the study's
    overrides: list[str] = field(default_factory=list)  # for these cells, in Hydra's grammar


@dataclass
class Study:
    """A study file, typed."""

    title: str = MISSING
    smoke: bool = False
    paper_section: str = ""
    paper_finding: str = ""
    data: str = MISSING
    recipe: str = MISSING
    transfer: str = MISSING
    overrides: list[str] = field(default_factory=list)  # for every cell, in Hydra's grammar
    cells: list[CellBlock] = MISSING
    draw: str = "seed"  # draw of a cell: 'seed' ties it to the seed, a number is the same for all
    metric: str = "best_val_top1"
    pairs: list[list[str]] = field(default_factory=list)  # [ViT, ResNet], compute-matched
    rules: Rules = field(default_factory=Rules)


@dataclass(frozen=True, order=True)
class Coordinates:
    """One cell of the grid, as the study file names it."""

    model: str
    subset: str
    seed: int
    recipe: str
    overrides: tuple[str, ...] = ()


def find(name: str) -> Path:
    """The file of a study: a path, or a name in sweeps/. Raises ConfigError with near matches."""
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"{name}: there is no such study file")
        return path
    paths = [folder / f"{name}.yaml" for folder in study_folders()]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise ConfigError(f"{name}: there is no such study in sweeps/.{near_matches(name, names())}")
    if len(found) > 1:
        raise ConfigError(f"{name}: {found[0]} and {found[1]} have the same name; rename yours, or give its path")
    return found[0]


def study_folders() -> list[Path]:
    """Where studies are: ours, and `sweeps/` in the user's own configuration folder."""
    own = user_config_dir()
    return [sweeps_dir(), *([own / "sweeps"] if own else [])]


def names() -> list[str]:
    """Studies that can be given by name."""
    return sorted(file.stem for folder in study_folders() for file in folder.glob("*.yaml"))


def study_name(text: str) -> str:
    """'sweeps/mine.yaml' and 'mine' are the study `mine`."""
    return Path(text).stem if text.endswith((".yaml", ".yml")) else text


def load(name: str) -> Study:
    """Read and check a study file. Raises ConfigError naming the file and the field at fault."""
    path = find(name)
    try:
        study = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.load(path)))
    except yaml.YAMLError as error:
        raise ConfigError(yaml_mistake(error)) from error
    except (OmegaConfBaseException, OSError, ValueError) as error:
        raise ConfigError(f"{path}: {str(error).splitlines()[0]}") from error
    assert isinstance(study, Study)
    models = {model for block in study.cells for model in block.model}
    for pair in study.pairs:
        if len(pair) != 2:
            raise ConfigError(f"{path}: pairs: {pair} is not a pair of models")
        for model in pair:
            if model not in models:
                raise ConfigError(f"{path}: pairs: no cell trains {model}.{near_matches(model, models)}")
    check_numbers(path, study)
    if study.draw != "seed" and not study.draw.isdigit():
        raise ConfigError(f"{path}: draw: {study.draw} is neither 'seed' nor a number")
    coordinates(study)
    return study


def check_numbers(path: Path, study: Study) -> None:
    """Raise ConfigError for an axis without a value, and for a metric or numbers that no report could use."""
    for block in study.cells:
        for axis in AXES:
            if not getattr(block, axis):
                raise ConfigError(f"{path}: cells: {axis} has no value")
        if min(block.seed) < 0:
            raise ConfigError(f"{path}: seed: {min(block.seed)}: seeds are numbered from 0")
    if study.metric not in METRICS and not study.metric.startswith("transfer:"):
        near = near_matches(study.metric, METRICS)
        raise ConfigError(
            f"{path}: metric: {study.metric} is neither an accuracy of runs nor transfer:TARGET:SHOTS.{near}"
        )
    if not 0 < study.rules.confidence < 1:
        raise ConfigError(f"{path}: rules: confidence: {study.rules.confidence}: between 0 and 1")
    if study.rules.min_degrees_of_freedom < 1:
        value = study.rules.min_degrees_of_freedom
        raise ConfigError(f"{path}: rules: min_degrees_of_freedom: {value}: a whole number from 1 on")


def coordinates(study: Study) -> list[Coordinates]:
    """Every cell, in the file's order. Raises ConfigError when two blocks name the same cell."""
    cells = [
        Coordinates(model, subset, seed, block.recipe or study.recipe, tuple(block.overrides))
        for block in study.cells
        for model, subset, seed in product(block.model, block.subset, block.seed)
    ]
    twice = sorted(cell for cell, times in Counter(cells).items() if times > 1)
    if twice:
        raise ConfigError(f"cells: {twice[0]} is there twice")
    return cells


def narrow(cells: list[Coordinates], overrides: list[str]) -> tuple[list[Coordinates], list[str]]:
    """Keep the cells that `model=a,b subset=1k seed=0` name; the other overrides are handed back.

    Raises ConfigError for a value that the study does not have.
    """
    others = []
    for override in overrides:
        axis, _, text = override.partition("=")
        if axis not in AXES:
            others.append(override)
            continue
        wanted = [value.strip() for value in text.strip("[]").split(",")]
        known = {str(getattr(cell, axis)) for cell in cells}
        for value in wanted:
            if value not in known:
                raise ConfigError(f"{axis}={value}: not in this study.{near_matches(value, known)}")
        cells = [cell for cell in cells if str(getattr(cell, axis)) in wanted]
    return cells, others


def draw_of(study: Study, cell: Coordinates) -> int:
    """Which window of the data a cell trains on."""
    return cell.seed if study.draw == "seed" else int(study.draw)


def describe(study: Study, name: str) -> dict[str, Any]:
    """The parts of a study that the analysis needs, as plain JSON."""
    return {
        "name": name,
        "title": study.title,
        "smoke": study.smoke,
        "paper_section": study.paper_section,
        "paper_finding": study.paper_finding,
        "metric": study.metric,
        "pairs": study.pairs,
        "rules": vars(study.rules),
    }
