"""Hydra's composition as a function: overrides in, one typed configuration out, mistakes as readable errors."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass
from pathlib import Path
from typing import get_args, get_type_hints

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import TrainConfig, register_schema
from harness.errors import ConfigError, near_matches
from harness.paths import conf_dir, config_dirs, user_config_dir


def compose(overrides: list[str], config_dir: Path | None = None) -> TrainConfig:
    """One cell's configuration from conf/train.yaml and `overrides` in Hydra's grammar.

    Raises ConfigError for an unknown key, group option or ill-typed value, with near matches.
    """
    return to_config(compose_raw(overrides, config_dir))


def compose_raw(overrides: list[str], config_dir: Path | None = None) -> DictConfig:
    """Like `compose`, before conversion to dataclasses."""
    root = (config_dir or conf_dir()).resolve()
    try:
        with initialized(root):
            return hydra_compose("train", overrides=[*search_path(), *overrides])
    except yaml.YAMLError as error:
        raise ConfigError(yaml_mistake(error)) from error
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(explain(error, overrides, root)) from error


@contextmanager
def initialized(root: Path | None = None) -> Iterator[None]:
    """Hydra over conf/, or over `root`."""
    register_schema()
    GlobalHydra.instance().clear()
    with initialize_config_dir(config_dir=str((root or conf_dir()).resolve()), version_base="1.3", job_name="harness"):
        yield


def search_path() -> list[str]:
    """The override that puts the user's configuration folder beside ours. Raises ConfigError when it is not there."""
    folder = user_config_dir()
    if folder is None:
        return []
    if not folder.is_dir():
        raise ConfigError(f"--config-dir {folder}: there is no such folder")
    quoted = str(folder).replace("\\", "\\\\").replace("'", "\\'")
    return [f"hydra.searchpath=['file://{quoted}']"]


def to_config(raw: DictConfig) -> TrainConfig:
    """Typed configuration. Raises ConfigError naming a mandatory value that is missing or of the wrong type."""
    try:
        config = OmegaConf.to_object(raw)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_line(error)) from error
    assert isinstance(config, TrainConfig)
    return config


def yaml_mistake(error: yaml.YAMLError) -> str:
    """Where a file stops being YAML, and what was found there."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not YAML: {error.problem}"
    return f"not YAML: {_first_line(error)}"


def explain(error: Exception, overrides: list[str], root: Path) -> str:
    """What went wrong in one sentence, which override did it, and what was probably meant."""
    message = _first_line(error)
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, option = (error.missing_cfg_file or "").rpartition("/")
        known = [name for name in error.options if name != "schema"]
        return f"{group}={option}: there is no conf/{group}/{option}.yaml.{near_matches(option, known)}"
    match = re.search(r"Could not override '([^']+)'", message)
    if match:
        key = match.group(1)
        cause = _first_line(error.__cause__) if error.__cause__ else message
        if "not in" in cause or "Could not override" in cause:
            known = _keys(TrainConfig)
            leaf = near_matches(key, known)
            return f"{key}: unknown configuration key.{leaf}"
        return f"{_override_of(key, overrides)}: {cause}"
    group_match = re.search(r"Could not find '([^']+)'", message)
    if group_match:
        group, _, option = group_match.group(1).rpartition("/")
        folders = [root, *config_dirs()[1:]]
        known = [path.stem for folder in folders for path in (folder / group).glob("*.yaml")]
        return f"{group}={option}: there is no conf/{group}/{option}.yaml.{near_matches(option, known)}"
    cause = _first_line(error.__cause__) if error.__cause__ else ""
    return message if not cause or cause in message else f"{message}: {cause}"


def _keys(schema: type, prefix: str = "") -> list[str]:
    """Every key of a configuration dataclass in dotted form, those of optional parts too."""
    found = []
    for name, kind in get_type_hints(schema).items():
        found.append(f"{prefix}{name}")
        for part in (kind, *get_args(kind)):  # X, or X | None
            if is_dataclass(part) and isinstance(part, type):
                found += _keys(part, f"{prefix}{name}.")
    return found


def _override_of(key: str, overrides: list[str]) -> str:
    return next((text for text in overrides if text.lstrip("+~").split("=")[0] == key), key)


def _first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return " ".join(line.strip() for line in lines[:2]) if lines[0].endswith(":") else lines[0]
