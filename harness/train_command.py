"""`harness train`: one run, as a Hydra application (overrides, --cfg job, --multirun, tab completion)."""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from harness.cell import resolve
from harness.compose import compose, to_config
from harness.config import TrainConfig, register_schema
from harness.data.manifest import dataset_folder, open_dataset
from harness.errors import HarnessError
from harness.experiment import execute
from harness.paths import conf_dir, data_root, runs_root
from harness.run_folder import read_result, study_folder
from harness.submission import is_complete, submit


def train_command(arguments: list[str]) -> int:
    """Compose and run. Plain overrides are composed here, so that mistakes get near matches; flags go to Hydra."""
    if not any(word.startswith("-") for word in arguments):
        return run_one(compose(arguments))
    register_schema()
    sys.argv = ["harness train", *arguments]
    hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="train")(hydra_main)()
    return 0


def hydra_main(raw: DictConfig) -> None:
    """What Hydra calls for every job, and Hydra's launchers too."""
    code = run_one(to_config(raw))
    if code:
        raise HarnessError(f"run failed with exit code {code}")


def run_one(config: TrainConfig) -> int:
    """Train one cell in this process and print what came out. A finished run is shown, not trained again."""
    dataset = open_dataset(dataset_folder(config.data, data_root()), allow_shell=config.data.allow_shell)
    cell = resolve(config, dataset)
    folder = study_folder(runs_root(), config.study, dataset.name) / cell.run_id
    if is_complete(folder, cell.config_hash, cell.transfer_id):
        print(f"already finished: {folder}")
    else:
        submit(cell, folder.parent)
        print(f"{cell.run_id}: {cell.horizon_samples:,} samples, {cell.exaflops:.3g} exaFLOPs, {cell.precision}")
        code = execute(folder)
        if code:
            print(f"failed (exit code {code}); see {folder / 'status.json'}", file=sys.stderr)
            return code
    show(folder)
    return 0


def show(folder: Path) -> None:
    """The numbers that people look for first."""
    result = read_result(folder)
    assert result is not None
    for name in ("best_val_top1", "test_top1", "train_top1_at_best"):
        print(f"  {name:22s} {100 * result[name]:.2f} %")
    print(f"  {'images_per_second':22s} {result['images_per_second']:,.0f}")
    print(f"  {folder / 'result.json'}")
