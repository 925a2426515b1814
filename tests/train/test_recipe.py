"""What a recipe asks for, each against a value worked out another way."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from harness.cell import resolve
from harness.compose import compose
from harness.config import RecipeConfig
from harness.data.loader import Batch
from harness.data.manifest import Dataset
from harness.errors import ConfigError
from harness.experiment import initial_model
from harness.models.build import build_model
from harness.train.average import Average, averaged
from harness.train.evaluate import evaluate
from harness.train.optim import build_optimizer
from harness.train.schedule import check_recipe, learning_rate
from harness.train.step import classification_loss, training_step
from harness.train.stochastic_depth import set_stochastic_depth
from tests.conftest import TINY_DATA

RECIPE = RecipeConfig(
    name="t", source="test", samples_seen="10k", batch_size=100, learning_rate=1.0, weight_decay=0.1, warmup="10%"
)


def test_rsqrt_falls_with_the_root_and_cools_down_to_zero() -> None:
    """big_vision: lr / sqrt(1 + (step - warmup) / timescale) and a linear factor over the cool-down."""
    recipe = dataclasses.replace(RECIPE, schedule="rsqrt", timescale="1000", cooldown="20%")
    check_recipe(recipe)
    assert learning_rate(1000, recipe, 10_000) == 1.0
    assert learning_rate(4000, recipe, 10_000) == pytest.approx(1 / 2)
    assert learning_rate(9000, recipe, 10_000) == pytest.approx(1 / 3 * 0.5)
    assert learning_rate(9900, recipe, 10_000) == pytest.approx(1 / math.sqrt(9.9) * 0.05)
    assert learning_rate(10_000, recipe, 10_000) == 0.0


@pytest.mark.parametrize(
    "change, named",
    [
        ({"schedule": "rsqrt"}, "timescale"),
        ({"timescale": "1k"}, "timescale"),
        ({"warmup": "60%", "cooldown": "60%"}, "cooldown"),
        ({"dropout": 1.0}, "dropout"),
        ({"polyak": -0.1}, "polyak"),
        ({"min_crop_area": 0.0}, "min_crop_area"),
        ({"best_by": "top5"}, "best_by"),
    ],
)
def test_a_value_that_cannot_work_is_named(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check_recipe(dataclasses.replace(RECIPE, **change))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["adamw", "adam", "sgd"])
def test_two_steps_of_every_optimiser_by_hand(kind: str) -> None:
    """One weight matrix of one number and a bias; decay is on the matrix alone."""
    recipe = dataclasses.replace(RECIPE, optimizer=kind, learning_rate=0.1, beta1=0.9, beta2=0.99)
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, 0.5)
    nn.init.constant_(layer.bias, 0.25)
    optimizer = build_optimizer(layer, recipe)
    expected = {"weight": 0.5, "bias": 0.25}
    state = dict.fromkeys(expected, (0.0, 0.0))
    for step in (1, 2):
        gradients = {"weight": 0.3 * step, "bias": -0.2}
        for name, gradient in gradients.items():
            getattr(layer, name).grad = torch.full_like(getattr(layer, name), gradient)
            decay = 0.1 if name == "weight" else 0.0
            value, (first, second) = expected[name], state[name]
            if kind == "adamw":
                value -= 0.1 * decay * value
            else:
                gradient += decay * value
            if kind == "sgd":
                first = gradient if step == 1 else 0.9 * first + gradient
                value -= 0.1 * first
            else:
                first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
                value -= 0.1 * (first / (1 - 0.9**step)) / (math.sqrt(second / (1 - 0.99**step)) + 1e-8)
            expected[name], state[name] = value, (first, second)
        optimizer.step()
    assert layer.weight.item() == pytest.approx(expected["weight"], rel=1e-5)
    assert layer.bias.item() == pytest.approx(expected["bias"], rel=1e-5)


def test_several_labels_by_either_loss() -> None:
    """Sigmoid: a binary choice of every class, summed. Softmax: the labels share the target. Smoothing as torch's."""
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([[1, 0, 1, 0, 0], [0, 0, 0, 0, 1], [1, 1, 1, 0, 0], [0, 1, 0, 0, 0]])
    chances = torch.sigmoid(logits)
    binary = -(labels * chances.log() + (1 - labels) * (1 - chances).log()).sum(1)
    torch.testing.assert_close(classification_loss(logits, labels, "sigmoid"), binary)
    shares = labels / labels.sum(1, keepdim=True)
    softmax = -(shares * logits.log_softmax(1)).sum(1)
    torch.testing.assert_close(classification_loss(logits, labels, "softmax"), softmax)
    single = torch.tensor([0, 4, 1, 3])
    smoothed = 0.9 * -logits.log_softmax(1)[range(4), single] + 0.1 * -logits.log_softmax(1).mean(1)
    torch.testing.assert_close(classification_loss(logits, single, "softmax", 0.1), smoothed)


def test_an_image_of_several_labels_is_right_when_the_first_choice_is_one() -> None:
    images = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    images[1:, 0, 0, 0] = 255
    labels = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 0, 0], [1, 1, 1]])
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[2, 0] = 1.0  # class 2 where the corner is white, class 0 else (-1 in the corner)
        model[1].weight[0, 1] = -0.5
    batch = Batch(images, labels, torch.tensor([True, True, True, False]), torch.arange(4))
    score = evaluate(model, [batch], torch.device("cpu"), "fp32", "sigmoid")
    assert (score.top1, score.samples) == (2 / 3, 3)
    assert score.mean_per_class == (0.5 + 1.0) / 2  # first labels are 0, 1, 0; of class 0 one of two is right


def test_clipping_is_by_the_norm_of_all_gradients_together() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 3))
    images, labels = torch.randn(8, 1, 2, 2), torch.arange(8) % 3
    F.cross_entropy(model(images), labels).backward()
    norm = torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    ).norm()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    recipe = dataclasses.replace(RECIPE, optimizer="sgd", beta1=0.0, weight_decay=0.0, clip_norm=0.1, learning_rate=1.0)
    taken = training_step(model, build_optimizer(model, recipe), images, labels, recipe, "fp32")
    torch.testing.assert_close(taken.gradient_norm, norm)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.detach(), before[name] - gradients[name] * 0.1 / norm, atol=1e-6, rtol=1e-4
        )


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_parts_of_a_batch_add_up_to_its_step(size: int) -> None:
    """Sizes that do not divide the batch too: the loss and the weights after it are those of the whole."""
    images = torch.randn(12, 1, 2, 2, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(12) % 3
    results = []
    for micro_batch in (None, size, 5):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        taken = training_step(model, build_optimizer(model, RECIPE), images, labels, RECIPE, "fp32", micro_batch)
        results.append([taken.loss, taken.gradient_norm, model[1].weight.detach()])
    for parts in results[1:]:
        torch.testing.assert_close(parts, results[0])


def test_the_average_is_the_weighted_sum_of_the_weights_along_training() -> None:
    """Factor min(decay, (1 + n) / (10 + n)) after step n; evaluated in place of the weights, which come back."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 8.0)
    average = Average(layer, 0.2)
    mean = 8.0
    for step, value in ((1, 4.0), (2, 2.0), (3, 1.0)):
        nn.init.constant_(layer.weight, value)
        average.update(step)
        factor = min(0.2, (1 + step) / (10 + step))
        mean = factor * mean + (1 - factor) * value
    with averaged(average):
        assert layer.weight.item() == pytest.approx(mean)
    assert layer.weight.item() == 1.0


@pytest.mark.parametrize("name, blocks", [("vit_pocket", 2), ("resnet_pocket", None), ("vit_b16", 12)])
def test_stochastic_depth_rises_from_the_first_block_to_the_last(name: str, blocks: int | None) -> None:
    with torch.device("meta"):
        model = build_model(compose([f"model={name}"]).model, 10, 3)
    set_stochastic_depth(model, 0.3)
    chances: list[float] = []
    for module in model.modules():
        own = [getattr(module, place) for place in ("drop_path", "drop_path1") if hasattr(module, place)]
        chances += [getattr(place, "drop_prob", 0.0) or 0.0 for place in own]
    assert chances == pytest.approx([0.3 * number / (len(chances) - 1) for number in range(len(chances))])
    assert blocks in (None, len(chances))


def test_dropout_of_the_recipe_reaches_the_network(tiny: Dataset) -> None:
    cell = resolve(compose(["model=vit_pocket", "recipe.dropout=0.25", "subset=100", *TINY_DATA]), tiny)
    model = initial_model(cell, tiny)
    active = [module.p for module in model.modules() if isinstance(module, nn.Dropout) and module.p]
    assert len(active) == 1 + 2 * 3  # after the position embedding; a block's attention output and both dense layers
    assert set(active) == {0.25}
