"""`make bench-step`: the training step of the crossover study's small networks on one core, and where its time goes.

Images per CPU-second of forward, backward, clipping and fused AdamW on batches of 256, in fp32 and bf16 autocast, with
freed memory kept (as `harness run` sets it) and without; FLOP/s beside what one core reaches in a large matrix product.
Each row is the median of rounds in turn, in processes of their own.

    python benchmarks/step.py --out benchmarks/results/step.md
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from table import forked, machine, write_section
from torch.profiler import ProfilerActivity, profile

from harness.compose import compose
from harness.config import TrainConfig
from harness.environment import keep_freed_memory
from harness.models.build import build_model
from harness.models.compute import count
from harness.models.precision import attention_path
from harness.train.optim import build_optimizer
from harness.train.step import training_step

MODELS = ("vit_glyph", "resnet_glyph", "hybrid_glyph", "vit_p4_glyph")
CLASSES, BATCH = 182, 256
PARTS = {  # names of operators, first match counts; what is left is 'the rest': copies, additions, overhead of calls
    "convolutions": ("convolution",),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm"),
    "normalisation": ("norm",),
    "activations, softmax": ("gelu", "softmax", "threshold", "relu", "clamp"),
    "optimiser and clipping": ("adam", "Optimizer", "foreach", "vector_norm"),
}
RESULTS = Path(__file__).resolve().parent / "results" / "step.md"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--steps", type=int, default=60)
    words.add_argument("--out", type=Path, default=RESULTS)
    options = words.parse_args()
    configs = {name: compose([f"model={name}", "recipe=glyph_2e3"]) for name in MODELS}
    peaks = {precision: forked(lambda: matrix_peak(precision)) for precision in ("fp32", "bf16")}  # noqa: B023
    write_section(options.out, "Speed", speeds(configs, peaks, options.rounds, options.steps), TITLE)
    write_section(options.out, "Where the time goes", parts(configs, options.steps), TITLE)


TITLE = "# The training step of small networks on one core"


def speeds(configs: dict[str, TrainConfig], peaks: dict[str, float], rounds: int, steps: int) -> str:
    """A row a network and precision."""
    lines = [
        "| | forward MFLOPs | fp32 | bf16 | bf16, memory not kept | GFLOP/s in bf16 | of the matrix peak |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, config in configs.items():
        settings = (("fp32", True), ("bf16", True), ("bf16", False))
        rates: dict[Any, list[float]] = {setting: [] for setting in settings}
        for _ in range(rounds):
            for setting in settings:
                rates[setting].append(forked(lambda: rate(config, *setting, steps)))  # noqa: B023
        fp32, bf16, plain = (median(rates[setting]) for setting in settings)
        cost = count(config.model, CLASSES, 1)
        reached = bf16 * cost.training_flops_per_image
        lines.append(
            f"| {name} | {2e-6 * cost.forward_macs_per_image:.2f} | {fp32:,.0f} | {bf16:,.0f} | {plain:,.0f} | "
            f"{reached / 1e9:.0f} | {reached / peaks['bf16']:.0%} |"
        )
        print(lines[-1], flush=True)
    note = (
        f"Images per CPU-second. One core in a product of 2048 x 2048 matrices: {peaks['fp32'] / 1e9:.0f} GFLOP/s in "
    )
    note += f"fp32, {peaks['bf16'] / 1e9:.0f} in bf16."
    return "\n".join([*lines, "", note, "", machine("torch", "timm")])


def stepper(config: TrainConfig, precision: str) -> Callable[[], Any]:
    """A training step of a fresh network on one batch of noise, unfused attention as on every CPU."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with attention_path("unfused"):
        model = build_model(config.model, CLASSES, 1).train()
    optimizer = build_optimizer(model, config.recipe)
    images, labels = torch.randn(BATCH, 1, 16, 16), torch.randint(0, CLASSES, (BATCH,))
    return lambda: training_step(model, optimizer, images, labels, config.recipe, precision)


def rate(config: TrainConfig, precision: str, keep: bool, steps: int) -> float:
    """Images per CPU-second."""
    if keep:
        keep_freed_memory()
    step = stepper(config, precision)
    for _ in range(10):
        step()
    begin = time.process_time()
    for _ in range(steps):
        step()
    return steps * BATCH / (time.process_time() - begin)


def matrix_peak(precision: str) -> float:
    """FLOP/s of one thread."""
    torch.set_num_threads(1)
    one = torch.randn(2048, 2048, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    best = 0.0
    for _ in range(5):
        begin = time.process_time()
        one @ one
        best = max(best, 2 * 2048**3 / (time.process_time() - begin))
    return best


def parts(configs: dict[str, TrainConfig], steps: int) -> str:
    """Shares of a bf16 step by kind of operator."""
    lines = ["| | " + " | ".join([*PARTS, "the rest"]) + " |", "|---|" + "--:|" * (len(PARTS) + 1)]
    for name, config in configs.items():
        shares = forked(lambda: profiled(config, steps))  # noqa: B023
        lines.append(f"| {name} | " + " | ".join(f"{share:.0%}" for share in shares) + " |")
        print(lines[-1], flush=True)
    return "\n".join(
        [*lines, "", "Shares of the operators' own time in a step in bf16, as torch's profiler counts it."]
    )


def profiled(config: TrainConfig, steps: int) -> list[float]:
    """Share of each of PARTS, and of the rest."""
    keep_freed_memory()
    step = stepper(config, "bf16")
    for _ in range(10):
        step()
    with profile(activities=[ProfilerActivity.CPU]) as found:
        for _ in range(steps // 3):
            step()
    spent = dict.fromkeys([*PARTS, "the rest"], 0.0)
    for event in found.key_averages():
        part = next((part for part, words in PARTS.items() if any(word in event.key for word in words)), "the rest")
        spent[part] += event.self_cpu_time_total
    total = sum(spent.values())
    return [seconds / total for seconds in spent.values()]


if __name__ == "__main__":
    main()
