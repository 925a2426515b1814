"""Overrides become one typed configuration; mistakes name the key and what was probably meant."""

from pathlib import Path

import pytest

from harness.compose import compose
from harness.errors import ConfigError
from harness.paths import conf_dir, sweeps_dir
from harness.study import spec


def test_defaults_compose() -> None:
    config = compose([])
    assert config.model.name == "vit_pocket"
    assert config.data.name == "glyphs"
    assert config.recipe.learning_rate == pytest.approx(2e-3)


def test_overrides_reach_their_field() -> None:
    config = compose(["model=resnet_pocket", "subset=3k", "seed=7", "recipe.learning_rate=1e-3"])
    assert (config.model.family, config.subset, config.seed) == ("ResNet", "3k", 7)
    assert config.recipe.learning_rate == 1e-3


@pytest.mark.parametrize(
    "override, hint",
    [
        ("model=vit_pockt", "vit_pocket"),
        ("data=glyph", "glyphs"),
        ("recipe=poket", "pocket"),
        ("recipe.learning_rat=1", "recipe.learning_rate"),
        ("sed=3", "seed"),
        ("model.vit.widht=3", "model.vit.width"),
    ],
)
def test_a_typo_gets_the_near_match(override: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert hint in str(caught.value)
    assert override.split("=")[0] in str(caught.value)


@pytest.mark.parametrize("override", ["seed=abc", "recipe.batch_size=big", "recipe.learning_rate=fast"])
def test_a_value_of_the_wrong_type_names_the_field(override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose([override])
    assert override.split("=")[0].split(".")[-1] in str(caught.value)


@pytest.mark.parametrize("override", ["no equals sign", "a=b=[", "=3"])
def test_broken_grammar_is_an_error(override: str) -> None:
    with pytest.raises(ConfigError):
        compose([override])


NAMED_BY_THE_USER = ("folder", "list", "parquet", "webdataset", "torchvision", "foreign")
GROUP_FILES = sorted(path for path in conf_dir().glob("*/*.yaml"))


@pytest.mark.parametrize("path", GROUP_FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_option_of_every_group_composes_and_has_a_header(path: Path) -> None:
    extra = ["model.name=vit_tiny_patch16_224"] if path.stem == "timm" else []
    extra += ["data.path=somewhere", "data.name=mine"] if path.stem in NAMED_BY_THE_USER else []
    extra += ["transfer.name=mine"] if path.parent.name == "transfer" and path.stem == "folder" else []
    compose([f"{path.parent.name}={path.stem}", *extra])
    assert path.read_text().startswith("#")


@pytest.mark.parametrize("path", sorted(sweeps_dir().glob("*.yaml")), ids=lambda path: path.stem)
def test_every_cell_of_every_study_composes(path: Path) -> None:
    study = spec.load(path.stem)
    header = path.read_text().split("\ntitle:")[0]
    for word in ("Command", "Paper", "found", "Cost"):
        assert word in header, f"{path}: the header says nothing of {word}"
    for model in {cell.model for cell in spec.coordinates(study)}:
        config = compose(
            [f"data={study.data}", f"recipe={study.recipe}", f"transfer={study.transfer}", f"model={model}"]
        )
        assert config.model.name
