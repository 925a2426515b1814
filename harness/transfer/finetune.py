"""Fine-tuning as the paper does it, through the training loop: resume, precision and ranks are the loop's.

arXiv 2010.11929 §3.2, B.1.1, Table 4; what the text leaves open (warm-up, crops, flips) from its authors' code
(google-research/vision_transformer). The head is one layer that starts at zero; the learning rate is chosen on a dev
split of the training images and training is then done again on all of them, with several seeds. The test split is read
once a seed, after training, and decides nothing.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from harness.config import FinetuneConfig, RecipeConfig, TransferConfig
from harness.data.joined import dev_window, full_training_split
from harness.data.manifest import Dataset
from harness.data.subset import Window, window
from harness.errors import ConfigError, HarnessError
from harness.host import usable_memory_bytes
from harness.models.adapt import downstream
from harness.models.memory import step_bytes
from harness.run_folder import read_json, write_json
from harness.train import checkpoint
from harness.train.divergence import DivergedError
from harness.train.loop import TrainJob, best_path, train
from harness.transfer.features import check_finite, labels_of, outputs
from harness.transfer.metrics import measure
from harness.transfer.subject import Subject

Row = dict[str, Any]
DIVERGED = -1.0
SHARE_FOR_A_STEP = 0.4  # of a process's memory, by an estimate that is a least


def finetune_rows(
    cfg: TransferConfig, target: Dataset, subject: Subject, work: Path, real: list[list[int]] | None
) -> tuple[list[Row], Row]:
    """Rows of every seed for the network and its untrained twin, and how the learning rates did on dev."""
    assert cfg.finetune is not None
    rows: list[Row] = []
    details: Row = {"dev": {}, "learning_rate": {}}
    images = work / target.digest[:16]  # what was begun on other images is not gone on with
    for kind, tensors in subject.kinds(cfg.baselines).items():
        tuning = Tuning(cfg, target, subject, tensors(), images / kind)
        scores = {rate: tuning.dev_score(rate) for rate in cfg.finetune.learning_rates}
        rate = best_rate(scores)
        for seed in cfg.finetune.seeds:
            for metric, value in tuning.test_values(rate, seed, real):
                head = {"target": target.name, "protocol": "finetune", "features": kind, "shots": 0}
                rows.append(head | {"support_seed": seed, "metric": metric, "value": value})
        details["dev"][kind] = {repr(rate): score for rate, score in scores.items()}
        details["learning_rate"][kind] = rate
    if subject.ranks.first:
        shutil.rmtree(work, ignore_errors=True)
    return rows, details


def best_rate(scores: Mapping[float, float]) -> float:
    """The learning rate with the best dev result; of equals the smallest.

    Raises HarnessError where training diverged with every one.
    """
    best = max(scores.values())
    if best == DIVERGED:
        raise HarnessError(
            f"fine-tuning diverged with every learning rate: {', '.join(f'{rate:g}' for rate in scores)}"
        )
    return min(rate for rate, score in scores.items() if score == best)


def host_memory_fits(
    cfg: TransferConfig, subject: Subject, image_size: int, num_classes: int
) -> Callable[[int], bool] | None:
    """Whether a step on so many images at once fits in host memory; the kernel would kill this process, or another one.

    A published resolution on a processor is soon there: 384 pixels in patches of 4 are 9,216 tokens. None on a GPU,
    which the training loop asks by trying. Raises ConfigError where one image is too much.
    """
    assert cfg.finetune is not None
    ranks = subject.ranks
    if subject.device.type != "cpu":
        return None
    share = -(-cfg.finetune.batch_size // ranks.count)
    config = replace(subject.config, image_size=image_size, head="linear")
    needs = step_bytes(config, num_classes, subject.channels, subject.attention)
    has = usable_memory_bytes() / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def fits(images: int) -> bool:
        return needs(images) < SHARE_FOR_A_STEP * has

    if not ranks.least(int(fits(1))):
        raise ConfigError(
            f"fine-tuning {config.name} at {image_size} pixels takes at least {needs(1) / 1e9:,.1f} GB for one image, "
            f"and this machine has {has / 1e9:,.1f} GB a process: set a smaller transfer.finetune.image_size"
        )
    if not subject.loop.micro_batch and not ranks.least(int(fits(share))) and ranks.first:
        print(
            f"fine-tuning {config.name} at {image_size} pixels: {share} images at once would take at least "
            f"{needs(share) / 1e9:,.0f} of {has / 1e9:,.0f} GB, so they are taken in parts; the batch stays "
            f"{cfg.finetune.batch_size}",
            flush=True,
        )
    return fits


class Tuning:
    """Fine-tuning runs of one network on one target, each a function of (learning rate, seed, window)."""

    def __init__(
        self, cfg: TransferConfig, target: Dataset, subject: Subject, tensors: Mapping[str, Tensor], work: Path
    ) -> None:
        assert cfg.finetune is not None
        self.cfg, self.target, self.subject, self.tensors, self.work = cfg, target, subject, tensors, work
        self.options: FinetuneConfig = cfg.finetune
        self.full = full_training_split(target)
        self.metrics = cfg.metrics or ["top1"]
        name = subject.config.name
        own = self.options.image_size or subject.config.image_size
        self.image_size = self.options.image_sizes.get(name, own)
        if self.image_size != own and subject.ranks.first:
            print(f"{name} is fine-tuned at {self.image_size} pixels (transfer.finetune.image_sizes)", flush=True)
        self.fits = host_memory_fits(cfg, subject, self.image_size, target.num_classes)

    def dev_score(self, rate: float) -> float:
        """Dev result of a learning rate with the first seed, by the target's first metric; DIVERGED where it did."""
        folder = self.work / f"lr-{rate!r}"  # all its digits
        done = self.kept(folder)
        if done is not None:
            return float(done["dev"])
        part, positions = dev_window(self.target, self.options.dev_split)
        try:
            progress = train(self.job(folder, part, rate, self.options.seeds[0], positions))
        except DivergedError as error:
            print(f"fine-tuning on {self.target.name} with rate {rate:g}: {error}", flush=True)
            return float(self.keep(folder, {"dev": DIVERGED})["dev"])
        assert progress.final is not None
        key = "val_mean_per_class" if self.metrics[0] == "mean_per_class" else "val_top1"
        return float(self.keep(folder, {"dev": progress.final[key]})["dev"])

    def test_values(self, rate: float, seed: int, real: list[list[int]] | None) -> list[tuple[str, float]]:
        """(metric, value) on the test split of a network trained on the whole training split."""
        folder = self.work / f"seed-{seed}"
        done = self.kept(folder)
        if done is not None:
            return [(name, float(value)) for name, value in done["test"]]
        samples = self.full.splits["train"].samples
        job = self.job(folder, window(samples, samples, 0), rate, seed, np.arange(1))
        train(job)
        self.subject.ranks.any(False)  # until the first rank has written the checkpoint
        checkpoint.load_model(job.model, checkpoint.load(best_path(folder))[0])  # with averaged weights where wished
        job.model.eval()
        logits = outputs(lambda images: job.model(images), self.target, "test", self.subject.setting(self.image_size))
        check_finite(logits, self.subject.config.name, self.target, "test")
        values = measure(self.metrics, logits, labels_of(self.target, "test"), real)
        return [(name, float(value)) for name, value in self.keep(folder, {"test": values})["test"]]

    def job(self, folder: Path, part: Window, rate: float, seed: int, dev: np.ndarray) -> TrainJob:
        """Training of a fresh downstream network on a window of the full training split."""
        subject = self.subject
        if subject.ranks.first:
            folder.mkdir(parents=True, exist_ok=True)
        config = subject.config
        if config.vit is not None:
            config = replace(config, vit=replace(config.vit, dropout=self.options.dropout))
        model = downstream(config, self.tensors, self.image_size, self.target.num_classes, subject.channels)
        return TrainJob(
            model=model,
            dataset=self.full,
            window=part,
            recipe=finetune_recipe(self.options, rate),
            seed=seed,
            image_size=self.image_size,
            channels=subject.channels,
            precision=subject.precision,
            device=subject.device,
            folder=folder,
            eval_split="train",
            eval_positions=dev,
            loop=subject.loop,
            fits=self.fits,
            ranks=subject.ranks,
        )

    def kept(self, folder: Path) -> Row | None:
        """The result of a run that was finished before, the same answer on all ranks."""
        self.subject.ranks.any(False)
        found = read_json(folder / "score.json")
        return found if not self.subject.ranks.any(found is None) else None

    def keep(self, folder: Path, result: Row) -> Row:
        """Write a finished run's result; its checkpoints have served."""
        if self.subject.ranks.first:
            write_json(folder / "score.json", result)
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        return result


def finetune_recipe(options: FinetuneConfig, rate: float) -> RecipeConfig:
    """Table 4 as a recipe: a fixed number of steps, one evaluation at the end."""
    return RecipeConfig(
        name="finetune",
        source=options.source,
        samples_seen=str(options.steps * options.batch_size),
        batch_size=options.batch_size,
        optimizer="sgd",
        learning_rate=rate,
        weight_decay=0.0,
        beta1=options.momentum,
        schedule="cosine",
        warmup=str(options.warmup_steps * options.batch_size),
        clip_norm=options.clip_norm,
        random_resized_crop=options.random_resized_crop,
        min_crop_area=options.min_crop_area,
        flip=options.flip,
        polyak=options.polyak,
        evaluations=1,
        train_eval_samples=1,
    )
