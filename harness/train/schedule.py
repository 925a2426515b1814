"""Horizon and learning rate of a recipe: pure functions of samples seen. Needs no torch, so that plans are quick."""

import math

from harness.config import RecipeConfig
from harness.data.subset import parse_size
from harness.errors import ConfigError, near_matches

SCHEDULES = ("cosine", "linear", "constant", "rsqrt")
OPTIMIZERS = ("adamw", "adam", "sgd")
LOSSES = ("softmax", "sigmoid")
BEST_BY = ("top1", "loss", "mean_per_class")


def total_steps(recipe: RecipeConfig) -> int:
    """Optimiser steps of every run of this recipe: the horizon in samples over the batch size, rounded.

    Raises ConfigError when that is not even one step.
    """
    if recipe.batch_size < 1:
        raise ConfigError(f"recipe.batch_size={recipe.batch_size}: at least 1")
    samples = parse_size(recipe.samples_seen, None)
    steps = round(samples / recipe.batch_size)
    if steps < 1:
        raise ConfigError(
            f"recipe.samples_seen={recipe.samples_seen} is less than half a batch of "
            f"recipe.batch_size={recipe.batch_size}: no step would be taken"
        )
    return steps


def check_recipe(recipe: RecipeConfig) -> None:
    """Raise ConfigError for a word that names nothing or numbers that cannot work, before anything is started."""
    for field, value, known in (
        ("schedule", recipe.schedule, SCHEDULES),
        ("optimizer", recipe.optimizer, OPTIMIZERS),
        ("loss", recipe.loss, LOSSES),
        ("best_by", recipe.best_by, BEST_BY),
    ):
        if value not in known:
            raise ConfigError(f"recipe.{field}={value}.{near_matches(value, known)}")
    if not (math.isfinite(recipe.learning_rate) and recipe.learning_rate > 0):
        raise ConfigError(f"recipe.learning_rate={recipe.learning_rate}: a number above 0")
    for field in ("evaluations", "train_eval_samples"):
        if getattr(recipe, field) < 1:
            raise ConfigError(f"recipe.{field}={getattr(recipe, field)}: at least 1")
    if recipe.loss == "sigmoid" and recipe.label_smoothing:
        raise ConfigError("recipe.label_smoothing has no effect with recipe.loss=sigmoid: set it to 0")
    for field in ("dropout", "stochastic_depth", "polyak"):
        if not 0 <= getattr(recipe, field) < 1:
            raise ConfigError(f"recipe.{field}={getattr(recipe, field)}: from 0 up to, not including, 1")
    if not 0 < recipe.min_crop_area <= 1:
        raise ConfigError(f"recipe.min_crop_area={recipe.min_crop_area}: above 0 and at most 1")
    if (recipe.schedule == "rsqrt") != bool(recipe.timescale):
        raise ConfigError(
            f"recipe.timescale={recipe.timescale or '(empty)'} with recipe.schedule={recipe.schedule}: rsqrt needs one "
            "(images, or a share of the horizon), the others none"
        )
    horizon = total_steps(recipe) * recipe.batch_size
    if samples_of(recipe.warmup, horizon) + samples_of(recipe.cooldown, horizon) > horizon:
        raise ConfigError(
            f"recipe.warmup={recipe.warmup} and recipe.cooldown={recipe.cooldown} together are longer than the horizon "
            f"of {horizon:,} images"
        )


def learning_rate(samples_seen: int, recipe: RecipeConfig, horizon_samples: int) -> float:
    """Rate for the batch that starts at `samples_seen`: linear warm-up, then the recipe's schedule to the horizon.

    rsqrt and the cool-down are big_vision's (utils.py, create_learning_rate_schedule; arXiv 2106.04560 §3.4): the rate
    over sqrt(1 + samples since warm-up / timescale), and any schedule times what is left of the cool-down.
    """
    warmup = samples_of(recipe.warmup, horizon_samples)
    if samples_seen < warmup:
        return recipe.learning_rate * (samples_seen + recipe.batch_size) / (warmup + recipe.batch_size)
    progress = min(1.0, (samples_seen - warmup) / max(1, horizon_samples - warmup))
    rate = recipe.learning_rate
    if recipe.schedule == "cosine":
        rate = recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
    elif recipe.schedule == "linear":
        rate = recipe.learning_rate * (1 - progress)
    elif recipe.schedule == "rsqrt":
        rate = recipe.learning_rate / math.sqrt(
            1 + (samples_seen - warmup) / parse_size(recipe.timescale, horizon_samples)
        )
    cooldown = samples_of(recipe.cooldown, horizon_samples)
    return rate * min(1.0, max(0, horizon_samples - samples_seen) / cooldown) if cooldown else rate


def samples_of(text: str, horizon_samples: int) -> int:
    """Images in '5%', '10k' or '0'."""
    return 0 if text in ("0", "0%") else parse_size(text, horizon_samples)
