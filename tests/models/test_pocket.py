"""The pocket models are compute-matched, small and deterministic."""

import itertools

import pytest
import torch

from harness.models.build import build_model, pre_logits
from harness.models.cost import count
from tests.models.conftest import load_model

POCKET = ("vit_pocket", "resnet_pocket", "hybrid_pocket")


@pytest.mark.parametrize("classes", [10, 62, 500, 594])
def test_training_flops_match_within_five_percent(classes):
    flops = {name: count(load_model(name), classes, 1).training_flops_per_image for name in POCKET}
    for a, b in itertools.combinations(POCKET, 2):
        assert max(flops[a], flops[b]) / min(flops[a], flops[b]) <= 1.05, (a, b, flops)


@pytest.mark.parametrize("name", POCKET)
def test_forward_is_about_a_mflop(name):
    assert 0.6e6 <= 2 * count(load_model(name), 500, 1).forward_macs_per_image <= 1e6


@pytest.mark.parametrize("name", POCKET)
def test_seed_decides_the_weights_and_the_head_starts_at_zero(name):
    cfg = load_model(name)

    def build(seed: int):
        torch.manual_seed(seed)
        return build_model(cfg, 7, 1)

    one, again, other = build(0), build(0), build(1)
    states = [m.state_dict() for m in (one, again, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert any(not torch.equal(states[0][key], states[2][key]) for key in states[0])
    assert all(torch.isfinite(value).all() for value in states[0].values())
    images = torch.randn(3, 1, 16, 16)
    assert torch.equal(one(images), torch.zeros(3, 7))
    features = pre_logits(one, images)
    assert features.shape == (3, one.num_features)
    assert features.std(0).min() > 0


@pytest.mark.parametrize("name", POCKET)
def test_counting_leaves_the_random_generator_alone(name):
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    count(load_model(name), 10, 1)
    assert torch.equal(torch.rand(3), expected)
