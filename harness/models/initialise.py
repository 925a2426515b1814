"""Initial weights and the pre-training head of the ViT authors' code (google-research/vision_transformer)."""

from collections import OrderedDict

import torch
from timm.layers import lecun_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


class PretrainHead(nn.Sequential):
    """The paper's head for pre-training (§3.1): one hidden layer with tanh, then a linear layer.

    Takes the class token (B, width), gives logits (B, num_classes). timm dropped its `representation_size`.
    """

    def __init__(self, width: int, num_classes: int, device: str = "cpu") -> None:
        pre_logits = nn.Linear(width, width, device=device)
        nn.init.xavier_uniform_(pre_logits.weight)
        nn.init.zeros_(pre_logits.bias)
        super().__init__(
            OrderedDict(pre_logits=pre_logits, act=nn.Tanh(), fc=nn.Linear(width, num_classes, device=device))
        )

    def hidden(self, features: Tensor) -> Tensor:
        """Activations (B, width) of the hidden layer."""
        return self.act(self.pre_logits(features))


def zero_head(head: nn.Module, bias: float) -> None:
    """Zero the last linear layer of `head` and set its bias: -10 for sigmoid losses (vision_transformer #2)."""
    layer = head.fc if isinstance(head, PretrainHead) else head
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.constant_(layer.bias, bias)


@torch.no_grad()
def initialise_vit(model: VisionTransformer) -> None:
    """The authors' initial weights (vit_jax/models_vit.py); the ResNet of a hybrid keeps its own.

    timm's `weight_init='jax'` is close, but draws the three matrices of qkv as one (a bound 1/sqrt(2) too small)
    and, in a hybrid, zeroes the last convolution of every residual block: with weight standardisation its
    gradient is then divided by the standard deviation of a constant.
    """
    nn.init.normal_(model.pos_embed, std=0.02)
    nn.init.zeros_(model.cls_token)
    lecun_normal_(model.patch_embed.proj.weight)
    nn.init.zeros_(model.patch_embed.proj.bias)
    for block in model.blocks:
        for matrix in (
            *block.attn.qkv.weight.chunk(3),
            block.attn.proj.weight,
            block.mlp.fc1.weight,
            block.mlp.fc2.weight,
        ):
            nn.init.xavier_uniform_(matrix)
        for bias in (block.attn.qkv.bias, block.attn.proj.bias):
            nn.init.zeros_(bias)
        for bias in (block.mlp.fc1.bias, block.mlp.fc2.bias):
            nn.init.normal_(bias, std=1e-6)
