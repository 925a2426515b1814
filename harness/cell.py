"""A cell: one configuration made definite. What its result depends on is hashed, and the hash names its folder.

Hashed: the data set's digest, subset, draw, seed, model, recipe, precision, attention path, order and threads.
Not hashed: paths, devices, hosts, launchers. A transfer protocol has a hash of its own: changing it retrains nothing.
"""

from dataclasses import dataclass
from typing import Any

from harness.config import TrainConfig, TransferConfig, stated, transfer_identity, transfer_name
from harness.data.block_order import order_identity
from harness.data.manifest import Dataset
from harness.data.subset import Window, parse_size, window
from harness.errors import ConfigError
from harness.models.compute import Cost, count
from harness.models.devices import check_device
from harness.models.precision import resolve as resolve_precision
from harness.run_folder import identity_hash, run_id
from harness.train.schedule import check_recipe, total_steps
from harness.transfer.check import check_transfer

FORMAT_VERSION = 1  # of the identity; a new number makes every run new


@dataclass(frozen=True)
class Cell:
    """One run to be made, with nothing left to decide."""

    config: TrainConfig
    identity: dict[str, Any]
    config_hash: str
    run_id: str
    transfer_id: str
    num_classes: int
    subset_samples: int
    horizon_samples: int
    cost: Cost
    precision: str
    attention: str

    @property
    def window(self) -> Window:
        return window(self.identity["train_samples"], self.subset_samples, self.config.draw)

    @property
    def exaflops(self) -> float:
        """Compute of the full horizon."""
        return self.cost.training_flops_per_image * self.horizon_samples / 1e18


def resolve(config: TrainConfig, dataset: Dataset) -> Cell:
    """Decide sizes, precision and attention path by rule, check the recipe, and hash.

    Raises ConfigError for a subset larger than the training split and for values that cannot work.
    """
    train_samples = dataset.splits["train"].samples
    subset_samples = parse_size(config.subset, train_samples)
    horizon_samples = total_steps(config.recipe) * config.recipe.batch_size
    check_recipe(config.recipe)
    check_device(config.device)
    check_transfer(config.transfer)
    cost = count(config.model, dataset.num_classes, dataset.channels, config.convention)
    precision, attention = resolve_precision(
        config.device, cost, precision=config.precision, attention=config.attention
    )
    identity = {
        "format": FORMAT_VERSION,
        "dataset_digest": dataset.digest,
        "train_samples": train_samples,
        "subset_samples": subset_samples,
        "draw": config.draw,
        "seed": config.seed,
        "model": stated(config.model),
        "recipe": stated(config.recipe),
        "precision": precision,
        "attention": attention,
        "order": order_identity(config.order),
        "threads": config.launcher.threads,
    }
    if config.convention != "executed":  # younger than the published runs
        identity["convention"] = config.convention
    if config.patience:
        if config.study != "single":
            raise ConfigError(
                f"patience={config.patience}: ending early leaves the rate of small subsets un-annealed and biases "
                "their gap; it is for exploration with `harness train`, and a study refuses it"
            )
        identity["patience"] = config.patience
    config_hash = identity_hash(identity)
    name = f"{config.model.name}-{readable_size(subset_samples)}-s{config.seed}"
    return Cell(
        config=config,
        identity=identity,
        config_hash=config_hash,
        run_id=run_id(name, config_hash),
        transfer_id=transfer_id(config.transfer),
        num_classes=dataset.num_classes,
        subset_samples=subset_samples,
        horizon_samples=horizon_samples,
        cost=cost,
        precision=precision,
        attention=attention,
    )


def transfer_id(config: TransferConfig) -> str:
    """Name of a target and protocol's file: readable, with the hash of what changes its result."""
    return run_id(transfer_name(config), identity_hash(transfer_identity(config)))


def readable_size(samples: int) -> str:
    """300000 -> '300k', 9000000 -> '9M', 1234 -> '1234'."""
    for unit, factor in (("M", 10**6), ("k", 10**3)):
        if samples >= factor and samples % factor == 0:
            return f"{samples // factor}{unit}"
    return str(samples)
