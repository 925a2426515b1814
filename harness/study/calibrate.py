"""Time a few real training steps of each model on this machine, so that a plan need not guess.

As many processes time the same model side by side as runs will train side by side: what they take from one another
is part of the figure. Device time is planned from it, evaluation and start-up apart, as it is measured in a run.
"""

import multiprocessing
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.cell import Cell
from harness.environment import device_name
from harness.run_folder import identity_hash, read_json, write_json

STEPS_BETWEEN_READS = 5
SECONDS_A_MODEL = 3.0


def calibration_key(cell: Cell) -> str:
    """What a training step's time depends on: network, batch, precision, threads, and the device itself."""
    return identity_hash(
        {
            "model": asdict(cell.config.model),
            "num_classes": cell.num_classes,
            "batch_size": cell.config.recipe.batch_size,
            "optimizer": cell.config.recipe.optimizer,
            "precision": cell.precision,
            "attention": cell.attention,
            "threads": cell.config.launcher.threads,
            "device": device_name(cell.config.device.kind),
        }
    )


def calibration_path(root: Path) -> Path:
    """One file for all studies below the runs root: a machine's speed does not depend on the study."""
    return root / "calibration.json"


def read(root: Path) -> dict[str, dict[str, Any]]:
    """Measured speeds by key; empty where nothing was timed."""
    return read_json(calibration_path(root)) or {}


def calibrate(cells: list[Cell], channels: int, slots: int, root: Path) -> list[tuple[Cell, float]]:
    """Time each distinct kind of step; returns and records images a second of one run among `slots`."""
    known = read(root)
    measured = []
    for key, cell in {calibration_key(cell): cell for cell in cells}.items():
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["harness.experiment"])
        with context.Pool(slots) as pool:
            speeds = pool.starmap(time_steps, [(cell, channels)] * slots, chunksize=1)
        speed = statistics.median(speeds)
        known[key] = {"model": cell.config.model.name, "images_per_second": speed, "side_by_side": slots}
        measured.append((cell, speed))
    write_json(calibration_path(root), known)
    return measured


def time_steps(cell: Cell, channels: int) -> float:
    """Images a second of real training steps on random images, in this process."""
    import torch

    from harness.models.build import build_model
    from harness.models.precision import attention_path
    from harness.train.evaluate import to_input
    from harness.train.optim import build_optimizer
    from harness.train.step import training_step

    torch.set_num_threads(cell.config.launcher.threads)
    device = torch.device(cell.config.device.kind)
    config = cell.config
    with attention_path(cell.attention):
        model = build_model(config.model, cell.num_classes, channels).to(device).train()
    optimizer = build_optimizer(model, config.recipe)
    size, batch = config.model.image_size, config.recipe.batch_size
    images = to_input(torch.randint(0, 256, (batch, channels, size, size), dtype=torch.uint8), device)
    labels = torch.randint(0, cell.num_classes, (batch,), device=device)

    def some_steps() -> int:
        for _ in range(STEPS_BETWEEN_READS):
            loss = training_step(model, optimizer, images, labels, config.recipe, cell.precision).loss
        loss.item()  # wait for the device, as the training loop does now and then
        return STEPS_BETWEEN_READS

    some_steps()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS_A_MODEL:
        steps += some_steps()
    return steps * batch / (time.perf_counter() - start)
