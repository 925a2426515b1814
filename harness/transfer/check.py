"""Options of transfer, checked before anything is trained or evaluated; no torch."""

import math
from collections.abc import Sequence

from harness.config import FinetuneConfig, TransferConfig
from harness.data.joined import dev_size
from harness.errors import ConfigError, near_matches
from harness.models.named import model_names
from harness.results_schema import LARGEST
from harness.transfer.metrics import check_metrics

SHARED_IMAGES = ("refuse", "train")
LARGEST_BIAS = 10**6  # squared it must leave the features their digits
LARGEST_IMAGE = 4096
LARGEST_BATCH = 2**20
LARGEST_COUNT = LARGEST_SEED = LARGEST["int"]  # as the tables hold it
PROTOCOLS = {"fewshot": "fewshot_linear", "probe": "linear_probe", "finetune": "finetune"}


def check_transfer(cfg: TransferConfig) -> None:
    """Raise ConfigError for what cannot be done, before anything is computed."""
    if cfg.protocol not in PROTOCOLS:
        raise ConfigError(f"transfer.protocol={cfg.protocol}.{near_matches(cfg.protocol, PROTOCOLS)}")
    if cfg.protocol == "finetune" and cfg.finetune is None:
        raise ConfigError(f"transfer={cfg.name} says nothing of fine-tuning; give transfer.finetune.steps and the rest")
    if not 0 < cfg.held_out < 1:
        raise ConfigError(f"transfer.held_out={cfg.held_out}: above 0 and below 1")
    if cfg.shared_images not in SHARED_IMAGES:
        raise ConfigError(
            f"transfer.shared_images={cfg.shared_images}.{near_matches(cfg.shared_images, SHARED_IMAGES)}"
        )
    check_list("bias", [abs(cfg.bias)], 0, LARGEST_BIAS)
    if cfg.image_size is not None:
        check_list("image_size", [cfg.image_size], 1, LARGEST_IMAGE)
    check_list("l2", [cfg.l2], 0, above=True)
    if cfg.l2s is not None:
        check_list("l2s", cfg.l2s, 0, above=True)
    if cfg.protocol == "fewshot":
        check_list("shots", cfg.shots, 1, LARGEST_COUNT)
        check_list("support_seeds", cfg.support_seeds, 0, LARGEST_SEED)
    if cfg.protocol == "finetune" and cfg.finetune is not None:
        check_finetune(cfg.finetune)
    if not cfg.name or cfg.name.startswith(".") or "/" in cfg.name or "\\" in cfg.name:
        raise ConfigError(f"transfer.name={cfg.name}: a name for files, without a path")
    check_metrics(cfg.metrics or ["top1"], cfg.real_labels)


def check_finetune(options: FinetuneConfig) -> None:
    """Raise ConfigError for numbers that training would take and give a wrong result with."""
    check_list("finetune.learning_rates", options.learning_rates, 0, above=True)
    check_list("finetune.seeds", options.seeds, 0, LARGEST_SEED)
    check_list("finetune.steps", [options.steps], 1)
    check_list("finetune.batch_size", [options.batch_size], 1, LARGEST_BATCH)
    check_list("finetune.warmup_steps", [options.warmup_steps], 0)
    if options.warmup_steps >= options.steps:
        raise ConfigError(f"transfer.finetune.warmup_steps={options.warmup_steps}: fewer than steps")
    if options.clip_norm is not None:
        check_list("finetune.clip_norm", [options.clip_norm], 0, above=True)
    for field in ("momentum", "dropout", "polyak"):
        value = getattr(options, field)
        if not 0 <= value < 1:
            raise ConfigError(f"transfer.finetune.{field}={value}: at least 0 and below 1")
    if not 0 < options.min_crop_area <= 1:
        raise ConfigError(f"transfer.finetune.min_crop_area={options.min_crop_area}: above 0 and at most 1")
    if options.image_size is not None:
        check_list("finetune.image_size", [options.image_size], 1, LARGEST_IMAGE)
    for name, size in options.image_sizes.items():
        check_list(f"finetune.image_sizes.{name}", [size], 1, LARGEST_IMAGE)
        check_model(name)
    dev_size(options.dev_split)


def check_model(name: str) -> None:
    """Raise ConfigError for a key of image_sizes that is no network: its size would never be read."""
    if name in (known := model_names()):
        return
    import timm  # slow, and a name of timm's is rare here

    if not timm.is_model(name):
        near = near_matches(name, known)
        raise ConfigError(f"transfer.finetune.image_sizes.{name}: no model is called so.{near}")


def check_list(field: str, values: Sequence[float], least: float, most: float = math.inf, above: bool = False) -> None:
    """Raise ConfigError for no value, one twice (it would count as two), one not finite, below `least`, over `most`."""
    if not values:
        raise ConfigError(f"transfer.{field}: needs a value")
    if len(set(values)) < len(values):
        raise ConfigError(f"transfer.{field}={list(values)}: a value is there twice")
    for value in values:
        if not math.isfinite(value) or value < least or (above and value == least):
            raise ConfigError(f"transfer.{field}: {value} is not {'above' if above else 'at least'} {least}")
        if value > most:
            raise ConfigError(f"transfer.{field}: {value} is over {most:,}")
