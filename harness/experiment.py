"""One cell from data to result.json: data + model -> train -> test -> transfer. The only file that knows them all.

`python -m harness.experiment RUN_FOLDER` executes what config.yaml in that folder says, and nothing else: the
configuration was frozen when the run was submitted. Exit codes: 0 finished, 1 failed, 74 failed on a full disk and
could not say so, 75 another process has it, 85 told to stop and made a checkpoint. Under torchrun or Slurm every rank
executes it; the first one writes.
"""

import errno
import os
import platform
import resource
import sys
import time
import traceback
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from harness import __version__
from harness.cell import Cell, resolve
from harness.config import TransferConfig
from harness.data.loader import distinct_origins
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.environment import describe, device_name, keep_freed_memory
from harness.errors import DatasetError, HarnessError
from harness.models.build import build_model
from harness.models.precision import attention_path
from harness.paths import data_root
from harness.results_schema import EXAFLOPS_PER_TPU_V3_CORE_DAY, SCHEMA_VERSION
from harness.run_folder import missing_columns, read_result, read_status, write_json, write_status
from harness.run_lock import lock
from harness.stored_transfer import why_again
from harness.submission import (
    EXIT_BUSY,
    EXIT_DISK_FULL,
    EXIT_FAILED,
    EXIT_REQUEUE,
    Frozen,
    is_complete,
    load_frozen,
    prune,
    transfer_file,
)
from harness.train import checkpoint
from harness.train.distributed import ALONE, Ranks, joined
from harness.train.loop import DivergedError, StoppedError, TrainJob, best_path, evaluate_split, train
from harness.train.prepare import is_out_of_memory
from harness.train.progress_line import ProgressLine
from harness.train.stochastic_depth import set_stochastic_depth
from harness.train.tracker import start_tracker
from harness.transfer.evaluate import evaluate_target
from harness.transfer.subject import Subject


def execute(folder: Path, stage: str = "all") -> int:
    """Run what the folder's config.yaml says, from where it stopped; `stage` train or transfer alone, or both.

    Returns the exit code; never raises for a failed run: status.json says what happened.
    """
    frozen = load_frozen(folder)
    try:
        with joined(frozen.config.loop.rank_timeout_seconds, frozen.config.device.kind) as ranks:
            return (
                execute_first(folder, frozen, ranks, stage)
                if ranks.first
                else execute_other(folder, frozen, ranks, stage)
            )
    except HarnessError as error:  # a connection that was never made, or broke where no run was going on
        print(f"harness: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:  # no room for the lock itself
        return EXIT_DISK_FULL if failure_reason(error) == "disk_full" else EXIT_FAILED


def execute_other(folder: Path, frozen: Frozen, ranks: Ranks, stage: str = "all") -> int:
    """The part of every rank but the first: training steps, evaluations and features, no results written."""
    if ranks.any(False):  # the first rank has nothing to do
        return 0
    try:
        run_cell(folder, frozen, {}, ranks, stage)
    except StoppedError:
        return EXIT_REQUEUE
    except Exception:
        traceback.print_exc()
        return EXIT_FAILED
    return 0


def execute_first(folder: Path, frozen: Frozen, ranks: Ranks, stage: str = "all") -> int:
    """The part of the first rank, or of the only one."""
    with lock(folder) as locked:
        trained = locked and read_result(folder, frozen.config_hash) is not None
        complete = locked and is_complete(folder, frozen.config_hash, frozen.transfer_id)  # by another, quicker process
        complete = complete or (trained and stage == "train")
        ranks.any(not locked or complete)
        if not locked or complete:
            return 0 if complete else EXIT_BUSY
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
            run_cell(folder, frozen, fixed, ranks, stage)
        except StoppedError as stop:
            print(f"{folder.name}: {stop}", flush=True)
            write_status(folder, "waiting", "interrupted", error=last_line(stop), **progress_of(folder), **fixed)
            return EXIT_REQUEUE
        except Exception as error:
            return report_failure(folder, error, fixed)
        return 0


def progress_of(folder: Path) -> dict[str, Any]:
    """How far a run says it is: kept in status.json when it stops."""
    status = read_status(folder)
    return {key: status[key] for key in ("samples_seen", "horizon_samples", "best_val_top1") if key in status}


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
    if is_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk_full"
    return "error"


def run_cell(folder: Path, frozen: Frozen, fixed: dict[str, Any], ranks: Ranks, stage: str = "all") -> None:
    """Train unless finished, then transfer unless done; result.json last, and checkpoints pruned to what is kept."""
    config = frozen.config
    prepare_torch(config.launcher.threads)
    dataset = open_dataset(dataset_folder(config.data, data_root()), allow_shell=config.data.allow_shell)
    cell = resolve(config, dataset)
    if cell.config_hash != frozen.config_hash:
        raise DatasetError(
            f"{folder.name}: the data set {dataset.name} or harness changed since this run was submitted; "
            "`harness run` makes a new run"
        )
    device = device_of(config.device.kind, ranks)
    environment = describe(device_name(device.type, ranks.local_rank)) if ranks.first else {}
    if ranks.first:
        write_json(folder / "environment.json", environment)
    result = read_result(folder, cell.config_hash)
    with attention_path(cell.attention), closing(ProgressLine()) as line:
        job = make_job(folder, cell, dataset, device, fixed, ranks, line)
        columns: dict[str, Any] = {} if result else train_columns(job, cell)
        if stage != "train":
            subject = subject_of(folder, cell, dataset, device, ranks)
            run_transfer(folder, config.transfer, cell.transfer_id, subject, dataset)
        if not ranks.first:
            return
    if result is None:
        result = columns | closing_columns(cell, columns, environment, ranks, fixed)
        absent = missing_columns(result)
        assert not absent, f"result lacks {absent}"
        write_json(folder / "result.json", result)
    prune(folder, config.keep)
    write_status(folder, "finished", **fixed, samples_seen=result["samples_seen"], horizon_samples=cell.horizon_samples)


def prepare_torch(threads: int) -> None:
    """What makes equal runs equal, bit for bit on a CPU."""
    keep_freed_memory()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # a debugging aid that costs a tenth of a small step


def device_of(kind: str, ranks: Ranks) -> torch.device:
    """The device of this rank."""
    return torch.device(kind, ranks.local_rank) if kind == "cuda" else torch.device(kind)


def make_job(
    folder: Path,
    cell: Cell,
    dataset: Dataset,
    device: torch.device,
    fixed: dict[str, Any],
    ranks: Ranks,
    line: ProgressLine,
) -> TrainJob:
    """The training job of a cell, network freshly initialised by its seed."""
    config = cell.config

    def heartbeat(**report: Any) -> None:
        if ranks.first:
            write_status(folder, "running", **fixed, **report)
            line.show(report)

    peak = config.device.peak_flops_bf16 if cell.precision == "bf16" else config.device.peak_flops_fp32
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
        order=config.order,
        patience=config.patience,
        loop=config.loop,
        ranks=ranks,
        flops_per_image=cell.cost.training_flops_per_image,
        peak_flops=(peak or 0.0) * ranks.count,
        heartbeat=heartbeat,
    )


def initial_model(cell: Cell, dataset: Dataset) -> nn.Module:
    """The network as it is before training: a function of the configuration and the seed."""
    torch.manual_seed(cell.config.seed)
    model = cell.config.model
    if model.vit is not None and cell.config.recipe.dropout:
        model = replace(model, vit=replace(model.vit, dropout=cell.config.recipe.dropout))
    built = build_model(model, dataset.num_classes, dataset.channels)
    set_stochastic_depth(built, cell.config.recipe.stochastic_depth)
    return built


def train_columns(job: TrainJob, cell: Cell) -> dict[str, Any]:
    """Train to the horizon, test the best checkpoint, and return the columns of `runs` that follow from it."""
    with start_tracker(cell.config, cell.run_id, job.folder, job.ranks.first) as job.mirror:
        progress = train(job)
    trained_at, cpu_at = time.perf_counter(), time.process_time()
    final_digest = checkpoint.parameters_sha256(job.model)
    if not job.ranks.first:
        return {}
    checkpoint.load_model(job.model, checkpoint.load(best_path(job.folder))[0])
    test = evaluate_split(job, "test", ranks=ALONE)
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
        "device_seconds_train": progress.device_seconds * job.ranks.count,
        "device_seconds_total": (progress.total_seconds + time.perf_counter() - trained_at) * job.ranks.count,
        "cpu_seconds": progress.cpu_seconds + time.process_time() - cpu_at,
        "images_per_second": progress.samples_seen / progress.device_seconds,
    }


def closing_columns(
    cell: Cell, columns: dict[str, Any], environment: dict[str, Any], ranks: Ranks, fixed: dict[str, Any]
) -> dict[str, Any]:
    """Everything else in a row of `runs`: what the cell is, and what it ran on."""
    config = cell.config
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
        "device_kind": environment["device_kind"],
        "device_count": ranks.count,
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


RESTORE = "put a copy of it back; or delete result.json and checkpoints/, and `harness run` makes both again"
OF_BEST = {"samples_seen": "samples_seen_at_best", "val_top1": "best_val_top1", "val_loss": "val_loss_at_best"}


def subject_of(folder: Path, cell: Cell, dataset: Dataset, device: torch.device, ranks: Ranks) -> Subject:
    """A run's best network, and the one it began as, to be transferred. Both raise HarnessError for a wrong file."""

    def trained() -> checkpoint.Tensors:
        tensors, best = checkpoint.load(best_path(folder), RESTORE)
        result = read_result(folder) or {}  # none while the run itself transfers
        said = {name: result[column] for name, column in OF_BEST.items() if result.get(column) is not None}
        if any(repr(best.get(name)) != repr(value) for name, value in said.items()):  # of NaN too
            raise HarnessError(f"{best_path(folder)}: another run's checkpoint, by its validation result; {RESTORE}")
        return {name[len("model/") :]: tensor for name, tensor in tensors.items()}

    return Subject(
        config=cell.config.model,
        num_classes=dataset.num_classes,
        channels=dataset.channels,
        trained=trained,
        untrained=lambda: initial_model(cell, dataset).state_dict(),
        precision=cell.precision,
        attention=cell.attention,
        device=device,
        loop=cell.config.loop,
        ranks=ranks,
    )


def run_transfer(
    folder: Path, config: TransferConfig, transfer_id: str, subject: Subject, pretraining: Dataset | None
) -> None:
    """Evaluate a target by a protocol, unless its file is already there, whole, and of the images as they are."""
    path = transfer_file(folder, transfer_id)
    if path.is_dir():
        raise HarnessError(f"{path}: a folder where the result is to be written; move it away")
    reason = why_again(path) if subject.ranks.first else None
    if reason and path.exists():
        print(f"warning: {path}: {reason}; evaluated again", flush=True)
    if not subject.ranks.any(reason is not None):
        return
    content = evaluate_target(config, subject, pretraining, path.with_suffix(".work"))
    if subject.ranks.first:
        write_json(path, {"transfer_id": transfer_id, "config": asdict(config), **content})


def utc_now() -> str:
    """ISO time in UTC, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def last_line(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]


if __name__ == "__main__":
    sys.exit(execute(Path(sys.argv[1]), *sys.argv[2:3]))
