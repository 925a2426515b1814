"""Shared by the model tests: conf/model as Hydra composes it."""

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from harness.config import ModelConfig, register_schema
from harness.paths import conf_dir


def load_model(name: str) -> ModelConfig:
    """conf/model/NAME.yaml, checked against the schema, as the dataclass."""
    return _load("model", name)


def _load(group: str, name: str):
    GlobalHydra.instance().clear()
    register_schema()
    with initialize_config_dir(str(conf_dir().absolute()), version_base="1.3"):
        return OmegaConf.to_object(compose(overrides=[f"+{group}={name}"])[group])
