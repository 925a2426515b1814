"""`make bench-train`: images a second of the training loop beside a bare PyTorch loop, timm, Lightning and accelerate.

Everybody trains the same network from the same weights with the same optimiser (fused AdamW), clipping and batches of
the same size, in rounds of changing order, with one thread. On a CPU rates are by CPU time, since the clock counts what
else the machine does; on a GPU by the clock. What ours spends in evaluation is taken off; its checkpoints and its
hundred rows of metrics.jsonl are in: with 150 steps, seven times as many for their number as in the pocket study.

    python benchmarks/train.py                                   the pocket models, on the CPU
    python benchmarks/train.py --device cuda --gpu h200          ViT-B/16 and R50x1, bf16, compiled
    python benchmarks/train.py --contestants harness,bare        those alone (the first two need no further packages)
"""

import argparse
import contextlib
import itertools
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from photographs import write_jpegs
from table import Speed, machine, write_section
from timm.data import create_dataset
from timm.optim import create_optimizer_v2
from timm.task import ClassificationTask
from timm.utils import AverageMeter, dispatch_clip_grad
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from harness.compose import compose
from harness.config import LoopConfig, TrainConfig
from harness.data.loader import train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.subset import window
from harness.models.build import build_model
from harness.models.compute import count
from harness.train import loop
from harness.train.evaluate import to_input
from harness.train.loop import TrainJob, evaluate_split
from harness.train.optim import build_optimizer

RESULTS = Path(__file__).resolve().parent / "results" / "train.md"
GLYPHS = ["data=glyphs", "data.samples=20k", "data.val_samples=100", "data.test_samples=100", "data.image_size=16"]
IN_MEMORY = 20  # batches that the loops over memory go around in


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


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--gpu", default="cpu", help="a name in conf/device, for the share of its peak: h200, a100")
    words.add_argument("--models", default="")
    words.add_argument("--contestants", default=",".join(CONTESTANTS))
    words.add_argument("--steps", type=int, default=150)
    words.add_argument("--batch-size", type=int, default=256)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--out", type=Path, default=RESULTS)
    options = words.parse_args()
    models = options.models or ("vit_b16,r50x1" if options.device == "cuda" else "vit_pocket,resnet_pocket")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dataset = photographs(Path(folder)) if options.device == "cuda" else glyphs(Path(folder))
        for model in models.split(","):
            bench = prepare(model, dataset, options)
            title = f"{model} on {torch.cuda.get_device_name() if options.device == 'cuda' else 'one CPU thread'}"
            text = table(bench, race(bench, options.contestants.split(","), options.rounds, Path(folder)))
            write_section(options.out, title, text, "# Training: measured beside other loops")
            print(f"\n## {title}\n\n{text}")


def glyphs(folder: Path) -> Dataset:
    """20,000 characters of 16 pixels."""
    config = compose([*GLYPHS, "data.name=bench"]).data
    pack(config, folder, workers=os.cpu_count() or 1, progress=False)
    return open_dataset(folder / "bench")


def photographs(folder: Path) -> Dataset:
    """5,000 photographs of 224 pixels, in ten made-up classes."""
    for number in range(10):
        write_jpegs(folder / "raw" / f"class{number}", 520, seed=number)
    words = ["data=folder", "data.name=bench", f"data.path={folder / 'raw'}", "data.image_size=224"]
    pack(compose([*words, "data.val_samples=100", "data.test_samples=100"]).data, folder, workers=8, progress=False)
    return open_dataset(folder / "bench")


def prepare(model: str, dataset: Dataset, options: argparse.Namespace) -> Bench:
    """Batches in memory and the configuration of a model."""
    samples = options.steps * options.batch_size
    words = [f"model={model}", f"recipe.samples_seen={samples}", f"recipe.batch_size={options.batch_size}"]
    config = compose([*words, f"device={options.gpu}", "recipe.evaluations=1", "recipe.train_eval_samples=1"])
    device = torch.device(options.device)
    stream = train_batches(
        dataset,
        window(dataset.splits["train"].samples, dataset.splits["train"].samples, 0),
        seed=0,
        batch_size=options.batch_size,
        start_samples_seen=0,
        image_size=config.model.image_size,
        channels=dataset.channels,
    )
    taken = itertools.islice(stream, min(IN_MEMORY, options.steps))
    batches = [(to_input(batch.images, device), batch.labels.to(device)) for batch in taken]
    cuda = options.device == "cuda"
    return Bench(config, dataset, device, "bf16" if cuda else "fp32", cuda, options.steps, batches)


def race(bench: Bench, names: list[str], rounds: int, folder: Path) -> dict[str, list[Spent]]:
    """Each contestant once a round, in another order every round; a first round is not counted."""
    spent: dict[str, list[Spent]] = {name: [] for name in names}
    chance = np.random.default_rng(0)
    for number in range(rounds + 1):
        for name in chance.permutation(names).tolist():
            seconds = CONTESTANTS[name](bench, folder / f"{bench.config.model.name}-{name}-{number}")
            if number:
                spent[name].append(seconds)
    return spent


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
    """Ours: shards, order, schedule, gradient check, log rows, evaluation of two images, checkpoint."""
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
    with timed(bench.device) as spent:
        progress = loop.train(job)
    cpu, wall = (sum(column) for column in list(zip(*evaluations, strict=True))[:2])
    return Spent(spent[0].cpu - cpu, spent[0].wall - wall, progress.device_seconds)


def bare(bench: Bench, folder: Path) -> Spent:
    """What a page of PyTorch does, its batches ready in the device's memory."""
    module = network(bench)
    model, optimizer = compiled(bench, module), build_optimizer(module, bench.config.recipe)
    with timed(bench.device) as spent:
        for images, labels in around(bench):
            optimizer.zero_grad(set_to_none=True)
            with autocast(bench):
                loss = F.cross_entropy(model(images), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
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


def table(bench: Bench, spent: dict[str, list[Spent]]) -> str:
    """A row a contestant, ours against each: ratios are medians over rounds, each within its round."""
    by_cpu = bench.device.type == "cpu"
    rates = {name: Speed() for name in spent}
    for name, rounds in spent.items():
        for seconds in rounds:
            rates[name].add(bench.samples, seconds.cpu, seconds.wall)
    chosen = {name: speed.cpu if by_cpu else speed.wall for name, speed in rates.items()}
    unit = "images per CPU-second" if by_cpu else "images/s by the clock"
    lines = [f"| | {unit} | slowest to fastest round | harness is faster by |", "|---|--:|--:|--:|"]
    for name, values in sorted(chosen.items(), key=lambda item: -median(item[1])):
        ratio = median(np.divide(chosen["harness"], values).tolist()) if "harness" in chosen else float("nan")
        lines.append(
            f"| {NAMES[name]} | {median(values):,.0f} | {min(values):,.0f} - {max(values):,.0f} | {ratio:.3f} |"
        )
    notes = [f"{bench.steps} steps of {bench.config.recipe.batch_size} images a round, {bench.precision}"]
    notes[0] += ", compiled." if bench.compile else "."
    if {"harness", "bare"} <= set(spent):
        device = min(seconds.device for seconds in spent["harness"])
        wall = min(seconds.wall for seconds in spent["bare"])
        notes.append(
            f"Device seconds as in result.json, fastest round: {device:.3f}; the bare loop's by the clock: {wall:.3f} "
            f"({100 * (device / wall - 1):+.1f} %)."
        )
    peak = bench.config.device.peak_flops_bf16 if bench.precision == "bf16" else bench.config.device.peak_flops_fp32
    if not by_cpu and peak:
        cost = count(bench.config.model, bench.dataset.num_classes, bench.dataset.channels)
        flops = cost.training_flops_per_image
        notes.append(f"Share of the peak of {peak:.3g} FLOP/s: {flops * median(chosen['harness']) / peak:.1%}.")
    packages = [name for name in ("torch", "timm", "lightning", "accelerate") if installed(name)]
    return "\n".join([*lines, "", " ".join(notes), "", machine(*packages)])


def installed(package: str) -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


if __name__ == "__main__":
    main()
