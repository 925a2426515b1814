"""Stochastic depth (arXiv 1603.09382): residual branches are left out at random, deeper ones more often."""

from timm.layers import DropPath
from torch import nn

from harness.errors import ConfigError

BRANCHES = ("drop_path", "drop_path1", "drop_path2")  # as timm's blocks name the place


def set_stochastic_depth(model: nn.Module, rate: float) -> None:
    """Block i of n is skipped with chance rate x i / (n - 1) in training; draws from torch's generator.

    Raises ConfigError for a network whose blocks have no place for it.
    """
    if not rate:
        return
    blocks = [module for module in model.modules() if branches_of(module)]
    if not blocks:
        raise ConfigError(f"recipe.stochastic_depth={rate}: {type(model).__name__} has no blocks that can be skipped")
    for number, block in enumerate(blocks):
        chance = rate * number / (len(blocks) - 1) if len(blocks) > 1 else rate
        for branch in branches_of(block):
            setattr(block, branch, DropPath(chance) if chance else nn.Identity())


def branches_of(module: nn.Module) -> list[str]:
    """Names of a block's places for stochastic depth."""
    return [name for name in BRANCHES if isinstance(getattr(module, name, None), nn.Module)]
