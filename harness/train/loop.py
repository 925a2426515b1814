"""The training loop, top to bottom. Samples seen is the only clock; steps and epochs are views of it.

A run is a pure function of (training window, model, recipe, seed): killed at any moment and started again, it goes on
from its last checkpoint and ends with the same parameters and the same metrics.jsonl, bit for bit on a CPU.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from harness.config import RecipeConfig
from harness.data.loader import eval_batches, train_batches
from harness.data.manifest import Dataset
from harness.data.subset import Window
from harness.errors import HarnessError
from harness.run_folder import append_metrics, rewind_metrics
from harness.train import checkpoint
from harness.train.early_stop import is_better
from harness.train.evaluate import EVAL_BATCH_SIZE, Score, evaluate, to_input
from harness.train.optim import build_optimizer, set_learning_rate
from harness.train.schedule import learning_rate, total_steps
from harness.train.step import training_step

LOG_ROWS = 100  # rows of training loss along the horizon
HEARTBEAT_SECONDS = 1.0


class DivergedError(HarnessError):
    """Training loss is no longer finite. Starting again would end the same way."""


@dataclass
class Progress:
    """The loop's own state: all of it is in every checkpoint."""

    samples_seen: int = 0
    best: dict[str, Any] | None = None  # samples_seen, val_top1, val_loss, train_top1, train_loss at the best
    final: dict[str, Any] | None = None  # the same at the latest evaluation
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
    heartbeat: Callable[..., None] = field(default=lambda **_: None)


def train(job: TrainJob) -> Progress:
    """Train to the horizon; leaves checkpoints/last and checkpoints/best, and the final parameters in job.model.

    Raises DivergedError when the training loss is not finite.
    """
    # --- horizon: the same number of steps whatever the subset --------------------------------------------------
    recipe, batch_size = job.recipe, job.recipe.batch_size
    steps = total_steps(recipe)
    horizon_samples = steps * batch_size
    evaluation_steps = milestones(steps, recipe.evaluations)
    log_steps = milestones(steps, LOG_ROWS) | evaluation_steps

    # --- model and optimiser ------------------------------------------------------------------------------------
    model = job.model.to(job.device).train()
    optimizer = build_optimizer(model, recipe)

    # --- start rules: 1. this run's own last checkpoint, 2. scratch ---------------------------------------------
    progress = resume(job, optimizer) or Progress()
    clock = Clock(progress)

    # --- data: batch b is positions [bB, (b + 1)B) of the order, whatever happened before ------------------------
    batches = train_batches(
        job.dataset,
        job.window,
        seed=job.seed,
        batch_size=batch_size,
        start_samples_seen=progress.samples_seen,
        image_size=job.image_size,
        channels=job.channels,
    )

    # --- loop ---------------------------------------------------------------------------------------------------
    loss_sum = torch.zeros((), device=job.device)
    since_log = 0
    clock.start_steps()
    for step in range(progress.samples_seen // batch_size + 1, steps + 1):
        seed_random_numbers(step_seed(job.seed, step), job.device)  # dropout of this step, whenever it is taken
        rate = learning_rate(progress.samples_seen, recipe, horizon_samples)
        set_learning_rate(optimizer, rate)
        batch = next(batches)
        images = to_input(batch.images, job.device)
        labels = batch.labels.to(job.device, non_blocking=True)
        loss_sum += training_step(model, optimizer, images, labels, recipe, job.precision)
        progress.samples_seen += batch_size
        since_log += 1
        if clock.heartbeat_due():
            job.heartbeat(**clock.report(progress, horizon_samples))
        if step not in log_steps:
            continue

        mean_loss = float(loss_sum) / since_log
        clock.stop_steps(progress)
        if not np.isfinite(mean_loss):
            raise DivergedError(
                f"training loss is {mean_loss} within steps {step - since_log + 1} to {step} "
                f"({progress.samples_seen} samples seen, learning rate {rate:.3g})"
            )
        rows = [row(progress.samples_seen, "step", loss=mean_loss, learning_rate=rate)]
        loss_sum.zero_()
        since_log = 0
        if step in evaluation_steps:
            rows += evaluate_and_keep_best(job, progress)
        append_metrics(job.folder, rows)
        if step in evaluation_steps:
            clock.read(progress)
            save_last(job, optimizer, progress)
            job.heartbeat(**clock.report(progress, horizon_samples))
        clock.start_steps()
    return progress


def evaluate_and_keep_best(job: TrainJob, progress: Progress) -> list[dict[str, Any]]:
    """Validation and training-sample scores; a new best is saved at once. Returns the rows for metrics.jsonl."""
    val = evaluate_split(job, "val")
    count = min(job.recipe.train_eval_samples, job.window.size)
    train_score = evaluate_split(job, "train", job.window.split_positions(np.arange(count)))
    progress.final = {
        "samples_seen": progress.samples_seen,
        "val_top1": val.top1,
        "val_loss": val.loss,
        "train_top1": train_score.top1,
        "train_loss": train_score.loss,
        "train_eval_samples": train_score.samples,
        "val_samples": val.samples,
    }
    if is_better(val.top1, progress.best):
        progress.best = dict(progress.final)
        checkpoint.save(best_path(job.folder), checkpoint.model_tensors(job.model), progress.best)
    return [
        row(progress.samples_seen, "val", top1=val.top1, loss=val.loss),
        row(progress.samples_seen, "train", top1=train_score.top1, loss=train_score.loss),
    ]


def evaluate_split(job: TrainJob, split: str, positions: np.ndarray | None = None) -> Score:
    """Score of the job's network on a split of its data set, or on some positions of it."""
    batches = eval_batches(
        job.dataset,
        split,
        image_size=job.image_size,
        channels=job.channels,
        batch_size=EVAL_BATCH_SIZE,
        positions=positions,
    )
    return evaluate(job.model, batches, job.device, job.precision, job.recipe.loss)


def resume(job: TrainJob, optimizer: torch.optim.Optimizer) -> Progress | None:
    """Go on from checkpoints/last: network, optimiser and progress; rows logged after it are dropped."""
    path = last_path(job.folder)
    if not path.exists():
        rewind_metrics(job.folder, 0)
        return None
    tensors, state = checkpoint.load(path)
    checkpoint.load_model(job.model, tensors)
    checkpoint.load_optimizer(optimizer, tensors)
    progress = Progress(**state)
    rewind_metrics(job.folder, progress.samples_seen)
    return progress


def save_last(job: TrainJob, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
    """Everything that going on needs, in one atomic file."""
    tensors = checkpoint.model_tensors(job.model) | checkpoint.optimizer_tensors(optimizer)
    checkpoint.save(last_path(job.folder), tensors, asdict(progress))


def best_path(folder: Path) -> Path:
    """The network with the best validation top-1."""
    return folder / "checkpoints" / "best.safetensors"


def last_path(folder: Path) -> Path:
    """The checkpoint that training goes on from."""
    return folder / "checkpoints" / "last.safetensors"


def milestones(steps: int, count: int) -> frozenset[int]:
    """`count` steps spaced evenly over 1..steps, the last one among them; fewer when there are fewer steps."""
    return frozenset(max(1, round(steps * k / count)) for k in range(1, count + 1))


def step_seed(seed: int, step: int) -> int:
    """Seed of one step's random numbers: a resumed run draws what an undisturbed one would have drawn."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:8], "little") >> 1


def seed_random_numbers(seed: int, device: torch.device) -> None:
    """Seed the generator that this device draws from.

    Not torch.manual_seed: where CUDA is built in and not initialised it queues a call, with a traceback, every time.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def row(samples_seen: int, split: str, **metrics: float) -> dict[str, Any]:
    """One line of metrics.jsonl. No time in it: equal runs write equal bytes."""
    return {"samples_seen": samples_seen, "split": split, **metrics}


class Clock:
    """Seconds in training steps (evaluation and checkpoints apart), of the whole run, and of CPU, over all attempts."""

    def __init__(self, progress: Progress) -> None:
        self._total_base = progress.total_seconds - time.perf_counter()
        self._cpu_base = progress.cpu_seconds - time.process_time()
        self._steps_since = 0.0
        self._samples_at_start, self._seconds_at_start = progress.samples_seen, progress.device_seconds
        self._last_heartbeat = 0.0

    def start_steps(self) -> None:
        self._steps_since = time.perf_counter()

    def stop_steps(self, progress: Progress) -> None:
        """Call when the device is idle (a loss was just read back)."""
        progress.device_seconds += time.perf_counter() - self._steps_since
        self._steps_since = time.perf_counter()

    def read(self, progress: Progress) -> None:
        progress.total_seconds = self._total_base + time.perf_counter()
        progress.cpu_seconds = self._cpu_base + time.process_time()

    def heartbeat_due(self) -> bool:
        now = time.perf_counter()
        if now - self._last_heartbeat < HEARTBEAT_SECONDS:
            return False
        self._last_heartbeat = now
        return True

    def report(self, progress: Progress, horizon_samples: int) -> dict[str, Any]:
        """What a heartbeat shows: samples seen, horizon, speed in this attempt, best validation top-1."""
        seconds = progress.device_seconds - self._seconds_at_start + time.perf_counter() - self._steps_since
        samples = progress.samples_seen - self._samples_at_start
        return {
            "samples_seen": progress.samples_seen,
            "horizon_samples": horizon_samples,
            "images_per_second": round(samples / seconds, 1) if seconds > 0 else None,
            "best_val_top1": progress.best["val_top1"] if progress.best else None,
        }
