"""Schedules as pure functions, decay on matrices alone, and what a horizon of zero steps does."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from harness.config import RecipeConfig
from harness.errors import ConfigError
from harness.train.loop import milestones, seed_random_numbers, step_seed
from harness.train.optim import build_optimizer
from harness.train.schedule import check_recipe, learning_rate, total_steps
from harness.train.step import classification_loss

RECIPE = RecipeConfig(
    name="t", source="test", samples_seen="10k", batch_size=100, learning_rate=1.0, weight_decay=0.1, warmup="10%"
)


def test_cosine_starts_after_warmup_and_ends_at_zero() -> None:
    assert learning_rate(0, RECIPE, 10_000) == pytest.approx(100 / 1100)
    assert learning_rate(1000, RECIPE, 10_000) == 1.0
    assert learning_rate(5500, RECIPE, 10_000) == pytest.approx(0.5)
    assert learning_rate(10_000, RECIPE, 10_000) == pytest.approx(0.0, abs=1e-12)


def test_linear_and_constant_by_hand() -> None:
    linear = dataclasses.replace(RECIPE, schedule="linear", warmup="0")
    assert [learning_rate(s, linear, 1000) for s in (0, 250, 1000)] == [1.0, 0.75, 0.0]
    constant = dataclasses.replace(RECIPE, schedule="constant")
    assert learning_rate(9_900, constant, 10_000) == 1.0


@given(st.integers(0, 99))
def test_the_rate_never_exceeds_the_recipe_and_is_positive_before_the_end(step: int) -> None:
    rate = learning_rate(step * 100, RECIPE, 10_000)
    assert 0 < rate <= 1.0


@pytest.mark.parametrize(
    "change, meant",
    [({"schedule": "cosin"}, "cosine"), ({"optimizer": "adam2"}, "adamw"), ({"loss": "sigmod"}, "sigmoid")],
)
def test_an_unknown_name_gets_near_matches(change: dict[str, str], meant: str) -> None:
    with pytest.raises(ConfigError, match=meant):
        check_recipe(dataclasses.replace(RECIPE, **change))  # type: ignore[arg-type]
    check_recipe(RECIPE)


def test_smoothing_without_effect_is_an_error() -> None:
    with pytest.raises(ConfigError, match="label_smoothing"):
        check_recipe(dataclasses.replace(RECIPE, loss="sigmoid", label_smoothing=0.1))


def test_losses_by_hand() -> None:
    """Softmax: log-sum-exp minus the label's logit. Sigmoid: sum over classes of log(1 + exp(-+z))."""
    logits, labels = torch.tensor([[1.0, -2.0, 0.5]]), torch.tensor([2])
    values = [1.0, -2.0, 0.5]
    softmax = math.log(sum(math.exp(z) for z in values)) - 0.5
    sigmoid = sum(math.log1p(math.exp(-z if k == 2 else z)) for k, z in enumerate(values))
    assert classification_loss(logits, labels, "softmax").tolist() == pytest.approx([softmax])
    assert classification_loss(logits, labels, "sigmoid").tolist() == pytest.approx([sigmoid])


def test_total_steps_rounds_and_refuses_none() -> None:
    assert total_steps(RECIPE) == 100
    assert total_steps(dataclasses.replace(RECIPE, samples_seen="149")) == 1
    with pytest.raises(ConfigError, match="no step"):
        total_steps(dataclasses.replace(RECIPE, samples_seen="49"))


def test_decay_is_on_matrices_and_kernels_only() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.LayerNorm(4), nn.Linear(4, 4))
    model.pos_embed = nn.Parameter(torch.zeros(1, 3, 4))
    decayed, plain = build_optimizer(model, RECIPE).param_groups
    assert {tuple(p.shape) for p in decayed["params"]} == {(2, 1, 3, 3), (4, 4)}
    assert decayed["weight_decay"] == 0.1
    assert plain["weight_decay"] == 0.0
    assert (1, 3, 4) in {tuple(p.shape) for p in plain["params"]}
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for group in (decayed, plain) for p in group["params"]
    )


@given(st.integers(1, 5000), st.integers(1, 100))
def test_milestones_are_at_most_count_and_end_at_the_last_step(steps: int, count: int) -> None:
    marks = milestones(steps, count)
    assert max(marks) == steps
    assert min(marks) >= 1
    assert len(marks) == min(steps, count)


def test_step_seeds_differ_and_repeat() -> None:
    seeds = {step_seed(seed, step) for seed in range(3) for step in range(1000)}
    assert len(seeds) == 3000
    assert step_seed(1, 2) == step_seed(1, 2)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seeding_a_step_repeats_its_random_numbers_and_queues_nothing() -> None:
    """torch.manual_seed would add a queued CUDA call a step: memory that grows for the whole run."""
    before = len(torch.cuda._queued_calls)
    drawn = []
    for seed in (5, 6, 5):
        seed_random_numbers(seed, torch.device("cpu"))
        drawn.append(torch.rand(3).tolist())
    assert drawn[0] == drawn[2] != drawn[1]
    torch.manual_seed(5)
    assert torch.rand(3).tolist() == drawn[0]
    assert len(torch.cuda._queued_calls) <= before + 1
