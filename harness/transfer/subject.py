"""What is transferred: a network, its untrained twin, and the machine it runs on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from harness.config import LoopConfig, ModelConfig
from harness.models.adapt import resized
from harness.train.distributed import ALONE, Ranks
from harness.transfer.features import Setting


@dataclass(frozen=True)
class Subject:
    """A pre-trained network.

    trained, untrained: give its tensors after training and as they were before (None where nobody knows).
    """

    config: ModelConfig
    num_classes: int  # of the pre-training head
    channels: int
    trained: Callable[[], Mapping[str, Tensor]]
    untrained: Callable[[], Mapping[str, Tensor]] | None
    precision: str
    attention: str
    device: torch.device
    loop: LoopConfig = field(default_factory=LoopConfig)
    ranks: Ranks = ALONE

    def kinds(self, baselines: bool) -> dict[str, Callable[[], Mapping[str, Tensor]]]:
        """Tensors of the network, and with baselines of its untrained twin."""
        more = {"untrained": self.untrained} if baselines and self.untrained is not None else {}
        return {"pretrained": self.trained, **more}

    def network(self, tensors: Mapping[str, Tensor], image_size: int) -> nn.Module:
        """With its pre-training head, whose hidden layer gives the features."""
        return resized(self.config, tensors, image_size, self.num_classes, self.channels)

    def setting(self, image_size: int) -> Setting:
        """For features."""
        return Setting(
            image_size, self.channels, self.device, self.precision, self.attention, self.loop.workers, self.ranks
        )
