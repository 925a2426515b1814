"""`make bench-engine`: what the study engine costs, and what it gains on two cores.

Everything goes through `harness` as a user starts it, in processes of its own, on a set of 600 glyphs that is packed
first. Times are by the clock, so run it on a machine that does nothing else.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from table import machine

RESULTS = Path(__file__).parent / "results" / "engine.md"
DATA = (  # noqa: SIM905 — as it is typed
    "data=glyphs data.name=tiny data.samples=600 data.val_samples=200 data.test_samples=200 data.image_size=16 "
    "data.shard_samples=250 data.characters=0123456789"
).split()
ONE_STEP = (  # noqa: SIM905
    "recipe.samples_seen=1 recipe.batch_size=1 recipe.warmup=0% recipe.evaluations=1 recipe.train_eval_samples=1 "
    "transfer.shots=[1] transfer.support_seeds=[0] transfer.baselines=false"
).split()
MODELS = ["vit_pocket", "resnet_pocket", "hybrid_pocket", "vit_glyph", "resnet_glyph"]
SIZES = ["50", "100", "200", "300", "600"]


def main() -> None:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        os.environ |= {"HARNESS_DATA": f"{name}/data", "HARNESS_RUNS": f"{name}/runs"}
        os.chdir(name)
        harness("data", "pack", "glyphs", *(word for word in DATA if word != "data=glyphs"))
        rows = [*side_by_side(), *no_work(), *thousand_cells(), *thousand_folders()]
    lines = ["| | measured | wanted |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    RESULTS.write_text(
        "# The study engine, measured\n\n`python benchmarks/engine.py`, "
        f"{time.perf_counter() - started:.0f} s. {machine('torch', 'timm', 'hydra-core')}\n\n"
        + "\n".join(lines)
        + "\n\nOne run that does nothing else takes a fork of a server that has torch and timm loaded (milliseconds; "
        "loading them takes seconds and is done once a study), reading and checking its configuration, composing that "
        "of its transfer target, building the network, three evaluations and a transfer of 1,797 images, and writing "
        "its files durably.\n"
    )
    print(f"\n{RESULTS.read_text()}\n{RESULTS}")


def harness(*words: str) -> float:
    """Run a command to its end; seconds by the clock."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "harness.cli", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"harness {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    seconds = time.perf_counter() - started
    print(f"{seconds:7.1f} s  harness {' '.join(words)[:100]}", flush=True)
    return seconds


def study(name: str, models: list[str], sizes: list[str], seeds: int, overrides: list[str]) -> str:
    """Write a study file; returns its path."""
    Path(f"{name}.yaml").write_text(
        json.dumps(
            {
                "title": name,
                "smoke": True,
                "data": "tiny",
                "recipe": "pocket",
                "transfer": "digits",
                "overrides": [*DATA, *overrides],
                "cells": [{"model": models, "subset": sizes, "seed": list(range(seeds))}],
            }
        )
    )
    return f"{name}.yaml"


def side_by_side() -> list[list[str]]:
    """Eight equal runs, two at a time with a thread each, beside one at a time with every core."""
    cores = os.cpu_count() or 1
    pocket = study("eight", ["vit_pocket"], ["600"], 8, ["recipe.samples_seen=64k"])
    apart = harness("run", pocket)
    one = harness("run", pocket, "launcher.slots=1", f"launcher.threads={cores}")
    return [
        [
            f"8 equal pocket runs (64,000 images each), `local` on {cores} cores",
            f"{apart:.0f} s; one after another with {cores} threads {one:.0f} s: {apart / one:.2f}",
            "≤ 0.55",
        ]
    ]


def no_work() -> list[list[str]]:
    """Runs of a single step: all the rest is overhead."""
    count = 200
    seconds = harness("run", study("nothing", ["vit_pocket"], SIZES, count // len(SIZES), ONE_STEP))
    again = harness("run", "nothing.yaml")
    return [
        [f"{count} runs of one step and one image through `local`", f"{seconds / count:.2f} s a run", "< 1 s"],
        ["the same command again: nothing to do", f"{again:.1f} s", ""],
    ]


def thousand_cells() -> list[list[str]]:
    """The plan of a study of 1,000 cells, and what of it is composing and hashing."""
    big = study("big", MODELS, SIZES, 40, [])
    whole = harness("plan", big, "--json")
    code = (
        "import time; from harness.study import plan; t = time.perf_counter(); p = plan.make('big.yaml', []); "
        "assert len({c.config_hash for c in p.cells}) == 1000; print(time.perf_counter() - t)"
    )
    inside = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    return [
        ["enumerate and hash 1,000 cells", f"{inside:.1f} s ({whole:.1f} s for all of `harness plan`)", "< 5 s"],
    ]


def thousand_folders() -> list[list[str]]:
    """`harness status` over 1,000 run folders: half finished, the others running, failed or waiting."""
    harness("run", "big.yaml", "model=vit_pocket", "subset=50", "seed=0", *ONE_STEP)
    runs = Path("runs/big@tiny")
    plan = json.loads((runs / "plan.json").read_text())
    model = next(runs.glob("vit_pocket-50-s0-*"))
    result = json.loads((model / "result.json").read_text())
    for number, row in enumerate(plan["runs"]):
        folder = runs / row["run_id"]
        if not folder.exists():
            shutil.copytree(model, folder)
        kind = ("finished", "running", "finished", "failed")[number % 4]
        if kind == "finished":
            write(folder / "result.json", result | {"run_id": row["run_id"]})
        else:
            (folder / "result.json").unlink(missing_ok=True)
            status: dict[str, Any] = json.loads((folder / "status.json").read_text())
            write(folder / "status.json", status | {"state": kind, "reason": "error" if kind == "failed" else None})
    seconds = min(harness("status", "big.yaml", "data=tiny") for _ in range(3))
    return [["`harness status`, 1,000 run folders", f"{seconds:.1f} s", "< 2 s"]]


def write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    main()
