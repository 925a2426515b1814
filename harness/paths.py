"""Where things are: the configuration that ships with harness, the user's data, the user's runs.

From a clone (`pip install -e .`) `conf/` and `sweeps/` lie beside the package; a wheel carries them inside it.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    clone = _PACKAGE.parent / name
    return clone if (_PACKAGE.parent / "pyproject.toml").exists() and clone.is_dir() else _PACKAGE / f"_{name}"


def conf_dir() -> Path:
    """The Hydra configuration folder (`conf/`)."""
    return _shipped("conf")


def sweeps_dir() -> Path:
    """The folder of study files (`sweeps/`)."""
    return _shipped("sweeps")


def user_config_dir() -> Path | None:
    """A folder of the user's with groups and studies beside ours (`--config-dir`, $HARNESS_CONFIG_DIR)."""
    text = os.environ.get("HARNESS_CONFIG_DIR")
    return Path(text).resolve() if text else None


def config_dirs() -> list[Path]:
    """conf/, and the user's folder beside it where there is one."""
    own = user_config_dir()
    return [conf_dir(), *([own] if own else [])]


def has_option(group: str, name: str) -> bool:
    """Whether `group=name` can be said: conf/GROUP/NAME.yaml is there, ours or the user's."""
    return any((folder / group / f"{name}.yaml").is_file() for folder in config_dirs())


def data_root() -> Path:
    """Root of packed data sets: $HARNESS_DATA, else ./data."""
    return Path(os.environ.get("HARNESS_DATA") or "data")


def runs_root() -> Path:
    """Root of study folders: $HARNESS_RUNS, else ./runs."""
    return Path(os.environ.get("HARNESS_RUNS") or "runs")


def cache_root() -> Path:
    """What can be made again: $HARNESS_CACHE, else harness/ in the user's cache folder."""
    if folder := os.environ.get("HARNESS_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness"
