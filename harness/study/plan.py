"""From a study file to definite cells, and what they will cost. Nothing is started here."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.cell import Cell, resolve, study_folder
from harness.compose import compose
from harness.config import TrainConfig
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.subset import parse_size
from harness.errors import ConfigError
from harness.paths import data_root, runs_root
from harness.run_folder import write_json
from harness.study import spec


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


def study_name(text: str) -> str:
    """'sweeps/mine.yaml' and 'mine' are the study `mine`."""
    return Path(text).stem if text.endswith((".yaml", ".yml")) else text


def make(name: str, overrides: list[str]) -> Plan:
    """Compose and resolve every cell; each combination of model and options is composed once, not once a cell.

    Raises ConfigError or DatasetError before anything is started.
    """
    study = spec.load(name)
    coordinates = spec.coordinates(study)
    wanted_coordinates, others = spec.narrow(coordinates, overrides)
    base = [f"data={study.data}", f"recipe={study.recipe}", f"transfer={study.transfer}", *study.overrides, *others]
    configs: dict[str, TrainConfig] = {}
    for model in dict.fromkeys(cell.model for cell in coordinates):
        configs[model] = compose([*base, f"model={model}"])
    first = next(iter(configs.values()))
    dataset = open_dataset(dataset_folder(first.data, data_root()))
    available = dataset.splits["train"].samples
    cells: dict[spec.Coordinates, Cell] = {}
    skipped: dict[str, str] = {}
    for cell in coordinates:
        is_share = cell.subset.endswith("%")
        if parse_size(cell.subset, available if is_share else None) > available:
            skipped[cell.subset] = f"{dataset.name} has {available:,} training images"
            continue
        config = replace(
            configs[cell.model],
            subset=cell.subset,
            seed=cell.seed,
            draw=spec.draw_of(study, cell),
            study=study_name(name),
        )
        cells[cell] = resolve(config, dataset)
    if not cells:
        raise ConfigError(f"{name}: every subset is larger than {dataset.name} ({available:,} training images)")
    return Plan(
        name=study_name(name),
        study=study,
        dataset=dataset,
        cells=list(cells.values()),
        selected=[cells[cell] for cell in wanted_coordinates if cell in cells],
        skipped=[{"subset": size, "reason": reason} for size, reason in skipped.items()],
        folder=study_folder(runs_root(), study_name(name), dataset.name),
    )


def device_seconds(cell: Cell) -> float:
    """Estimated seconds of one device in training steps, at the device's stated utilisation of its peak."""
    device = cell.config.device
    peak = device.peak_flops_bf16 if cell.precision == "bf16" else device.peak_flops_fp32
    if peak is None:
        raise ConfigError(f"device={device.name}: peak_flops_bf16 is not given in conf/device/{device.name}.yaml")
    return cell.exaflops * 1e18 / (peak * device.utilisation)


def rows(plan: Plan) -> list[dict[str, Any]]:
    """One row a run of the whole study: what it is and what it will cost."""
    table = []
    for cell in plan.cells:
        seconds = device_seconds(cell)
        device = cell.config.device
        table.append(
            {
                "run_id": cell.run_id,
                "model": cell.config.model.name,
                "family": cell.config.model.family,
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
                "cost": seconds / 3600 * device.price_per_hour,
                "currency": device.currency,
            }
        )
    return table


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
