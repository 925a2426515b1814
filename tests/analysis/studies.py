"""Synthetic studies with a known truth, as tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.results_schema import CURVES, RUNS, TRANSFER

PAIR = ("vit", "resnet")
SIZES = (1000, 10_000, 100_000)
DEFAULTS = {"str": "x", "int": 1, "float": 0.5}


def runs_table(
    accuracy: Callable[[str, int, int], float],
    sizes: tuple[int, ...] = SIZES,
    seeds: int = 3,
    num_classes: int = 100,
) -> pd.DataFrame:
    """A complete `runs` table with best_val_top1 = accuracy(model, size, seed)."""
    rows = []
    for model in PAIR:
        for size in sizes:
            for seed in range(seeds):
                row = {name: DEFAULTS[column.kind] for name, column in RUNS.items()}
                value = accuracy(model, size, seed)
                row |= {
                    "run_id": f"{model}-{size}-s{seed}",
                    "state": "finished",
                    "reason": None,
                    "model": model,
                    "family": {"vit": "ViT", "resnet": "ResNet"}[model],
                    "subset_samples": size,
                    "draw": seed,
                    "seed": seed,
                    "num_classes": num_classes,
                    "best_val_top1": value,
                    "test_top1": value,
                    "train_top1_final": min(1.0, value + 0.1),
                    "val_top1_final": value,
                    "samples_seen": 200_000,
                    "samples_seen_at_best": 100_000,
                    "distinct_origins": size // 2,
                    "exaflops_spent": 1e-7,
                }
                rows.append(row)
    return pd.DataFrame(rows, columns=pd.Index(list(RUNS)))


def linear_gap(slope: float, crossover: float, noise: float = 0.0, seed: int = 0) -> Callable[[str, int, int], float]:
    """Accuracies whose gap (points) is slope x log10(size / crossover), plus noise of that deviation (points)."""
    rng = np.random.default_rng(seed)

    def accuracy(model: str, size: int, _: int) -> float:
        base = 0.4 + 0.05 * np.log10(size / 1000)
        gap = slope * np.log10(size / crossover) / 100 if model == "vit" else 0.0
        return float(base + gap + rng.normal(0, noise / 100 / np.sqrt(2)))

    return accuracy


def transfer_table(runs: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for run in runs.to_dict("records"):
        for features, value in (("pretrained", 0.7), ("untrained", 0.5), ("raw_pixels", 0.6)):
            for support_seed in range(3):
                rows.append(
                    {name: run[name] for name in ("run_id", "model", "family", "subset_samples", "draw", "seed")}
                    | {"target": "digits", "protocol": "fewshot_linear", "features": features, "shots": 5}
                    | {"support_seed": support_seed, "metric": "top1", "value": value + 0.01 * support_seed}
                )
    return pd.DataFrame(rows, columns=pd.Index(list(TRANSFER)))


def curves_table(runs: pd.DataFrame) -> pd.DataFrame:
    rows = [
        {
            "run_id": run_id,
            "samples_seen": 1000 * k,
            "exaflops": 1e-8 * k,
            "split": "val",
            "metric": "top1",
            "value": k / 9,
        }
        for run_id in runs["run_id"]
        for k in range(1, 6)
    ]
    return pd.DataFrame(rows, columns=pd.Index(list(CURVES)))


def write_study(folder: Path, runs: pd.DataFrame, **study: Any) -> Path:
    """A folder of tables as `harness results` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    runs.to_csv(folder / "runs.csv", index=False)
    transfer_table(runs[runs["state"] == "finished"]).to_csv(folder / "transfer.csv", index=False)
    curves_table(runs[runs["state"] == "finished"]).to_csv(folder / "curves.csv", index=False)
    description = {"name": "s", "title": "A study", "smoke": False, "metric": "best_val_top1", "pairs": [list(PAIR)]}
    (folder / "study.json").write_text(json.dumps(description | study))
    return folder
