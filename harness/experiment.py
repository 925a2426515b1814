"""One cell from data to result.json: data + model -> train -> test -> transfer. The only file that knows them all.

`python -m harness.experiment RUN_FOLDER` executes what config.yaml in that folder says, and nothing else: the
configuration was frozen when the run was submitted. Exit codes: 0 finished, 1 failed, 74 failed on a full disk and
could not say so, 75 another process has it, 85 stopped after a checkpoint.
"""

import errno
import os
import platform
import resource
import sys
import time
import traceback
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from harness import __version__
from harness.cell import Cell, resolve
from harness.data.loader import distinct_origins
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.on_demand import open_or_pack
from harness.environment import describe, processor_name
from harness.errors import DatasetError
from harness.models.build import build_model
from harness.models.precision import attention_path
from harness.paths import data_root
from harness.results_schema import SCHEMA_VERSION
from harness.run_folder import missing_columns, read_result, read_status, write_json, write_status
from harness.run_lock import lock
from harness.submission import (
    EXIT_BUSY,
    EXIT_DISK_FULL,
    EXIT_FAILED,
    Frozen,
    is_complete,
    load_frozen,
    prune,
    transfer_file,
)
from harness.train import checkpoint
from harness.train.loop import DivergedError, TrainJob, best_path, evaluate_split, train
from harness.transfer.evaluate import fewshot_rows

# The paper's own rate, to express compute in its unit: ViT-L/16 on JFT-300M, 1567 exaFLOPs (Table 6, 14 epochs)
# in 680 TPUv3-core-days (Table 2).
EXAFLOPS_PER_TPU_V3_CORE_DAY = 1567 / 680


def execute(folder: Path, stage: str = "all") -> int:
    """Run what the folder's config.yaml says, from where it stopped; `stage` train or transfer alone, or both.

    Returns the exit code; never raises for a failed run: status.json says what happened.
    """
    try:
        with lock(folder) as locked:
            return execute_locked(folder, stage) if locked else EXIT_BUSY
    except OSError as error:  # no room for the lock itself
        return EXIT_DISK_FULL if failure_reason(error) == "disk_full" else EXIT_FAILED


def execute_locked(folder: Path, stage: str) -> int:
    """`execute` by the one process that has the run."""
    frozen = load_frozen(folder)
    trained = read_result(folder, frozen.config_hash) is not None
    if is_complete(folder, frozen.config_hash, frozen.transfer_id) or (trained and stage == "train"):
        return 0  # another process was quicker
    before = read_status(folder)
    fixed: dict[str, Any] = {
        "attempt": int(before.get("attempt") or 0) + 1,
        "failures": int(before.get("failures") or 0),
        "started_at": str(before.get("started_at") or utc_now()),
        "host": platform.node(),
        "pid": os.getpid(),
    }
    try:
        write_status(folder, "running", **fixed)
        run_cell(folder, frozen, fixed, stage)
    except Exception as error:
        return report_failure(folder, error, fixed)
    return 0


def report_failure(folder: Path, error: Exception, fixed: dict[str, Any]) -> int:
    """Say in log and status.json why a run failed, as far as there is room on the disk. Returns the exit code."""
    failed = {**fixed, "failures": fixed["failures"] + 1}
    try:
        traceback.print_exception(error)
        write_status(folder, "failed", failure_reason(error), error=last_line(error), **failed)
    except OSError:
        return EXIT_DISK_FULL if failure_reason(error) == "disk_full" else EXIT_FAILED
    return EXIT_FAILED


def execute_logged(folder: str, environment: dict[str, str]) -> None:
    """`execute` as the body of a launcher's process: everything printed, by C code too, goes to log.txt."""
    os.environ.update(environment)
    with open(Path(folder) / "log.txt", "ab", buffering=0) as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    sys.exit(execute(Path(folder)))


def failure_reason(error: Exception) -> str:
    """diverged | out_of_memory | disk_full | error."""
    if isinstance(error, DivergedError):
        return "diverged"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return "out_of_memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    return "error"


def run_cell(folder: Path, frozen: Frozen, fixed: dict[str, Any], stage: str = "all") -> None:
    """Train unless finished, then transfer unless done; result.json last, and checkpoints pruned to what is kept."""
    config = frozen.config
    torch.set_num_threads(config.launcher.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a debugging aid that costs a tenth of a small step
    dataset = open_dataset(dataset_folder(config.data, data_root()), allow_shell=config.data.allow_shell)
    cell = resolve(config, dataset)
    if cell.config_hash != frozen.config_hash:
        raise DatasetError(
            f"{folder.name}: the data set {dataset.name} or harness changed since this run was submitted; "
            "`harness run` makes a new run"
        )
    device = torch.device(config.device.kind)
    write_json(folder / "environment.json", describe(device_kind(device)))
    result = read_result(folder, cell.config_hash)
    with attention_path(cell.attention):
        job = make_job(folder, cell, dataset, device, fixed)
        columns: dict[str, Any] = {} if result else train_columns(job, cell)
        if stage != "train":
            run_transfer(folder, cell, job)
    if result is None:
        result = columns | closing_columns(cell, columns, device, fixed)
        absent = missing_columns(result)
        assert not absent, f"result lacks {absent}"
        write_json(folder / "result.json", result)
    prune(folder, config.keep)
    write_status(folder, "finished", **fixed, samples_seen=cell.horizon_samples, horizon_samples=cell.horizon_samples)


def make_job(folder: Path, cell: Cell, dataset: Dataset, device: torch.device, fixed: dict[str, Any]) -> TrainJob:
    """The training job of a cell, network freshly initialised by its seed."""
    config = cell.config
    return TrainJob(
        model=initial_model(cell, dataset),
        dataset=dataset,
        window=cell.window,
        recipe=config.recipe,
        seed=config.seed,
        image_size=config.model.image_size,
        channels=dataset.channels,
        precision=cell.precision,
        device=device,
        folder=folder,
        heartbeat=lambda **progress: write_status(folder, "running", **fixed, **progress),
    )


def initial_model(cell: Cell, dataset: Dataset) -> nn.Module:
    """The network as it is before training: a function of the configuration and the seed."""
    torch.manual_seed(cell.config.seed)
    model = cell.config.model
    if model.vit is not None and cell.config.recipe.dropout:
        model = replace(model, vit=replace(model.vit, dropout=cell.config.recipe.dropout))
    return build_model(model, dataset.num_classes, dataset.channels)


def train_columns(job: TrainJob, cell: Cell) -> dict[str, Any]:
    """Train to the horizon, test the best checkpoint, and return the columns of `runs` that follow from it."""
    progress = train(job)
    trained_at, cpu_at = time.perf_counter(), time.process_time()
    final_digest = checkpoint.parameters_sha256(job.model)
    checkpoint.load_model(job.model, checkpoint.load(best_path(job.folder))[0])
    test = evaluate_split(job, "test")
    best, final = progress.best, progress.final
    assert best is not None
    assert final is not None
    flops = cell.cost.training_flops_per_image
    return {
        "samples_seen": progress.samples_seen,
        "samples_seen_at_best": best["samples_seen"],
        "exaflops_spent": flops * progress.samples_seen / 1e18,
        "exaflops_at_best": flops * best["samples_seen"] / 1e18,
        "best_val_top1": best["val_top1"],
        "test_top1": test.top1,
        "train_top1_at_best": best["train_top1"],
        "train_top1_final": final["train_top1"],
        "val_top1_final": final["val_top1"],
        "val_loss_at_best": best["val_loss"],
        "val_loss_final": final["val_loss"],
        "train_loss_at_best": best["train_loss"],
        "train_loss_final": final["train_loss"],
        "train_eval_samples": final["train_eval_samples"],
        "val_samples": final["val_samples"],
        "test_samples": test.samples,
        "distinct_origins": distinct_origins(job.dataset, job.window),
        "parameters_sha256": final_digest,
        "device_seconds_train": progress.device_seconds,
        "device_seconds_total": progress.total_seconds + time.perf_counter() - trained_at,
        "cpu_seconds": progress.cpu_seconds + time.process_time() - cpu_at,
        "images_per_second": progress.samples_seen / progress.device_seconds,
    }


def closing_columns(cell: Cell, columns: dict[str, Any], device: torch.device, fixed: dict[str, Any]) -> dict[str, Any]:
    """Everything else in a row of `runs`: what the cell is, and what it ran on."""
    config = cell.config
    environment = describe(device_kind(device))
    return {
        "schema_version": SCHEMA_VERSION,
        "config_hash": cell.config_hash,
        "run_id": cell.run_id,
        "study": config.study,
        "state": "finished",
        "reason": None,
        "dataset": config.data.name,
        "dataset_digest": cell.identity["dataset_digest"],
        "num_classes": cell.num_classes,
        "model": config.model.name,
        "family": config.model.family,
        "recipe": config.recipe.name,
        "subset_samples": cell.subset_samples,
        "draw": config.draw,
        "seed": config.seed,
        "parameters": cell.cost.parameters,
        "forward_macs_per_image": cell.cost.forward_macs_per_image,
        "training_flops_per_image": cell.cost.training_flops_per_image,
        "tpu_v3_core_days_equivalent": columns["exaflops_spent"] / EXAFLOPS_PER_TPU_V3_CORE_DAY,
        "precision": cell.precision,
        "attention": cell.attention,
        "device_kind": device_kind(device),
        "device_count": 1,
        "threads": config.launcher.threads,
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "attempt": fixed["attempt"],
        "host": fixed["host"],
        "started_at": fixed["started_at"],
        "finished_at": utc_now(),
        "harness_version": __version__,
        "git_sha": environment["git_sha"],
        "torch_version": torch.__version__,
        "timm_version": timm.__version__,
    }


def run_transfer(folder: Path, cell: Cell, job: TrainJob) -> None:
    """Evaluate the target from the best checkpoint, unless this protocol's file is already there."""
    path = transfer_file(folder, cell.transfer_id)
    if path.exists():
        return
    config = cell.config
    target = open_or_pack(config.transfer.data)
    checkpoint.load_model(job.model, checkpoint.load(best_path(folder))[0])
    rows = fewshot_rows(
        config.transfer,
        target,
        job.model,
        lambda: initial_model(cell, job.dataset),
        image_size=job.image_size,
        channels=job.channels,
        device=job.device,
        precision=job.precision,
    )
    write_json(path, {"transfer_id": cell.transfer_id, "config": asdict(config.transfer), "rows": rows})


def device_kind(device: torch.device) -> str:
    """The device as torch or the system names it."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor_name()


def utc_now() -> str:
    """ISO time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def last_line(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


if __name__ == "__main__":
    sys.exit(execute(Path(sys.argv[1]), *sys.argv[2:3]))
