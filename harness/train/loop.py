"""The training loop, top to bottom. Samples seen is the only clock; steps and epochs are views of it.

A run is a pure function of (training window, model, recipe, seed): killed at any moment and started again, it goes on
from its last checkpoint and ends with the same parameters and the same metrics.jsonl, bit for bit on a CPU. Several
ranks (harness.train.distributed) call `train` with the same job and see, together, what one rank would see.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.config import LoopConfig, RecipeConfig
from harness.data.augment import Augmentation
from harness.data.loader import Batch, eval_batches, train_batches
from harness.data.manifest import Dataset
from harness.data.subset import Window
from harness.run_folder import append_metrics, rewind_metrics
from harness.train import checkpoint
from harness.train.average import Average, averaged
from harness.train.clock import Clock
from harness.train.distributed import ALONE, Ranks
from harness.train.divergence import DivergedError as DivergedError
from harness.train.divergence import FiniteWatch, describe_batch
from harness.train.early_stop import is_better, out_of_patience
from harness.train.evaluate import Score, eval_batch_size, evaluate, to_input
from harness.train.optim import build_optimizer, set_learning_rate
from harness.train.prepare import is_out_of_memory, lay_out, micro_batch_size, out_of_memory, trial, wrap
from harness.train.schedule import learning_rate, total_steps
from harness.train.signals import StoppedError as StoppedError
from harness.train.signals import stop_flag
from harness.train.step import Step, training_step

LOG_ROWS = 100  # rows of training loss along the horizon

Row = dict[str, Any]


@dataclass
class Progress:
    """The loop's own state: all of it is in every checkpoint."""

    samples_seen: int = 0
    best: Row | None = None  # samples_seen, val_top1, val_loss, train_top1, train_loss, … at the best evaluation
    final: Row | None = None  # the same at the latest evaluation
    evaluations_since_best: int = 0
    steps_since_log: int = 0
    step_loss: float | None = None  # mean over the steps before the latest log row
    micro_batch: int = 0  # images of a rank at once; 0 before the first step
    device_seconds: float = 0.0  # in training steps alone; what was lost with a kill is not in it
    total_seconds: float = 0.0
    cpu_seconds: float = 0.0


@dataclass
class TrainJob:
    """What one run trains: a network, on a window of a data set's training split, by a recipe."""

    model: nn.Module
    dataset: Dataset
    window: Window
    recipe: RecipeConfig
    seed: int
    image_size: int
    channels: int
    precision: str  # fp32 | bf16
    device: torch.device
    folder: Path
    order: str = "global"  # or 'block'
    eval_split: str = "val"  # what decides which checkpoint is the best
    eval_positions: np.ndarray | None = None  # of that split; None = all of it
    patience: int = 0  # evaluations without a better one that end training; 0 = never (harness.train.early_stop)
    loop: LoopConfig = field(default_factory=LoopConfig)
    fits: Callable[[int], bool] | None = None  # so many images at once, in host memory; a GPU is asked by trying
    ranks: Ranks = ALONE
    flops_per_image: float = 0.0  # of training, for the progress line; 0 = not known
    peak_flops: float = 0.0  # of all devices together
    heartbeat: Callable[..., None] = field(default=lambda **_: None)  # about once a second, with Clock.report
    mirror: Callable[[list[Row]], None] = field(default=lambda rows: None)  # every row of metrics.jsonl, as written


@dataclass
class Trained:
    """What training changes: with `Progress`, all that a checkpoint holds."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None
    loss_sum: torch.Tensor  # over the steps since the latest log row, of this rank


def train(job: TrainJob) -> Progress:
    """Train to the horizon; leaves checkpoints/last and checkpoints/best, and the final parameters in job.model.

    Raises DivergedError when loss or gradient is not finite, StoppedError after a stop signal and its checkpoint,
    OutOfMemoryError with what to set, OSError for a full disk (the last good checkpoint stays).
    """
    # --- horizon: the same number of steps whatever the subset --------------------------------------------------
    recipe, ranks, batch_size = job.recipe, job.ranks, job.recipe.batch_size
    steps = total_steps(recipe)
    horizon_samples = steps * batch_size
    evaluation_steps = milestones(steps, recipe.evaluations)
    log_steps = milestones(steps, LOG_ROWS) | evaluation_steps

    # --- network and optimiser ----------------------------------------------------------------------------------
    model = lay_out(job.model.to(job.device).train(), job.loop)
    average = Average(model, recipe.polyak) if recipe.polyak else None
    trained = Trained(model, build_optimizer(model, recipe), average, torch.zeros((), device=job.device))
    watch = FiniteWatch()

    # --- start rules: 1. this run's last checkpoint, 2. the one before where that is damaged, 3. scratch; and scratch
    #     too where the best network that the checkpoint speaks of is lost: it cannot be had again from later weights
    progress = resume(job, trained) or Progress()
    progress.micro_batch = find_micro_batch(job, progress)
    wrapped = wrap(model, job.loop, ranks, job.device)

    # --- data: batch b is positions [bB, (b + 1)B) of the order, whatever happened before ------------------------
    batches = training_batches(job, progress.samples_seen)

    # --- loop ---------------------------------------------------------------------------------------------------
    clock = Clock(progress, ranks, job.loop.checkpoint_seconds, job.flops_per_image, job.peak_flops)
    with stop_flag(job.loop.stop_signals) as stopped_by:
        for step in range(progress.samples_seen // batch_size + 1, steps + 1):
            if out_of_patience(progress.evaluations_since_best, job.patience):
                break
            clock.start_steps()
            seed_random_numbers(step_seed(job.seed, step, ranks.rank), job.device)  # of this step, whenever it is taken
            set_learning_rate(trained.optimizer, learning_rate(progress.samples_seen, recipe, horizon_samples))
            taken = take_step(job, wrapped, trained, next(batches), step, progress.micro_batch)
            watch.note(step, taken)
            trained.loss_sum += taken.loss
            progress.samples_seen += batch_size
            progress.steps_since_log += 1

            logs, evaluates = step in log_steps, step in evaluation_steps
            stop, due = ranks.agree(stopped_by() is not None, clock.checkpoint_due())  # the same answer on all ranks
            saves = evaluates or stop or due
            if logs or saves:  # the device is waited for here and nowhere else
                watch.check(lambda bad: describe_batch(job, bad), ranks.any)
                mean_loss = float(ranks.sum(trained.loss_sum.cpu().clone())) / ranks.count / progress.steps_since_log
            clock.pause_steps(progress, idle=logs or saves)
            if logs:
                rate = learning_rate(progress.samples_seen - batch_size, recipe, horizon_samples)
                log(job, trained, progress, mean_loss, rate, evaluates)
            if saves:
                clock.read(progress, ranks)
                save_last(job, trained, progress)
                clock.checkpoint_made()
            if saves or clock.heartbeat_due():
                job.heartbeat(**clock.report(progress, horizon_samples))
            if stop:
                raise StoppedError(f"told to stop at {progress.samples_seen:,} of {horizon_samples:,} images")
    return progress


def take_step(job: TrainJob, wrapped: nn.Module, trained: Trained, batch: Batch, step: int, micro_batch: int) -> Step:
    """One optimiser step on this rank's part of a batch."""
    try:
        images = to_input(batch.images, job.device)
        if job.loop.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        labels = batch.labels.to(job.device, non_blocking=True)
        taken = training_step(wrapped, trained.optimizer, images, labels, job.recipe, job.precision, micro_batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(error, step, micro_batch, len(batch.labels)) from error
    if trained.average is not None:
        trained.average.update(step)
    return taken


def log(job: TrainJob, trained: Trained, progress: Progress, loss: float, rate: float, evaluates: bool) -> None:
    """Rows of a log step, and of an evaluation, to metrics.jsonl and its mirror."""
    progress.step_loss = loss
    progress.steps_since_log = 0
    trained.loss_sum.zero_()
    rows = [row(progress.samples_seen, "step", loss=loss, learning_rate=rate)]
    if evaluates:
        rows += evaluate_and_keep_best(job, trained, progress)
    if job.ranks.first:
        append_metrics(job.folder, rows)
        job.mirror(rows)


def evaluate_and_keep_best(job: TrainJob, trained: Trained, progress: Progress) -> list[Row]:
    """Validation and training-sample scores; a new best is saved at once. Returns the rows for metrics.jsonl."""
    with averaged(trained.average):
        val = evaluate_split(job, job.eval_split, job.eval_positions)
        count = min(job.recipe.train_eval_samples, job.window.size)
        train_score = evaluate_split(job, "train", job.window.split_positions(np.arange(count)))
        progress.final = {
            "samples_seen": progress.samples_seen,
            "val_top1": val.top1,
            "val_loss": val.loss,
            "val_mean_per_class": val.mean_per_class,
            "train_top1": train_score.top1,
            "train_loss": train_score.loss,
            "train_eval_samples": train_score.samples,
            "val_samples": val.samples,
        }
        progress.evaluations_since_best += 1
        if is_better(progress.final, progress.best, job.recipe.best_by):
            progress.best = dict(progress.final)
            progress.evaluations_since_best = 0
            if job.ranks.first:
                checkpoint.save(best_path(job.folder), checkpoint.model_tensors(job.model), progress.best)
    more = {"mean_per_class": val.mean_per_class} if job.recipe.best_by == "mean_per_class" else {}
    return [
        row(progress.samples_seen, "val", top1=val.top1, loss=val.loss, **more),
        row(progress.samples_seen, "train", top1=train_score.top1, loss=train_score.loss),
    ]


def evaluate_split(job: TrainJob, split: str, positions: np.ndarray | None = None, ranks: Ranks | None = None) -> Score:
    """Score of the job's network on a split of its data set, or on some positions of it.

    Args:
        ranks: who shares the work; None = the job's. ALONE where one rank evaluates by itself.
    """
    ranks = ranks or job.ranks
    batches = eval_batches(
        job.dataset,
        split,
        image_size=job.image_size,
        channels=job.channels,
        batch_size=eval_batch_size(job.image_size),
        positions=positions,
        workers=job.loop.workers,
        rank=ranks.rank,
        ranks=ranks.count,
    )
    return evaluate(job.model, batches, job.device, job.precision, job.recipe.loss, ranks)


def training_batches(job: TrainJob, samples_seen: int) -> Any:
    """This rank's rows of every batch from `samples_seen` on."""
    recipe = job.recipe
    augmentation = None
    if recipe.random_resized_crop or recipe.flip:
        augmentation = Augmentation(job.seed, recipe.random_resized_crop, recipe.min_crop_area, recipe.flip)
    return train_batches(
        job.dataset,
        job.window,
        seed=job.seed,
        batch_size=recipe.batch_size,
        start_samples_seen=samples_seen,
        image_size=job.image_size,
        channels=job.channels,
        workers=job.loop.workers,
        order=job.order,
        rank=job.ranks.rank,
        ranks=job.ranks.count,
        augmentation=augmentation,
    )


def find_micro_batch(job: TrainJob, progress: Progress) -> int:
    """Images of a rank at once: as configured, as before, or the most that there is room for."""
    shape = (job.channels, job.image_size, job.image_size)
    fits = trial(job.model, job.recipe, job.precision, shape, job.device) if job.device.type == "cuda" else job.fits
    share = job.recipe.batch_size // job.ranks.count
    return micro_batch_size(share, job.loop.micro_batch, progress.micro_batch, job.ranks, fits)


def resume(job: TrainJob, trained: Trained) -> Progress | None:
    """Go on from the newest whole checkpoint: network, optimiser and progress; rows logged after it are dropped."""
    found = checkpoint.load_newest(last_path(job.folder))
    if found and found[1]["best"] and not checkpoint.is_whole(best_path(job.folder)):
        found = None
    if job.ranks.first:
        rewind_metrics(job.folder, found[1]["samples_seen"] if found else 0)
    if found is None:
        return None
    tensors, state = found
    checkpoint.load_model(trained.model, tensors)
    checkpoint.load_optimizer(trained.optimizer, tensors)
    if trained.average is not None:
        for name, mean in trained.average.mean.items():
            mean.copy_(tensors[f"average/{name}"])
    # The sum of all ranks' losses since the latest row; the first rank carries it on
    trained.loss_sum += tensors["loop/loss_sum"].to(job.device) if job.ranks.first else 0
    return Progress(**state)


def save_last(job: TrainJob, trained: Trained, progress: Progress) -> None:
    """Everything that going on needs, in one atomic file; the one before it is kept."""
    loss_sum = job.ranks.sum(trained.loss_sum.cpu().clone())
    if not job.ranks.first:
        return
    tensors = checkpoint.model_tensors(trained.model) | checkpoint.optimizer_tensors(trained.optimizer)
    tensors["loop/loss_sum"] = loss_sum
    if trained.average is not None:
        tensors |= {f"average/{name}": mean for name, mean in trained.average.mean.items()}
    checkpoint.save_generation(last_path(job.folder), tensors, asdict(progress))


def best_path(folder: Path) -> Path:
    """The network with the best validation result."""
    return folder / "checkpoints" / "best.safetensors"


def last_path(folder: Path) -> Path:
    """The checkpoint that training goes on from."""
    return folder / "checkpoints" / "last.safetensors"


def milestones(steps: int, count: int) -> frozenset[int]:
    """`count` steps spaced evenly over 1..steps, the last one among them; fewer when there are fewer steps."""
    return frozenset(max(1, round(steps * k / count)) for k in range(1, count + 1))


def step_seed(seed: int, step: int, rank: int = 0) -> int:
    """Seed of one step's random numbers: a resumed run draws what an undisturbed one would have drawn."""
    text = f"{seed}/{step}/{rank}" if rank else f"{seed}/{step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def seed_random_numbers(seed: int, device: torch.device) -> None:
    """Seed the generator that this device draws from.

    Not torch.manual_seed: where CUDA is built in and not initialised it queues a call, with a traceback, every time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def row(samples_seen: int, split: str, **metrics: float) -> Row:
    """One line of metrics.jsonl. No time in it: equal runs write equal bytes."""
    return {"samples_seen": samples_seen, "split": split, **metrics}
