"""`make bench-train`: images a second of the training loop beside a bare PyTorch loop, timm, Lightning and accelerate.

Everybody trains the same network from the same weights with the same optimiser (fused AdamW), clipping and batches of
the same size, in rounds of changing order, with one thread. On a CPU each round is a process of its own, as a run is:
ours with what `harness run` sets there; rates are by CPU time, since the clock counts what else the machine does. On a
GPU they are by the clock. What ours spends in evaluation is taken off; its checkpoints are in, and a row of
metrics.jsonl every ten steps, as in the pocket study.

    python benchmarks/train.py                                   the pocket models, on the CPU
    python benchmarks/train.py --device cuda --gpu h200          ViT-B/16 and R50x1, bf16, compiled
    python benchmarks/train.py --contestants harness,bare        those alone (the first two need no further packages)
"""

import argparse
import itertools
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from photographs import write_jpegs
from table import Speed, forked, machine, write_section
from train_contestants import CONTESTANTS, NAMES, Bench, Spent, bare_step, compiled, harness_loop, network, timed

from harness.compose import compose
from harness.data.loader import train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.subset import window
from harness.models.compute import count
from harness.train import loop
from harness.train.evaluate import to_input
from harness.train.loop import TrainJob
from harness.train.optim import build_optimizer

RESULTS = Path(__file__).resolve().parent / "results" / "train.md"
GLYPHS = ["data=glyphs", "data.samples=20k", "data.val_samples=100", "data.test_samples=100", "data.image_size=16"]
IN_MEMORY = 20  # batches that the loops over memory go around in


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--gpu", default="cpu", help="a name in conf/device, for the share of its peak: h200, a100")
    words.add_argument("--models", default="")
    words.add_argument("--contestants", default=",".join(CONTESTANTS))
    words.add_argument("--steps", type=int, default=400)
    words.add_argument("--batch-size", type=int, default=256)
    words.add_argument("--rounds", type=int, default=4)
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
            pairs = apart(bench, lambda: in_turn(bench, Path(folder) / f"{model}-in-turn"))  # noqa: B023
            text = turns(pairs, options.device == "cpu") + "\n\n"
            text += table(bench, race(bench, options.contestants.split(","), options.rounds, Path(folder)))
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
            place = folder / f"{bench.config.model.name}-{name}-{number}"
            seconds = apart(bench, lambda: CONTESTANTS[name](bench, place))  # noqa: B023
            if number:
                spent[name].append(seconds)
    return spent


def apart(bench: Bench, call: Callable[[], Any]) -> Any:
    """What `call` returns, from a forked process; on a GPU, which no fork may share, from this one."""
    return call() if bench.device.type == "cuda" else forked(call)


def in_turn(bench: Bench, folder: Path) -> tuple[list[Spent], list[Spent], float]:
    """Seconds of every step of ours and of a bare step taken right before it, in one process: both meet the same load.

    A step of ours is all that happens between two batches, the batch, log rows and the clock included; those that
    evaluate or save a checkpoint are left out (the last one alone here). What ours sets in its process serves both.
    Also ours as result.json counts it, device seconds of all steps: the bare steps are in it, and are taken off here.
    """
    module = network(bench)
    optimizer = build_optimizer(module, bench.config.recipe)
    model, memory = compiled(bench, module), itertools.cycle(bench.batches)
    ours: list[Spent] = []
    others: list[Spent] = []
    real = loop.training_batches

    def batches(job: TrainJob, samples_seen: int) -> Iterator[Any]:
        for_real = real(job, samples_seen)
        while True:
            with timed(bench.device) as other:
                bare_step(bench, model, module, optimizer, *next(memory))
            with timed(bench.device) as own:
                yield next(for_real)
            ours.extend(own)
            others.extend(other)

    loop.training_batches = batches
    try:
        spent = harness_loop(bench, folder)
    finally:
        loop.training_batches = real
    bare_seconds = (
        sum(seconds.wall for seconds in others) * bench.steps / len(others)
    )  # the last one is not in the list
    return ours, others, spent.device - bare_seconds


def turns(pairs: tuple[list[Spent], list[Spent], float], by_cpu: bool) -> str:
    """One paragraph of Markdown."""
    own, other = (np.array([seconds.cpu if by_cpu else seconds.wall for seconds in part]) for part in pairs[:2])
    ratios = other / own
    low, high = np.quantile(
        np.median(np.random.default_rng(0).choice(ratios, (1000, len(ratios))), axis=1), [0.025, 0.975]
    )
    wall = [np.median([seconds.wall for seconds in part]) for part in pairs[:2]]
    bare_seconds = np.mean([seconds.wall for seconds in pairs[1]]) * (len(ratios) + 1)
    return (
        f"In turn, a step of ours after a bare step, {len(ratios)} pairs: {1e3 * np.median(own):.2f} against "
        f"{1e3 * np.median(other):.2f} ms, ours at {np.median(ratios):.3f} of the bare loop's speed (95 % interval of "
        f"the median {low:.3f} to {high:.3f}); by the clock {1e3 * wall[0]:.2f} against {1e3 * wall[1]:.2f} ms. Device "
        f"seconds of ours, as in result.json: {pairs[2]:.3f}, the bare steps' by the clock {bare_seconds:.3f} "
        f"({100 * (pairs[2] / bare_seconds - 1):+.1f} %)."
    )


def table(bench: Bench, spent: dict[str, list[Spent]]) -> str:
    """A row a contestant, ours against each: ratios are medians over rounds, each within its round."""
    by_cpu = bench.device.type == "cpu"
    rates = {name: Speed() for name in spent}
    for name, rounds in spent.items():
        for seconds in rounds:
            rates[name].add(bench.samples, seconds.cpu, seconds.wall)
    chosen = {name: speed.cpu if by_cpu else speed.wall for name, speed in rates.items()}
    unit = "images per CPU-second" if by_cpu else "images/s by the clock"
    lines = [f"| | {unit} | slowest to fastest round | ours against it |", "|---|--:|--:|--:|"]
    for name, values in sorted(chosen.items(), key=lambda item: -median(item[1])):
        ratio = median(np.divide(chosen["harness"], values).tolist()) if "harness" in chosen else float("nan")
        lines.append(
            f"| {NAMES[name]} | {median(values):,.0f} | {min(values):,.0f} - {max(values):,.0f} | {ratio:.3f} |"
        )
    notes = [f"{bench.steps} steps of {bench.config.recipe.batch_size} images a round, {bench.precision}"]
    notes[0] += ", compiled." if bench.compile else "."
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
