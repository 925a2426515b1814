"""`harness train`: one run, as a Hydra application (overrides, --cfg job, --multirun, tab completion)."""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig

from harness.compose import compose, search_path, to_config
from harness.config import TrainConfig, register_schema
from harness.errors import HarnessError
from harness.paths import conf_dir, user_config_dir


def train_command(arguments: list[str]) -> int:
    """Compose and run. Plain overrides are composed here, so that mistakes get near matches; flags go to Hydra."""
    if not any(word.startswith("-") for word in arguments):
        return run_one(compose(arguments))
    register_schema()
    search_path()  # raises when the user's folder is not there
    folder = [f"--config-dir={user_config_dir()}"] if user_config_dir() else []
    overrides = [word for word in arguments if "=" in word and not word.startswith("-")]
    flags = [word for word in arguments if word not in overrides]
    sys.argv = ["harness train", *folder, *flags, *overrides]  # Hydra itself takes overrides in one place alone
    hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="train")(hydra_main)()
    return 0


def hydra_main(raw: DictConfig) -> None:
    """What Hydra calls for every job, and Hydra's launchers too."""
    code = run_one(to_config(raw))
    if code:
        raise HarnessError(f"run failed with exit code {code}")


def run_one(config: TrainConfig) -> int:
    """Train one cell in this process and print what came out. A finished run is shown, not trained again."""
    from harness.cell import resolve  # torch comes with some of these; completion and --cfg do without
    from harness.data.manifest import dataset_folder, open_dataset
    from harness.experiment import execute
    from harness.paths import data_root, runs_root
    from harness.run_folder import study_folder
    from harness.submission import is_complete, submit

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
    from harness.run_folder import read_result

    result = read_result(folder)
    assert result is not None
    for name in ("best_val_top1", "test_top1", "train_top1_at_best"):
        print(f"  {name:22s} {100 * result[name]:.2f} %")
    print(f"  {'images_per_second':22s} {result['images_per_second']:,.0f}")
    print(f"  {folder / 'result.json'}")
