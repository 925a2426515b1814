"""Optimiser and learning-rate schedule of a recipe. The schedule is a pure function of samples seen."""

import math

import torch
from torch import nn

from harness.config import RecipeConfig
from harness.data.subset import parse_size
from harness.errors import ConfigError, near_matches

SCHEDULES = ("cosine", "linear", "constant")
OPTIMIZERS = ("adamw", "sgd")


def total_steps(recipe: RecipeConfig) -> int:
    """Optimiser steps of every run of this recipe: the horizon in samples over the batch size, rounded.

    Raises ConfigError when that is not even one step.
    """
    samples = parse_size(recipe.samples_seen, None)
    steps = round(samples / recipe.batch_size)
    if steps < 1:
        raise ConfigError(
            f"recipe.samples_seen={recipe.samples_seen} is less than half a batch of "
            f"recipe.batch_size={recipe.batch_size}: no step would be taken"
        )
    return steps


def learning_rate(samples_seen: int, recipe: RecipeConfig, horizon_samples: int) -> float:
    """Rate for the batch that starts at `samples_seen`: linear warm-up, then the recipe's schedule to the horizon."""
    if recipe.schedule not in SCHEDULES:
        raise ConfigError(f"recipe.schedule={recipe.schedule}.{near_matches(recipe.schedule, SCHEDULES)}")
    warmup = parse_size(recipe.warmup, horizon_samples) if recipe.warmup not in ("0", "0%") else 0
    if samples_seen < warmup:
        return recipe.learning_rate * (samples_seen + recipe.batch_size) / (warmup + recipe.batch_size)
    progress = min(1.0, (samples_seen - warmup) / max(1, horizon_samples - warmup))
    if recipe.schedule == "cosine":
        return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if recipe.schedule == "linear":
        return recipe.learning_rate * (1 - progress)
    return recipe.learning_rate


def build_optimizer(model: nn.Module, recipe: RecipeConfig) -> torch.optim.Optimizer:
    """The recipe's optimiser; weight decay is decoupled and on matrices and convolution kernels only.

    Tensors with fewer than two dimensions, position embeddings and class tokens are not decayed
    (big_vision's rule: `.*/kernel$`).
    """
    if recipe.optimizer not in OPTIMIZERS:
        raise ConfigError(f"recipe.optimizer={recipe.optimizer}.{near_matches(recipe.optimizer, OPTIMIZERS)}")
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_kernel = parameter.ndim >= 2 and not name.endswith(("pos_embed", "cls_token"))
            (decayed if is_kernel else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.beta1, fused=True)
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
