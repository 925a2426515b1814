"""Rounds of timing, interleaved, and the Markdown that the results are kept in."""

import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np


class Speed:
    """Images a second of each round, by CPU time of this process (one thread) and by the clock."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.wall: list[float] = []

    def add(self, images: int, cpu_seconds: float, wall_seconds: float) -> None:
        self.cpu.append(images / cpu_seconds)
        self.wall.append(images / wall_seconds)


def race(contestants: dict[str, Callable[[], int]], rounds: int) -> dict[str, Speed]:
    """Each contestant once a round, in another order every round; each returns how many images it made.

    A first round, not counted, opens files, builds caches and warms up.
    """
    speeds = {name: Speed() for name in contestants}
    rng = np.random.default_rng(0)
    for number in range(rounds + 1):
        for name in rng.permutation(list(contestants)).tolist():
            wall, cpu = time.perf_counter(), time.process_time()
            images = contestants[name]()
            spent = time.process_time() - cpu, time.perf_counter() - wall
            if number:
                speeds[name].add(images, *spent)
    return speeds


def forked(call: Callable[[], Any]) -> Any:
    """What `call` returns, from a process of its own: memory and settings of one contestant are not another's."""
    context = multiprocessing.get_context("fork")
    receives, sends = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sends.send(call()))
    process.start()
    sends.close()
    result = receives.recv()
    process.join()
    return result


def markdown(speeds: dict[str, Speed], against: dict[str, str], unit: str = "images") -> str:
    """A row a contestant; `against`: column heading -> contestant whose rate is 1."""
    heads = ["", f"{unit} per CPU-second", "slowest to fastest round", f"{unit}/s by the clock", *against]
    rates = {name: median(speed.cpu) for name, speed in speeds.items()}
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|--:" * (len(heads) - 1) + "|"]
    for name, speed in sorted(speeds.items(), key=lambda item: -rates[item[0]]):
        cells = [
            name,
            f"{rates[name]:,.0f}",
            f"{min(speed.cpu):,.0f} - {max(speed.cpu):,.0f}",
            f"{median(speed.wall):,.0f}",
        ]
        lines.append(
            "| " + " | ".join([*cells, *(f"{rates[name] / rates[base]:.2f}" for base in against.values())]) + " |"
        )
    return "\n".join(lines)


def machine(*packages: str) -> str:
    """One line: day, processor, versions."""
    model = "unknown processor"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{date.today()}, {model}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}."


def write_section(path: Path, title: str, text: str, heading: str = "# Data: measured beside other loaders") -> None:
    """Put `## title` and its text into the file in place of what stands there, or at its end."""
    sections = path.read_text().split("\n## ") if path.exists() else [f"{heading}\n"]
    kept = [part for part in sections if not part.startswith(f"{title}\n")]
    path.write_text("\n## ".join([*(part.rstrip() + "\n" for part in kept), f"{title}\n\n{text.strip()}\n"]))
