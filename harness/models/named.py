"""Models and devices by the name of their file in conf/, checked against the schema; no torch, no Hydra."""

from dataclasses import replace
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.config import DeviceConfig, ModelConfig
from harness.errors import ConfigError, near_matches
from harness.paths import conf_dir, config_dirs

_TIMM = "timm/"


def model_names() -> list[str]:
    """Names of the architectures in conf/model, and in the user's own folder."""
    return _names("model", leave_out={"timm"})


def device_names() -> list[str]:
    """Names of the devices in conf/device, and in the user's own folder."""
    return _names("device")


def model_config(name: str) -> ModelConfig:
    """conf/model/NAME.yaml, or any classifier of timm as 'timm/NAME'.

    Raises:
        ConfigError: no such model (the message lists near matches), or a file with an unknown key.
    """
    if name.startswith(_TIMM):
        generic = OmegaConf.to_container(OmegaConf.load(conf_dir() / "model" / "timm.yaml"))
        assert isinstance(generic, dict)
        return ModelConfig(name.removeprefix(_TIMM), family=generic["family"], timm=True)
    if name not in model_names():
        near = near_matches(name, model_names())
        raise ConfigError(f"There is no model {name!r}.{near} Any classifier of timm is timm/NAME.")
    return _load("model", name, ModelConfig)


def device_config(name: str) -> DeviceConfig:
    """conf/device/NAME.yaml.

    Raises:
        ConfigError: no such device, or a file with an unknown key.
    """
    if name not in device_names():
        raise ConfigError(f"There is no device {name!r}.{near_matches(name, device_names())}")
    return _load("device", name, DeviceConfig)


def with_image_size(cfg: ModelConfig, image_size: int | None) -> ModelConfig:
    """`cfg` at another image size; itself when that is None."""
    return cfg if image_size is None else replace(cfg, image_size=image_size)


def _names(group: str, leave_out: set[str] | None = None) -> list[str]:
    found = {path.stem for folder in config_dirs() for path in (folder / group).glob("*.yaml")}
    return sorted(found - (leave_out or set()))


def _load(group: str, name: str, schema: type) -> Any:
    """As Hydra composes it: `defaults: [schema, _self_]` is the dataclass under the file."""
    path = next(file for folder in config_dirs() if (file := folder / group / f"{name}.yaml").is_file())
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(values, dict)
        values.pop("defaults", None)
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path}: {error}") from error
