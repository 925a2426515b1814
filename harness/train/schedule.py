"""Horizon and learning rate of a recipe: pure functions of samples seen. Needs no torch, so that plans are quick."""

import math

from harness.config import RecipeConfig
from harness.data.subset import parse_size
from harness.errors import ConfigError, near_matches

SCHEDULES = ("cosine", "linear", "constant")
OPTIMIZERS = ("adamw", "sgd")
LOSSES = ("softmax", "sigmoid")


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


def check_recipe(recipe: RecipeConfig) -> None:
    """Raise ConfigError for a word that names nothing, before anything is started."""
    for field, value, known in (
        ("schedule", recipe.schedule, SCHEDULES),
        ("optimizer", recipe.optimizer, OPTIMIZERS),
        ("loss", recipe.loss, LOSSES),
    ):
        if value not in known:
            raise ConfigError(f"recipe.{field}={value}.{near_matches(value, known)}")
    if recipe.loss == "sigmoid" and recipe.label_smoothing:
        raise ConfigError("recipe.label_smoothing has no effect with recipe.loss=sigmoid: set it to 0")


def learning_rate(samples_seen: int, recipe: RecipeConfig, horizon_samples: int) -> float:
    """Rate for the batch that starts at `samples_seen`: linear warm-up, then the recipe's schedule to the horizon."""
    warmup = parse_size(recipe.warmup, horizon_samples) if recipe.warmup not in ("0", "0%") else 0
    if samples_seen < warmup:
        return recipe.learning_rate * (samples_seen + recipe.batch_size) / (warmup + recipe.batch_size)
    progress = min(1.0, (samples_seen - warmup) / max(1, horizon_samples - warmup))
    if recipe.schedule == "cosine":
        return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    if recipe.schedule == "linear":
        return recipe.learning_rate * (1 - progress)
    return recipe.learning_rate
