"""The micro-batch: how it is chosen, and that looking for it leaves no trace in the network."""

import pytest
import torch
from torch import nn

from harness.config import RecipeConfig
from harness.train.distributed import ALONE
from harness.train.prepare import micro_batch_size, trial


@pytest.mark.parametrize(
    "share, wished, known, largest, size",
    [
        (96, None, 0, 1000, 96),  # all at once
        (96, None, 0, 40, 24),  # halves until it fits: 96, 48, 24
        (96, 40, 0, 1, 32),  # as wished, rounded down to a divisor; not tried
        (96, None, 24, 1, 24),  # what an interrupted run used
        (97, None, 0, 50, 1),  # a prime share has no other parts
    ],
)
def test_the_micro_batch_divides_the_share(share: int, wished: int | None, known: int, largest: int, size: int) -> None:
    tried: list[int] = []

    def fits(count: int) -> bool:
        tried.append(count)
        return count <= largest

    found = micro_batch_size(share, wished, known, ALONE, fits)
    assert found == size
    assert not tried or not (wished or known)


def test_a_trial_leaves_statistics_and_gradients_as_they_were() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
    model[1].running_mean.fill_(3.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    fits = trial(model, RecipeConfig(name="x", source="test"), "fp32", (3, 8, 8), torch.device("cpu"))
    assert fits(4)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
