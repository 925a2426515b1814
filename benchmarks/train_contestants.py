"""The loops that benchmarks/train.py measures: ours, a bare one, timm's, Lightning's and accelerate's.

Each takes the same network, optimiser, clipping and number of steps, and returns the seconds that its steps took.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from timm.data import create_dataset
from timm.optim import create_optimizer_v2
from timm.task import ClassificationTask
from timm.utils import AverageMeter, dispatch_clip_grad
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from harness.config import LoopConfig, TrainConfig
from harness.data.manifest import Dataset
from harness.data.subset import window
from harness.experiment import prepare_torch
from harness.models.build import build_model
from harness.train import loop
from harness.train.evaluate import to_input
from harness.train.loop import TrainJob, evaluate_split
from harness.train.optim import build_optimizer


class Bench(NamedTuple):
    """What all contestants train."""

    config: TrainConfig
    dataset: Dataset
    device: torch.device
    precision: str
    compile: bool
    steps: int
    batches: list[tuple[torch.Tensor, torch.Tensor]]  # float32 images as the network takes them, labels

    @property
    def samples(self) -> int:
        return self.steps * self.config.recipe.batch_size


class Spent(NamedTuple):
    """Seconds of one round."""

    cpu: float
    wall: float
    device: float = 0.0  # ours: what result.json calls device seconds


@contextlib.contextmanager
def timed(device: torch.device) -> Iterator[list[Spent]]:
    """Fills the list when it is left, the device idle before and after."""
    synchronise: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    synchronise()
    wall, cpu = time.perf_counter(), time.process_time()
    result: list[Spent] = []
    yield result
    synchronise()
    result.append(Spent(time.process_time() - cpu, time.perf_counter() - wall))


def network(bench: Bench) -> nn.Module:
    """The same weights for all."""
    torch.manual_seed(0)
    return build_model(bench.config.model, bench.dataset.num_classes, bench.dataset.channels).to(bench.device).train()


def compiled(bench: Bench, model: nn.Module) -> Any:
    return torch.compile(model) if bench.compile else model


def autocast(bench: Bench) -> torch.autocast:
    return torch.autocast(bench.device.type, torch.bfloat16, enabled=bench.precision == "bf16")


def harness_loop(bench: Bench, folder: Path) -> Spent:
    """Ours, set up as a run: shards, order, schedule, gradient check, log rows, evaluation of 2 images, checkpoint."""
    if bench.device.type == "cpu":  # a process of its own
        prepare_torch(1)
    dataset, size = bench.dataset, bench.dataset.splits["train"].samples
    folder.mkdir(parents=True)
    job = TrainJob(
        model=network(bench),
        dataset=dataset,
        window=window(size, size, 0),
        recipe=bench.config.recipe,
        seed=0,
        image_size=bench.config.model.image_size,
        channels=dataset.channels,
        precision=bench.precision,
        device=bench.device,
        folder=folder,
        loop=LoopConfig(compile=bench.compile),
    )
    evaluations: list[Spent] = []

    def timed_evaluation(*words: Any, **named: Any) -> Any:
        with timed(bench.device) as spent:
            score = evaluate_split(*words, **named)
        evaluations.extend(spent)
        return score

    loop.evaluate_split = timed_evaluation
    loop.LOG_ROWS = max(1, bench.steps // 10)
    with timed(bench.device) as spent:
        progress = loop.train(job)
    cpu, wall = (sum(column) for column in list(zip(*evaluations, strict=True))[:2])
    return Spent(spent[0].cpu - cpu, spent[0].wall - wall, progress.device_seconds)


def bare_step(bench: Bench, model: Any, module: nn.Module, optimizer: Any, images: Any, labels: Any) -> torch.Tensor:
    """A step as anybody writes it."""
    optimizer.zero_grad(set_to_none=True)
    with autocast(bench):
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 1.0)
    optimizer.step()
    return loss


def bare(bench: Bench, folder: Path) -> Spent:
    """What a page of PyTorch does, its batches ready in the device's memory."""
    module = network(bench)
    model, optimizer = compiled(bench, module), build_optimizer(module, bench.config.recipe)
    with timed(bench.device) as spent:
        for images, labels in around(bench):
            loss = bare_step(bench, model, module, optimizer, images, labels)
        loss.item()
    return spent[0]


def timm_task(bench: Bench, folder: Path) -> Spent:
    """timm's task, optimiser, clipping, meters and its WebDataset reader over the same shards, as in its script."""
    dataset, batch_size = bench.dataset, bench.config.recipe.batch_size
    count = len(dataset.splits["train"].shards)
    reader = create_dataset(
        "wds/bench",
        root=str(dataset.folder),
        split=f"train-{{000000..{count - 1:06d}}}.tar",
        is_training=True,
        batch_size=batch_size,
        num_samples=dataset.splits["train"].samples,
        repeats=1_000_000,
        input_img_mode="L" if dataset.channels == 1 else "RGB",
    )
    reader.transform = lambda image: torch.from_numpy(np.array(image)).reshape(
        image.height, image.width, dataset.channels
    )
    module = network(bench)
    task = ClassificationTask(module, device=bench.device, verbose=False)
    if bench.compile:
        task.compile()
    optimizer = create_optimizer_v2(module, "adamw", lr=1e-3, weight_decay=0.05, fused=True)
    meter, loader = AverageMeter(), DataLoader(reader, batch_size, drop_last=True)
    with timed(bench.device) as spent:
        for images, labels in endless(loader, bench.steps):
            images = to_input(images.permute(0, 3, 1, 2), bench.device)
            optimizer.zero_grad()
            with autocast(bench):
                loss = task(images, labels.to(bench.device))["loss"]
            loss.backward()
            dispatch_clip_grad(module.parameters(), 1.0)
            optimizer.step()
            meter.update(loss.item(), batch_size)
    return spent[0]


def in_memory(bench: Bench) -> Any:
    """A loader over all images in host memory, as a user of these libraries writes it."""
    images = torch.cat([images.cpu() for images, _ in bench.batches])
    labels = torch.cat([labels.cpu() for _, labels in bench.batches])
    return DataLoader(TensorDataset(images, labels), bench.config.recipe.batch_size, shuffle=True, drop_last=True)


def fabric_loop(bench: Bench, folder: Path) -> Spent:
    """Lightning Fabric around the bare loop."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=bench.device.type, devices=1, precision="bf16-mixed" if bench.compile else "32-true")
    module = network(bench)
    model, optimizer = fabric.setup(compiled(bench, module), build_optimizer(module, bench.config.recipe))
    loader = fabric.setup_dataloaders(in_memory(bench))
    with timed(bench.device) as spent:
        for images, labels in endless(loader, bench.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()
    return spent[0]


def lightning_trainer(bench: Bench, folder: Path) -> Spent:
    """Lightning's Trainer without progress bar, logger and checkpoints; it alone logs nothing."""
    import lightning

    module = network(bench)

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = compiled(bench, module)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return F.cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return build_optimizer(module, bench.config.recipe)

    trainer = lightning.Trainer(
        accelerator=bench.device.type,
        devices=1,
        precision="bf16-mixed" if bench.compile else "32-true",
        max_steps=bench.steps,
        max_epochs=-1,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(folder),
    )
    loader = in_memory(bench)
    with timed(bench.device) as spent:
        trainer.fit(Task(), loader)
    return spent[0]


def accelerate_loop(bench: Bench, folder: Path) -> Spent:
    """Hugging Face accelerate around the bare loop."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=bench.device.type == "cpu", mixed_precision="bf16" if bench.compile else "no")
    module = network(bench)
    optimizer = build_optimizer(module, bench.config.recipe)
    model, optimizer, loader = accelerator.prepare(compiled(bench, module), optimizer, in_memory(bench))
    with timed(bench.device) as spent:
        for images, labels in endless(loader, bench.steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return spent[0]


CONTESTANTS: dict[str, Callable[[Bench, Path], Spent]] = {
    "harness": harness_loop,
    "bare": bare,
    "timm": timm_task,
    "fabric": fabric_loop,
    "trainer": lightning_trainer,
    "accelerate": accelerate_loop,
}
NAMES = {
    "harness": "harness: train() from its shards",
    "bare": "bare PyTorch loop, batches in the device's memory",
    "timm": "timm's task and WebDataset reader, the same shards",
    "fabric": "Lightning Fabric, images in memory",
    "trainer": "Lightning Trainer, images in memory",
    "accelerate": "accelerate, images in memory",
}


def around(bench: Bench) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return itertools.islice(itertools.cycle(bench.batches), bench.steps)


def endless(loader: Any, steps: int) -> Iterator[Any]:
    """So many batches, epoch after epoch."""
    return itertools.islice(itertools.chain.from_iterable(itertools.repeat(loader)), steps)
