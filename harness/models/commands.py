"""`harness flops`: what models cost, and whether our counts are the paper's."""

import csv as csv_format
import json as json_format
import math
import sys
from typing import Any

from harness.errors import ConfigError
from harness.models.compute import Cost, count
from harness.models.named import model_config, model_names, with_image_size
from harness.models.paper_check import ODD_ROW_NOTE, Comparison, table1
from harness.models.paper_check import table6 as compare_table6

_COLUMNS = {  # of the text table: heading, column of the rows, format
    "model": ("model", "{}"),
    "image px": ("image_size", "{}"),
    "parameters": ("parameters", "{:,}"),
    "forward MACs/image": ("forward_macs_per_image", "{:,}"),
    "training FLOPs/image": ("training_flops_per_image", "{:,}"),
    "attention": ("attention_share", "{:.1%}"),
    "head": ("head_share", "{:.1%}"),
    "activations MB/image": ("activation_mb", "{:,.3g}"),
    "exaFLOPs": ("exaflops", "{:,.5g}"),
}


def flops_command(
    models: list[str],
    images: float | None = None,
    epochs: float = 1.0,
    convention: str = "executed",
    table6: bool = False,
    csv: bool = False,
    json: bool = False,
    image_size: int | None = None,
    classes: int = 1000,
    channels: int = 3,
) -> int:
    """Print parameters, forward MACs and training FLOPs per image of `models`; the exit code.

    Args:
        models: names of conf/model, or timm/NAME; none = all of conf/model.
        images: of one epoch; with `epochs` gives the exaFLOPs column.
        epochs: passes over `images`.
        convention: 'executed' or 'paper' (harness.models.compute.count).
        table6: check against the paper's Tables 6 and 1 instead; exit code 1 when a number is off.
        csv: comma-separated values instead of a table.
        json: a JSON list of rows instead of a table.
        image_size: pixels, in place of each model's own.
        classes: of the head; 0 leaves it out.
        channels: of the images.

    Raises:
        ConfigError: an unknown model, an impossible combination, or options that contradict each other.
    """
    if csv and json:
        raise ConfigError("Give one of --csv and --json, not both.")
    if table6:
        if models or image_size or images:
            raise ConfigError("--table6 counts the paper's models, images and epochs; leave MODEL and sizes out.")
        return _check_paper(csv, json)
    if classes < 0 or channels < 1 or (image_size is not None and image_size < 1):
        raise ConfigError("--classes counts from 0, channels and --image-size from 1.")
    if not 0 < epochs < math.inf or (images is not None and not 0 < images < math.inf):
        raise ConfigError("--images and --epochs must be above 0.")
    if images is None and epochs != 1.0:
        raise ConfigError("--epochs needs --images: images of one epoch.")
    configurations = [with_image_size(model_config(name), image_size) for name in models or model_names()]
    rows = []
    for cfg in configurations:
        cost = count(cfg, classes, channels, convention)
        rows.append(_row(cfg.name, cfg.image_size, cost, None if images is None else images * epochs))
    if csv or json:
        _print_data(rows, csv)
    else:
        print(_table(rows))
        print(f"\n{convention} convention, {channels} channels, {classes} classes; 1 MAC = 2 FLOPs.")
    return 0


def _row(name: str, image_size: int, cost: Cost, samples: float | None) -> dict[str, Any]:
    row = {
        "model": name,
        "image_size": image_size,
        "parameters": cost.parameters,
        "forward_macs_per_image": cost.forward_macs_per_image,
        "training_flops_per_image": cost.training_flops_per_image,
        "attention_share": cost.attention_share,
        "head_share": cost.head_share,
        "activation_bytes_per_image": cost.activation_bytes_per_image,
        "convention": cost.convention,
    }
    return row if samples is None else row | {"samples_seen": samples, "exaflops": cost.exaflops(samples)}


def _print_data(rows: list[dict[str, Any]], csv: bool) -> None:
    if csv:
        writer = csv_format.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        print(json_format.dumps(rows, indent=2))


def _table(rows: list[dict[str, Any]]) -> str:
    """Aligned columns: names to the left, numbers to the right."""
    shown = [row | {"activation_mb": row["activation_bytes_per_image"] / 1e6} for row in rows]
    columns = {heading: column for heading, column in _COLUMNS.items() if column[0] in shown[0]}
    lines = [list(columns)] + [[pattern.format(row[key]) for key, pattern in columns.values()] for row in shown]
    return align(lines)


def align(lines: list[list[str]]) -> str:
    """Text columns of `lines` (the first one holds the headings), the first column to the left."""
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _check_paper(csv: bool, json: bool) -> int:
    compute, parameters = compare_table6(), table1()
    failures = [c for c in compute + parameters if not c.ok]
    if csv or json:
        _print_data([_comparison_row(c) for c in compute + parameters], csv)
        return 1 if failures else 0
    lines = [["Table 6: exaFLOPs", "epochs", "ours", "paper", "ours / expected", "tolerance", ""]]
    lines += [[c.paper_name, str(c.epochs), f"{c.ours:.1f}", f"{c.paper:.0f}", *_verdict(c)] for c in compute]
    print(align(lines) + "\n")
    lines = [["Table 1: parameters", "ours", "paper", "ours / expected", "tolerance", ""]]
    lines += [[c.paper_name, f"{c.ours / 1e6:.1f}M", f"{c.paper / 1e6:.0f}M", *_verdict(c)] for c in parameters]
    print(align(lines))
    print(f"\nPaper convention (padding not counted), 303e6 images an epoch, 18,291 classes.\n{ODD_ROW_NOTE}")
    print(f"{len(failures)} of {len(compute + parameters)} numbers are off." if failures else "All within tolerance.")
    return 1 if failures else 0


def _verdict(comparison: Comparison) -> list[str]:
    ratio = f"{1 + comparison.deviation:.4f}"
    return [ratio, f"{comparison.tolerance:.1%}", "ok" if comparison.ok else "OFF"]


def _comparison_row(comparison: Comparison) -> dict[str, Any]:
    return {
        "quantity": "parameters" if comparison.epochs is None else "exaflops",
        "model": comparison.model,
        "paper_name": comparison.paper_name,
        "epochs": comparison.epochs,
        "ours": comparison.ours,
        "paper": comparison.paper,
        "expected": comparison.expected,
        "tolerance": comparison.tolerance,
        "ok": comparison.ok,
    }
