"""From a study file to definite cells, and what they will cost. Nothing is started here."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.cell import Cell, resolve
from harness.compose import compose
from harness.config import LauncherConfig, TrainConfig
from harness.data.declared import open_or_declare
from harness.data.manifest import Dataset
from harness.data.subset import parse_size
from harness.errors import ConfigError
from harness.host import usable_cores
from harness.models.devices import sustained_flops
from harness.paths import data_root, runs_root
from harness.run_folder import study_folder, write_json
from harness.study import spec
from harness.study.calibrate import calibration_key
from harness.study.calibrate import read as read_calibration
from harness.submission import is_complete

Calibration = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """An instance of a study: its cells on one data set, and the sizes that the set cannot give.

    `selected` are the cells that the command line narrowed the study to; all of them without narrowing.
    """

    name: str
    study: spec.Study
    dataset: Dataset
    cells: list[Cell]
    selected: list[Cell]
    skipped: list[dict[str, Any]]  # {"subset", "reason"}
    folder: Path


def make(name: str, overrides: list[str]) -> Plan:
    """Compose and resolve every cell; each combination of model and options is composed once, not once a cell.

    Raises ConfigError or DatasetError before anything is started.
    """
    study = spec.load(name)
    coordinates = spec.coordinates(study)
    wanted_coordinates, others = spec.narrow(coordinates, overrides)
    base = [f"data={study.data}", f"transfer={study.transfer}", *study.overrides]
    configs: dict[tuple[str, ...], TrainConfig] = {}
    for key in dict.fromkeys((cell.model, cell.recipe, *cell.overrides) for cell in coordinates):
        model, recipe, *block = key
        configs[key] = compose([*base, f"model={model}", f"recipe={recipe}", *block, *others])
    first = next(iter(configs.values()))
    dataset = open_or_declare(first.data, data_root())
    available = dataset.splits["train"].samples
    cells: dict[spec.Coordinates, Cell] = {}
    skipped: dict[str, str] = {}
    for cell in coordinates:
        is_share = cell.subset.endswith("%")
        if parse_size(cell.subset, available if is_share else None) > available:
            skipped[cell.subset] = f"{dataset.name} has {available:,} training images"
            continue
        config = replace(
            configs[(cell.model, cell.recipe, *cell.overrides)],
            subset=cell.subset,
            seed=cell.seed,
            draw=spec.draw_of(study, cell),
            study=spec.study_name(name),
        )
        cells[cell] = resolve(config, dataset)
    refuse_equal(cells)
    if not cells:
        raise ConfigError(
            f"{name}: every subset is larger than {dataset.name} ({available:,} training images); copy the study file, "
            "name sizes of your own in it (subset: [10%, 30%, 100%]) and give its path in place of the name"
        )
    selected = [cells[cell] for cell in wanted_coordinates if cell in cells]
    if not selected:
        left_out = "; ".join(f"{size}: {reason}" for size, reason in skipped.items())
        raise ConfigError(f"{name}: nothing is left of the study ({left_out})")
    return Plan(
        name=spec.study_name(name),
        study=study,
        dataset=dataset,
        cells=list(cells.values()),
        selected=selected,
        skipped=[{"subset": size, "reason": reason} for size, reason in skipped.items()],
        folder=study_folder(runs_root(), spec.study_name(name), dataset.name),
    )


def refuse_equal(cells: dict[spec.Coordinates, Cell]) -> None:
    """Raise ConfigError when two cells are one run: `1k` and `1000` are the same size."""
    seen: dict[str, spec.Coordinates] = {}
    for coordinates, cell in cells.items():
        other = seen.setdefault(cell.run_id, coordinates)
        if other != coordinates:
            raise ConfigError(
                f"subset: {other.subset} and {coordinates.subset} are the same {cell.subset_samples:,} images; "
                "every table would count their runs twice"
            )


def slots_of(launcher: LauncherConfig) -> int:
    """Runs side by side: as the configuration says, else so that every thread has a core."""
    return launcher.slots or max(1, usable_cores() // (launcher.threads * launcher.processes))


def device_seconds(cell: Cell, calibration: Calibration) -> tuple[float, str]:
    """Estimated seconds of one device in training steps, and what the estimate rests on.

    'measured' where `harness calibrate` has timed this kind of step on this machine, else 'assumed': the device's
    stated utilisation of its peak.
    """
    timed = calibration.get(calibration_key(cell))
    if timed is not None:
        return cell.horizon_samples / float(timed["images_per_second"]), "measured"
    return cell.exaflops * 1e18 / sustained_flops(cell.config.device, cell.precision), "assumed"


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One row a run of the whole study: what it is and what it will cost."""
    calibration = read_calibration(runs_root())
    return [row(cell, plan, calibration) for cell in plan.cells]


def row(cell: Cell, plan: Plan, calibration: Calibration) -> dict[str, Any]:
    """One run of the plan."""
    seconds, basis = device_seconds(cell, calibration)
    device = cell.config.device
    finished = is_complete(plan.folder / cell.run_id, cell.config_hash, cell.transfer_id)
    return {
        "run_id": cell.run_id,
        "model": cell.config.model.name,
        "family": cell.config.model.family,
        "recipe": cell.config.recipe.name,
        "subset_samples": cell.subset_samples,
        "seed": cell.config.seed,
        "draw": cell.config.draw,
        "samples_seen": cell.horizon_samples,
        "epochs_of_subset": cell.horizon_samples / cell.subset_samples,
        "steps": cell.horizon_samples // cell.config.recipe.batch_size,
        "parameters": cell.cost.parameters,
        "forward_macs_per_image": cell.cost.forward_macs_per_image,
        "training_flops_per_image": cell.cost.training_flops_per_image,
        "exaflops": cell.exaflops,
        "precision": cell.precision,
        "attention": cell.attention,
        "device_seconds": seconds,
        "device_days": seconds / 86_400,
        "time_basis": basis,
        "cost": seconds / 3600 * device.price_per_hour,
        "currency": device.currency,
        "peak_memory_bytes": cell.cost.training_bytes(cell.config.recipe.batch_size, cell.precision),
        "device_memory_bytes": device.memory_bytes,
        "checkpoint_bytes": checkpoint_bytes(cell),
        "finished": finished,
    }


def checkpoint_bytes(cell: Cell) -> int:
    """Disk for a run's two checkpoints: network and optimiser state (last), network (best), 4 bytes a number."""
    states = {"adamw": 2, "adam": 2, "sgd": 1}[cell.config.recipe.optimizer]
    return cell.cost.parameters * 4 * (1 + states + 1)


def check_budget(plan: Plan) -> None:
    """Raise ConfigError naming the excess when the selected runs that are not finished cost more than the budget."""
    budget = plan.cells[0].config.budget
    if budget.exaflops is None and budget.device_days is None:
        return
    selected = {cell.run_id for cell in plan.selected}
    due = [row for row in rows(plan) if row["run_id"] in selected and not row["finished"]]
    for name, limit in (("exaflops", budget.exaflops), ("device_days", budget.device_days)):
        total = sum(row[name] for row in due)
        if limit is not None and total > limit:
            raise ConfigError(
                f"budget.{name}={limit:g}: the {len(due)} runs to come would take {total:.4g}, "
                f"{total - limit:.4g} too much; narrow the study or raise the budget"
            )


def record(plan: Plan) -> None:
    """Write plan.json into the study's folder: what `status`, `results` and `report` count against.

    It holds the whole study also when a command was narrowed to a part of it.
    """
    path = plan.folder / "plan.json"
    first = plan.cells[0].config
    write_json(
        path,
        spec.describe(plan.study, plan.name)
        | {
            "dataset": plan.dataset.name,
            "dataset_title": plan.dataset.title,
            "dataset_samples": plan.dataset.splits["train"].samples,
            "device": first.device.name,
            "skipped_sizes": plan.skipped,
            "runs": rows(plan),
        },
    )
