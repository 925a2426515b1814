"""One target by one protocol: rows of the `transfer` table, baselines beside the trained network."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness.config import FinetuneConfig, TransferConfig
from harness.data.manifest import Dataset
from harness.data.on_demand import open_or_pack
from harness.errors import ConfigError, DatasetError, near_matches
from harness.train.distributed import Ranks
from harness.transfer.features import Features, cached_features, extract
from harness.transfer.fewshot import Fit, Protocol, check_classes, fewshot_grid
from harness.transfer.finetune import finetune_rows
from harness.transfer.metrics import check_metrics, measure, read_real
from harness.transfer.probe import linear_probe
from harness.transfer.shared import refuse_shared, shared_classes
from harness.transfer.subject import Subject

PROTOCOLS = {"fewshot": "fewshot_linear", "probe": "linear_probe", "finetune": "finetune"}
Row = dict[str, Any]
T = TypeVar("T")


def check_transfer(cfg: TransferConfig) -> None:
    """Raise ConfigError for what cannot be done, before anything is computed."""
    if cfg.protocol not in PROTOCOLS:
        raise ConfigError(f"transfer.protocol={cfg.protocol}.{near_matches(cfg.protocol, PROTOCOLS)}")
    if cfg.protocol == "finetune" and cfg.finetune is None:
        raise ConfigError(f"transfer={cfg.name} says nothing of fine-tuning; give transfer.finetune.steps and the rest")
    if not 0 < cfg.held_out < 1:
        raise ConfigError(f"transfer.held_out={cfg.held_out}: above 0 and below 1")
    if not math.isfinite(cfg.bias):
        raise ConfigError(f"transfer.bias={cfg.bias}: a number")
    if cfg.image_size is not None and cfg.image_size < 1:
        raise ConfigError(f"transfer.image_size={cfg.image_size}: at least 1, or null for the model's own")
    check_list("l2", [cfg.l2], 0, above=True)
    if cfg.l2s is not None:
        check_list("l2s", cfg.l2s, 0, above=True)
    if cfg.protocol == "fewshot":
        check_list("shots", cfg.shots, 1)
        check_list("support_seeds", cfg.support_seeds, 0)
    if cfg.protocol == "finetune" and cfg.finetune is not None:
        check_finetune(cfg.finetune)
    check_metrics(cfg.metrics or ["top1"], cfg.real_labels)


def check_finetune(options: FinetuneConfig) -> None:
    """Raise ConfigError for numbers that training would take and give a wrong result with."""
    check_list("finetune.learning_rates", options.learning_rates, 0, above=True)
    check_list("finetune.seeds", options.seeds, 0)
    check_list("finetune.steps", [options.steps], 1)
    check_list("finetune.batch_size", [options.batch_size], 1)
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
        check_list("finetune.image_size", [options.image_size], 1)
    for name, size in options.image_sizes.items():
        check_list(f"finetune.image_sizes.{name}", [size], 1)


def check_list(field: str, values: Sequence[float], least: float, above: bool = False) -> None:
    """Raise ConfigError for no value, one twice (it would count as two), one not finite or below `least`."""
    if not values:
        raise ConfigError(f"transfer.{field}: needs a value")
    if len(set(values)) < len(values):
        raise ConfigError(f"transfer.{field}={list(values)}: a value is there twice")
    for value in values:
        if not math.isfinite(value) or value < least or (above and value == least):
            raise ConfigError(f"transfer.{field}: {value} is not {'above' if above else 'at least'} {least}")


def evaluate_target(cfg: TransferConfig, subject: Subject, pretraining: Dataset | None, work: Path) -> Row:
    """Content of a transfer file: rows, details, and class names in common with pre-training where that is known.

    Raises DatasetError for a target that is not packed, lacks a split, or shares images with pre-training.
    """
    check_transfer(cfg)
    target = in_turn(subject.ranks, lambda: open_or_pack(cfg.data))
    names: list[str] | None = None
    if pretraining is not None:
        size, channels = subject.config.image_size, subject.channels
        in_turn(subject.ranks, lambda: refuse_shared(pretraining, target, size, channels, cfg.shared_images))
        names = shared_classes(pretraining, target)
    rows, details = transfer_rows(cfg, target, subject, work)
    about = {"name": target.name, "digest": target.digest, "shared_class_names": names}
    return {"target": about, "rows": rows, "details": details}


def in_turn(ranks: Ranks, make: Callable[[], T]) -> T:
    """`make()` on the first rank, then on the others, which find what it has left on the disk."""
    if ranks.first:
        made = make()
        ranks.any(False)
        return made
    ranks.any(False)
    return make()


def transfer_rows(cfg: TransferConfig, target: Dataset, subject: Subject, work: Path) -> tuple[list[Row], Row]:
    """Rows of the `transfer` table, and what else a reader wants to know of how they came about.

    Args:
        work: a folder for checkpoints of fine-tuning, which goes on from there when it was interrupted.
    Raises DatasetError when the target has no training or test split, or tests a class that training lacks.
    """
    for split in ("train", "test"):
        if split not in target.splits:
            raise DatasetError(f"transfer target {target.name} has no {split} split ({target.folder})")
    real = read_real(Path(cfg.real_labels), target) if cfg.real_labels else None
    if cfg.protocol == "finetune":
        return finetune_rows(cfg, target, subject, work, real)
    rows: list[Row] = []
    details: Row = {"support": {}, "l2": {}}
    for kind, train, test in features_of(cfg, target, subject):
        if not subject.ranks.first:
            continue  # what follows takes seconds
        check_classes(train.labels, test.labels)
        for fit in fits(cfg, train, test):
            head = {
                "target": target.name,
                "protocol": PROTOCOLS[cfg.protocol],
                "features": kind,
                "shots": fit.shots,
                "support_seed": fit.seed,
            }
            scores = columns_of(fit, target.num_classes)
            values = measure(cfg.metrics or ["top1"], scores, test.labels, real)
            rows += [head | {"metric": metric, "value": value} for metric, value in values]
            if cfg.protocol == "fewshot":
                details["support"][f"{fit.shots}-shot, seed {fit.seed}"] = fit.support.tolist()
            if cfg.l2s is not None:
                details["l2"][f"{kind}, {fit.shots}-shot, seed {fit.seed}"] = fit.l2
    return rows, details


def fits(cfg: TransferConfig, train: Features, test: Features) -> Iterator[Fit]:
    """Every classifier of the protocol."""
    protocol = Protocol(cfg.l2, cfg.bias, tuple(cfg.l2s) if cfg.l2s is not None else None, cfg.held_out)
    if cfg.protocol == "probe":
        yield linear_probe(train.features, train.labels, test.features, protocol)
        return
    yield from fewshot_grid(
        train.features, train.labels, test.features, shots=cfg.shots, seeds=cfg.support_seeds, protocol=protocol
    )


def columns_of(fit: Fit, num_classes: int) -> np.ndarray:
    """(M, num_classes) scores; a class without training images is never the choice."""
    scores = np.full((len(fit.scores), num_classes), -np.inf)
    scores[:, fit.classes] = fit.scores
    return scores


def features_of(cfg: TransferConfig, target: Dataset, subject: Subject) -> Iterator[tuple[str, Features, Features]]:
    """(kind, of training images, of test images) of the network, its untrained twin and the raw pixels."""
    size = cfg.image_size or subject.config.image_size
    setting = subject.setting(size)
    for kind, tensors in subject.kinds(cfg.baselines).items():
        network = subject.network(tensors(), size)
        train, test = (cached_features(network, subject.config, target, split, setting) for split in ("train", "test"))
        yield kind, train, test
    if cfg.baselines:
        yield "raw_pixels", extract(None, target, "train", setting), extract(None, target, "test", setting)
