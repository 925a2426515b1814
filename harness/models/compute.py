"""What a model costs, without importing torch when it is known already.

Counts are cached by everything that decides them, one small JSON file each: a plan of 1,000 runs counts each
model once on a machine. Those of the models in conf/ ship with harness (shipped_counts.json, made by
`python -m harness.models.ship_counts`; a test counts them again): importing torch and timm alone takes seconds and
most of a gigabyte, which a look at ViT-H/14 need not cost.
"""

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.paths import cache_root
from harness.run_folder import read_json, write_json

CONVENTIONS = ("executed", "paper")

SHIPPED = Path(__file__).parent / "shipped_counts.json"

_CACHE_VERSION = 1  # raise when the meaning of a field of Cost changes


@dataclass(frozen=True)
class Cost:
    """What one image costs. Shares are of the forward MACs; a MAC is 2 FLOPs."""

    parameters: int  # trainable, head included
    forward_macs_per_image: int
    training_flops_per_image: int  # forward and backward
    attention_share: float  # query-key and attention-value products, the only batched matrix products
    head_share: float  # the classifier, with the hidden layer of the paper's pre-training head
    activation_bytes_per_image: int  # kept for the backward pass in fp32 with fused attention
    convention: str  # executed | paper

    def exaflops(self, samples_seen: float) -> float:
        """exaFLOPs (1e18) of training on `samples_seen` images."""
        return self.training_flops_per_image * samples_seen / 1e18

    def training_bytes(self, batch_size: int, precision: str = "fp32") -> int:
        """Estimated memory of a training step with AdamW on one device, in bytes.

        Weights, gradients and two moments in fp32 (16 bytes a parameter) and the activations of the batch, of
        which bf16 autocast keeps 0.50 (ResNet) to 0.56 (ViT) of the bytes, measured. Workspaces and the
        fragmentation of the allocator come on top.
        """
        share = 0.56 if precision == "bf16" else 1.0
        return 16 * self.parameters + round(share * self.activation_bytes_per_image * batch_size)


def count(
    cfg: ModelConfig, num_classes: int, channels: int, convention: str = "executed", shipped: bool = True
) -> Cost:
    """Count `cfg` with a head of `num_classes` (0 = none) on `channels` x size x size images.

    Args:
        convention: 'executed' counts what runs; 'paper' leaves out multiplications with the zero padding of
            convolutions, as XLA's cost analysis does: it fits the paper's Table 6 best (ResNets: 3-4 % less).
        shipped: whether a count that came with harness will do.

    Raises:
        ConfigError: `cfg` cannot be built, or the convention is unknown.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention={convention!r} is unknown; use one of {', '.join(CONVENTIONS)}.")
    if shipped and (values := _shipped_counts().get(count_key(cfg, num_classes, channels, convention))):
        return Cost(**values)
    cost = _read(_path(cfg, num_classes, channels, convention))
    if cost is None:
        from harness.models.counting import count_afresh  # imports torch

        for counted in count_afresh(cfg, num_classes, channels).values():
            _write(_path(cfg, num_classes, channels, counted.convention), counted)
            cost = counted if counted.convention == convention else cost
        assert cost is not None
    return cost


def _what(cfg: ModelConfig, num_classes: int, channels: int, convention: str) -> list[Any]:
    """All that decides a count; labels do not, except that timm's models are known by name."""
    model = asdict(cfg)
    del model["family"], model["head_bias"]
    if not cfg.timm:
        del model["name"]
    return [_CACHE_VERSION, model, num_classes, channels, convention]


def count_key(cfg: ModelConfig, num_classes: int, channels: int, convention: str) -> str:
    """The key of a count in shipped_counts.json."""
    return _digest(_what(cfg, num_classes, channels, convention))


def _digest(what: list[Any]) -> str:
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


@cache
def _shipped_counts() -> dict[str, dict[str, Any]]:
    return json.loads(SHIPPED.read_text()) if SHIPPED.exists() else {}


def _path(cfg: ModelConfig, num_classes: int, channels: int, convention: str) -> Path:
    """One file a count and version of torch and timm."""
    return cache_root() / "costs" / f"{_digest([*_what(cfg, num_classes, channels, convention), _versions()])}.json"


@cache
def _versions() -> dict[str, str]:
    """Of the packages that decide a count; looked up once, since finding them reads the file system."""
    return {package: version(package) for package in ("torch", "timm")}


def _read(path: Path) -> Cost | None:
    """The cached cost, or None when there is none or the file is damaged (it is then counted again)."""
    values = read_json(path) or {}
    kinds = {field.name: field.type for field in fields(Cost)}
    whole = values.keys() == kinds.keys() and all(type(value) is kinds[name] for name, value in values.items())
    return Cost(**values) if whole else None


def _write(path: Path, cost: Cost) -> None:
    """A cache folder that cannot be written costs time, not the answer."""
    with suppress(OSError):
        write_json(path, asdict(cost), durable=False)
