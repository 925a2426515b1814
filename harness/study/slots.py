"""Which run may start beside those that are running: cores, GPUs and memory of one machine, as pure arithmetic."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cell import Cell
from harness.config import LauncherConfig
from harness.errors import HarnessError
from harness.host import usable_cores, usable_memory_bytes

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
PROCESS_BYTES = 700_000_000  # resident memory of Python, torch and timm on a CPU; measured with the pocket models
CUDA_PROCESS_BYTES = 3_000_000_000  # with CUDA's libraries and pinned buffers
SHARE_OF_MEMORY = 0.9


@dataclass(frozen=True)
class Need:
    """What one run takes."""

    cores: int
    gpus: int
    memory_bytes: float  # of the host
    gpu_memory_bytes: float = 0.0  # of each of its GPUs


@dataclass(frozen=True)
class Machine:
    """What there is to give."""

    cores: int
    memory_bytes: float
    gpus: tuple[str, ...] = ()  # names for CUDA_VISIBLE_DEVICES
    gpu_memory_bytes: float = float("inf")  # of one
    runs_per_gpu: int = 1
    slots: int | None = None  # the user's number of runs side by side, in place of counting cores


@dataclass(frozen=True)
class Placed:
    """A running run and the GPUs it has."""

    need: Need
    gpus: tuple[str, ...]


def place(machine: Machine, running: Sequence[Placed], need: Need) -> Placed | None:
    """A place for one more run, or None while there is none. A run alone is always placed if it has GPUs enough:
    estimates of cores and memory may be wrong, and the machine then does what it can."""
    gpus = free_gpus(machine, running, need)
    if len(gpus) < need.gpus:
        return None
    placed = Placed(need, gpus[: need.gpus])
    if not running:
        return placed
    cores = sum(item.need.cores for item in running) + need.cores
    enough_cores = cores <= machine.cores if machine.slots is None else len(running) < machine.slots
    memory = sum(item.need.memory_bytes for item in running) + need.memory_bytes
    return placed if enough_cores and memory <= machine.memory_bytes else None


def free_gpus(machine: Machine, running: Sequence[Placed], need: Need) -> tuple[str, ...]:
    """GPUs with room for the run, the emptiest first."""
    if need.gpus == 0:
        return ()
    users = {gpu: [item for item in running if gpu in item.gpus] for gpu in machine.gpus}

    def has_room(gpu: str) -> bool:
        used = sum(item.need.gpu_memory_bytes for item in users[gpu])
        is_free = not users[gpu]
        return is_free or (
            len(users[gpu]) < machine.runs_per_gpu and used + need.gpu_memory_bytes <= machine.gpu_memory_bytes
        )

    return tuple(sorted((gpu for gpu in machine.gpus if has_room(gpu)), key=lambda gpu: len(users[gpu])))


def machine_of(launcher: LauncherConfig, device_kind: str, gpu_memory_bytes: float | None) -> Machine:
    """This machine, as the launcher may use it. Raises HarnessError when GPUs are wanted and none is seen."""
    gpus = visible_gpus() if device_kind == "cuda" else ()
    if device_kind == "cuda" and len(gpus) < launcher.processes:
        raise HarnessError(
            f"launcher.processes={launcher.processes} on a GPU each, and this machine shows {len(gpus)} GPUs "
            "(nvidia-smi, CUDA_VISIBLE_DEVICES); choose device=cpu or another machine"
        )
    return Machine(
        cores=usable_cores(),
        memory_bytes=launcher.memory_bytes or SHARE_OF_MEMORY * usable_memory_bytes(),
        gpus=gpus,
        gpu_memory_bytes=gpu_memory_bytes or float("inf"),
        runs_per_gpu=launcher.runs_per_gpu,
        slots=launcher.slots,
    )


def need_of(cell: Cell) -> Need:
    """What one run of the plan takes on a node."""
    launcher, on_gpu = cell.config.launcher, cell.config.device.kind == "cuda"
    training = cell.cost.training_bytes(cell.config.recipe.batch_size, cell.precision)
    process = CUDA_PROCESS_BYTES if on_gpu else PROCESS_BYTES + training
    return Need(
        cores=launcher.threads * launcher.processes,
        gpus=launcher.processes if on_gpu else 0,
        memory_bytes=launcher.run_memory_bytes or float(process * launcher.processes),
        gpu_memory_bytes=float(training) if on_gpu else 0.0,
    )


def visible_gpus() -> tuple[str, ...]:
    """GPUs that may be used, as CUDA_VISIBLE_DEVICES names them; asks nvidia-smi, so that torch need not be loaded."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return tuple(name.strip() for name in chosen.split(",") if name.strip())
    if shutil.which("nvidia-smi") is None:
        return ()
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=60
    )
    return tuple(line.strip() for line in done.stdout.splitlines() if line.strip().isdigit())
