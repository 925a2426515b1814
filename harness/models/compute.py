"""What a model costs, without importing torch when it is known already.

Counts are cached by everything that decides them, one small JSON file each: a plan of 1,000 runs counts each
model once on a machine.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile

from harness.config import ModelConfig
from harness.errors import ConfigError

CONVENTIONS = ("executed", "paper")

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


def count(cfg: ModelConfig, num_classes: int, channels: int, convention: str = "executed") -> Cost:
    """Count `cfg` with a head of `num_classes` (0 = none) on `channels` x size x size images.

    Args:
        convention: 'executed' counts what runs; 'paper' leaves out multiplications with the zero padding of
            convolutions, as XLA's cost analysis does: it fits the paper's Table 6 best (ResNets: 3-4 % less).

    Raises:
        ConfigError: `cfg` cannot be built, or the convention is unknown.
    """
    if convention not in CONVENTIONS:
        raise ConfigError(f"convention={convention!r} is unknown; use one of {', '.join(CONVENTIONS)}.")
    cost = _read(_path(cfg, num_classes, channels, convention))
    if cost is None:
        from harness.models.counting import count_afresh  # imports torch

        for counted in count_afresh(cfg, num_classes, channels).values():
            _write(_path(cfg, num_classes, channels, counted.convention), counted)
            cost = counted if counted.convention == convention else cost
        assert cost is not None
    return cost


def _cache_dir() -> Path:
    """$HARNESS_CACHE, else harness/ in the user's cache folder."""
    if folder := os.environ.get("HARNESS_CACHE"):
        return Path(folder) / "costs"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "harness" / "costs"


def _path(cfg: ModelConfig, num_classes: int, channels: int, convention: str) -> Path:
    """Named after the sha256 of what decides a count; labels do not, except that timm's models are known by name."""
    model = asdict(cfg)
    del model["family"], model["head_bias"]
    if not cfg.timm:
        del model["name"]
    what = [_CACHE_VERSION, _versions(), model, num_classes, channels, convention]
    return _cache_dir() / f"{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]}.json"


@lru_cache
def _versions() -> dict[str, str]:
    """Of the packages that decide a count; looked up once, since finding them reads the file system."""
    return {package: version(package) for package in ("torch", "timm")}


def _read(path: Path) -> Cost | None:
    """The cached cost, or None when there is none or the file is damaged (it is then counted again)."""
    try:
        values = json.loads(path.read_text())
        cost = Cost(**values)
    except (OSError, ValueError, TypeError):
        return None
    kinds = {field.name: field.type for field in fields(Cost)}
    return cost if all(type(value) is kinds[name] for name, value in values.items()) else None


def _write(path: Path, cost: Cost) -> None:
    """Atomically; a cache folder that cannot be written costs time, not the answer."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
            json.dump(asdict(cost), file)
        Path(file.name).replace(path)
    except OSError:
        return
