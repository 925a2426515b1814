"""One target by one protocol: rows of the `transfer` table, baselines beside the trained network."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness.config import TransferConfig
from harness.data.manifest import Dataset
from harness.data.on_demand import open_or_pack
from harness.errors import DatasetError, HarnessError
from harness.train.distributed import Ranks
from harness.transfer.check import PROTOCOLS, check_transfer
from harness.transfer.features import Features, cached_features, extract
from harness.transfer.fewshot import Fit, Protocol, fewshot_grid
from harness.transfer.finetune import finetune_rows
from harness.transfer.metrics import measure, read_real
from harness.transfer.probe import linear_probe
from harness.transfer.shared import refuse_shared, shared_classes
from harness.transfer.subject import Subject

Row = dict[str, Any]
T = TypeVar("T")


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
    """`make()` on the first rank, then on the others, which find what it has left on the disk.

    Raises HarnessError on all ranks where the first raises one: a rank that gave up alone would leave them waiting.
    """
    if not ranks.first:
        if ranks.any(False):
            raise HarnessError("the first rank could not do this; its message says why")
        return make()
    try:
        made = make()
    except HarnessError:
        ranks.any(True)
        raise
    ranks.any(False)
    return made


def transfer_rows(cfg: TransferConfig, target: Dataset, subject: Subject, work: Path) -> tuple[list[Row], Row]:
    """Rows of the `transfer` table, and what else a reader wants to know of how they came about.

    Args:
        work: a folder for checkpoints of fine-tuning, which goes on from there when it was interrupted.
    Raises DatasetError when the target has no training or test split, or tests a class that training lacks.
    """
    for split in ("train", "test"):
        if split not in target.splits:
            raise DatasetError(f"transfer target {target.name} has no {split} split ({target.folder})")
    check_trained(target, ("train", "val") if cfg.protocol == "finetune" else ("train",))
    real = read_real(Path(cfg.real_labels), target) if cfg.real_labels else None
    if cfg.protocol == "finetune":
        return finetune_rows(cfg, target, subject, work, real)
    rows: list[Row] = []
    details: Row = {"support": {}, "l2": {}}
    for kind, train, test in features_of(cfg, target, subject):
        if not subject.ranks.first:
            continue  # what follows takes seconds
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


def check_trained(target: Dataset, splits: tuple[str, ...]) -> None:
    """Raise DatasetError when a class of the test split has no image in the splits that are trained on."""
    counts = [target.splits[split].class_counts for split in splits if split in target.splits]
    trained = np.sum(counts, axis=0) > 0
    unseen = np.flatnonzero((np.array(target.splits["test"].class_counts) > 0) & ~trained)
    if unseen.size:
        names = ", ".join(target.class_names[number] for number in unseen[:5])
        raise DatasetError(
            f"transfer target {target.name}: {unseen.size} classes are tested but have no training image: {names} "
            f"({target.folder / 'manifest.json'}, class_counts)"
        )


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
