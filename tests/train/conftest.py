"""Jobs of a second on the tiny set."""

import dataclasses
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.compose import compose
from harness.config import LoopConfig, RecipeConfig
from harness.data import loader
from harness.data.manifest import Dataset, open_dataset
from harness.data.subset import window
from harness.models.build import build_model
from harness.train.distributed import ALONE, Ranks
from harness.train.loop import TrainJob
from harness.train.stochastic_depth import set_stochastic_depth

RECIPE = RecipeConfig(
    name="tiny",
    source="test",
    samples_seen="480",
    batch_size=30,
    learning_rate=2e-3,
    weight_decay=0.05,
    dropout=0.1,
    stochastic_depth=0.2,
    random_resized_crop=True,
    min_crop_area=0.5,
    flip=True,
    polyak=0.9,
    evaluations=4,
    train_eval_samples=50,
)


def tiny_job(
    dataset: Dataset | Path,
    folder: Path,
    model: str = "vit_pocket",
    settings: dict[str, Any] | None = None,
    ranks: Ranks = ALONE,
    **changes: Any,
) -> TrainJob:
    """16 steps of 30 images on 100 of the tiny set's; `changes` are of the recipe, `settings` of its LoopConfig."""
    torch.set_num_threads(1)
    loader.ORDER_AHEAD_SAMPLES = 300  # 65,536 ahead would be most of such a short run's time; it moves no sample
    recipe = dataclasses.replace(RECIPE, **changes)
    dataset = open_dataset(dataset) if isinstance(dataset, Path) else dataset
    config = compose([f"model={model}"]).model
    if config.vit is not None:
        config = dataclasses.replace(config, vit=dataclasses.replace(config.vit, dropout=recipe.dropout))
    torch.manual_seed(0)
    network = build_model(config, dataset.num_classes, dataset.channels)
    set_stochastic_depth(network, recipe.stochastic_depth)
    folder.mkdir(parents=True, exist_ok=True)
    return TrainJob(
        model=network,
        dataset=dataset,
        window=window(dataset.splits["train"].samples, 100, 0),
        recipe=recipe,
        seed=0,
        image_size=config.image_size,
        channels=dataset.channels,
        precision="fp32",
        device=torch.device("cpu"),
        folder=folder,
        loop=LoopConfig(**(settings or {})),
        ranks=ranks,
    )


def stop_after(job: TrainJob, steps: int, signal_number: int = signal.SIGTERM) -> None:
    """Send a real signal to this process when so many steps are taken."""
    taken = 0

    def count(*_: Any) -> None:
        nonlocal taken
        taken += 1
        if taken == steps:
            os.kill(os.getpid(), signal_number)

    job.model.register_forward_pre_hook(lambda *_: count() if job.model.training else None)


@pytest.fixture
def job(tiny: Dataset, tmp_path: Path) -> Callable[..., TrainJob]:
    """`tiny_job` on the session's data, in the test's own folder unless another is named."""
    return lambda name="run", **changes: tiny_job(tiny, tmp_path / name, **changes)
