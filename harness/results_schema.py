"""The three results tables: every column, its type and unit. The only thing that `analysis` knows of harness.

Accuracies are fractions in [0, 1]. FLOPs are 2 per multiply-accumulate (MAC), forward and backward as executed.
An exaFLOP is 1e18 FLOPs. No number is negative, NaN or infinite: `harness results` leaves out rows that hold such a
value, or one of another kind, and lists the file, the field and why. `docs/results.md` is printed from here
(`python -m harness.results_schema`).
"""

import math
import sys
from typing import Any, NamedTuple

SCHEMA_VERSION = 1
EXAFLOPS_PER_TPU_V3_CORE_DAY = 1567 / 680  # the paper's own rate: ViT-L/16 on JFT-300M for 14 epochs, Tables 6 and 2


class Column(NamedTuple):
    """One column: `kind` is str, int or float; `required` columns must hold a value in every finished run.

    `least` and `most` are the range of a number; of a text, `least` is the number of characters.
    """

    kind: str
    meaning: str
    required: bool = True
    volatile: bool = False  # two equal runs may differ here: times, hosts, attempts
    least: float = 0
    most: float = math.inf


KINDS: dict[str, Any] = {"str": str, "int": int, "float": int | float}
KIND_NAMES = {"str": "text", "int": "whole number", "float": "number"}
LARGEST = {"int": 2**63 - 1, "float": sys.float_info.max}  # what a column of the tables can hold
SHOWN_CHARACTERS = 40  # of a wrong value
AVERAGE_5 = {  # targets and metrics of the mean in Table 6 and Figure 5 (arXiv 2010.11929 §4.1)
    "imagenet": "top1",
    "cifar10": "top1",
    "cifar100": "top1",
    "pets": "mean_per_class",
    "flowers102": "mean_per_class",
}
FRACTION_METRICS = ("top1", "mean_per_class")  # of `curves`; its other metrics have no upper limit

RUNS: dict[str, Column] = {
    "run_id": Column("str", "name of the run folder, ends in the hash of its configuration"),
    "study": Column("str", "study that the run belongs to"),
    "state": Column("str", "finished | failed | running | waiting"),
    "reason": Column("str", "why it failed: diverged, out_of_memory, killed, error", required=False),
    "dataset": Column("str", "name of the pre-training set"),
    "dataset_digest": Column("str", "sha256 over keys, labels and decoded pixels"),
    "num_classes": Column("int", "classes of the pre-training set; chance is 1 / num_classes", least=1),
    "model": Column("str", "name in conf/model"),
    "family": Column("str", "ViT | ResNet | hybrid | user's label"),
    "recipe": Column("str", "name in conf/recipe"),
    "subset_samples": Column("int", "images in the training subset", least=1),
    "distinct_origins": Column("int", "distinct originals (outlines, photographs) behind the subset's images"),
    "draw": Column("int", "which window of the packed order the subset is"),
    "seed": Column("int", "seed of initialisation and order"),
    "parameters": Column("int", "trainable parameters, head included", least=1),
    "forward_macs_per_image": Column("int", "multiply-accumulates of one forward pass"),
    "training_flops_per_image": Column("int", "FLOPs of forward and backward, 2 a MAC"),
    "samples_seen": Column("int", "training images processed", least=1),
    "samples_seen_at_best": Column("int", "of which up to the best validation result"),
    "exaflops_spent": Column("float", "training_flops_per_image x samples_seen / 1e18"),
    "exaflops_at_best": Column("float", "training_flops_per_image x samples_seen_at_best / 1e18"),
    "best_val_top1": Column("float", "validation top-1 at the best evaluation along the horizon", most=1),
    "test_top1": Column("float", "test top-1 of the checkpoint with the best validation result", most=1),
    "train_top1_at_best": Column(
        "float", "top-1 on the fixed sample of the training subset, at the best evaluation", most=1
    ),
    "train_top1_final": Column("float", "the same at the end of the horizon", most=1),
    "val_top1_final": Column("float", "validation top-1 at the end of the horizon", most=1),
    "val_loss_at_best": Column("float", "nats"),
    "val_loss_final": Column("float", "nats"),
    "train_loss_at_best": Column("float", "nats, on the fixed sample of the training subset, in evaluation mode"),
    "train_loss_final": Column("float", "nats, the same at the end of the horizon"),
    "train_eval_samples": Column("int", "size of that fixed sample"),
    "val_samples": Column("int", "validation images evaluated"),
    "test_samples": Column("int", "test images evaluated"),
    "precision": Column("str", "fp32 | bf16"),
    "attention": Column("str", "fused | unfused"),
    "device_kind": Column("str", "device as torch names it"),
    "device_count": Column("int", "devices of the run", least=1),
    "threads": Column("int", "CPU threads of the run"),
    "parameters_sha256": Column("str", "digest of the final parameters: equal digests, equal networks"),
    "device_seconds_train": Column(
        "float", "seconds in training steps, summed over attempts and devices", volatile=True
    ),
    "device_seconds_total": Column(
        "float", "seconds of the whole run, evaluation included, times devices", volatile=True
    ),
    "cpu_seconds": Column("float", "CPU time of all processes and attempts", volatile=True),
    "images_per_second": Column("float", "samples_seen x device_count / device_seconds_train", volatile=True),
    "tpu_v3_core_days_equivalent": Column(
        "float",
        f"exaflops_spent / {EXAFLOPS_PER_TPU_V3_CORE_DAY:.3f}: ViT-L/16's 1567 exaFLOPs (Table 6) in 680 "
        "TPUv3-core-days (Table 2)",
        required=False,
    ),
    "max_rss_bytes": Column("int", "largest resident memory of the process", volatile=True),
    "attempt": Column("int", "1 for a run that was never interrupted", volatile=True),
    "host": Column("str", "machine", volatile=True),
    "started_at": Column("str", "UTC, first attempt", volatile=True),
    "finished_at": Column("str", "UTC", volatile=True),
    "harness_version": Column("str", "version of this package"),
    "git_sha": Column("str", "commit of the code, '-dirty' appended when it differs", required=False, volatile=True),
    "torch_version": Column("str", "version of torch"),
    "timm_version": Column("str", "version of timm"),
}

TRANSFER: dict[str, Column] = {
    "run_id": Column("str", "the run whose checkpoint was evaluated"),
    "model": Column("str", "as in runs"),
    "family": Column("str", "as in runs"),
    "subset_samples": Column("int", "as in runs"),
    "draw": Column("int", "as in runs"),
    "seed": Column("int", "seed of the run"),
    "target": Column("str", "transfer data set", least=1),
    "protocol": Column("str", "fewshot_linear | linear_probe | finetune", least=1),
    "transfer_id": Column(
        "str", "target, protocol and hash of its settings, as stated in the run's transfer/NAME.json", required=False
    ),
    "features": Column("str", "pretrained | untrained | raw_pixels: the last two are baselines", least=1),
    "shots": Column("int", "support images a class; 0 = all: linear probe, fine-tuning"),
    "support_seed": Column("int", "seed of the support set, or of fine-tuning"),
    "metric": Column("str", "top1 | top5 | mean_per_class | real (ImageNet-ReaL)", least=1),
    "value": Column("float", "fraction in [0, 1]", most=1),
}

CURVES: dict[str, Column] = {
    "run_id": Column("str", "the run"),
    "samples_seen": Column("int", "the clock"),
    "exaflops": Column("float", "compute spent up to here"),
    "split": Column("str", "train (fixed sample, evaluation mode) | val | step (mean over the steps since)"),
    "metric": Column("str", "top1 | mean_per_class | loss | learning_rate"),
    "value": Column("float", "fraction, or nats"),
}

TABLES: dict[str, dict[str, Column]] = {"runs": RUNS, "transfer": TRANSFER, "curves": CURVES}


def wrong(value: Any, column: Column) -> str:
    """Why a value cannot be in a column: missing, of another kind, not finite, out of range. '' where it can."""
    if value is None:
        return "missing" if column.required else ""
    if isinstance(value, bool) or not isinstance(value, KINDS[column.kind]):
        return f"{shown(value)} is no {KIND_NAMES[column.kind]}"
    if isinstance(value, str):
        if len(value) < column.least:
            return "empty"
        writable = value.isascii() or value.encode(errors="ignore").decode() == value  # JSON can hold half a character
        return "" if writable else f"{shown(value)} cannot be written as UTF-8"
    most = min(column.most, LARGEST[column.kind])
    return "" if column.least <= value <= most else f"{shown(value)} is not in [{column.least:g}, {most:g}]"


def problem(row: dict[str, Any], columns: dict[str, Column]) -> str:
    """The first column of a row that has a wrong value, and why; '' for a sound row."""
    return next((f"{name}: {why}" for name, column in columns.items() if (why := wrong(row.get(name), column))), "")


def shown(value: Any) -> str:
    """A value read from JSON, in a few characters."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def markdown() -> str:
    """The tables' documentation as Markdown."""
    lines = ["# Results tables", "", (__doc__ or "").strip(), ""]
    for table, columns in TABLES.items():
        lines += [f"## {table}", "", "| column | type | meaning |", "|---|---|---|"]
        for name, column in columns.items():
            meaning = column.meaning.replace("|", "\\|")
            notes = ("" if column.required else "; may be empty") + (
                "; may differ between equal runs" if column.volatile else ""
            )
            lines.append(f"| `{name}` | {column.kind} | {meaning}{notes} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
