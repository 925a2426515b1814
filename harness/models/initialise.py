"""Initial weights and the pre-training head of the ViT authors' code (google-research/vision_transformer)."""

from collections import OrderedDict
from typing import Any

import torch
from timm.layers import lecun_normal_
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn


class PretrainHead(nn.Module):
    """The paper's head for pre-training (§3.1): one hidden layer with tanh, then a linear layer.

    Takes the class token (B, width), gives logits (B, num_classes). timm dropped its `representation_size`.
    """

    def __init__(self, width: int, num_classes: int, device: str = "cpu") -> None:
        super().__init__()
        dense = nn.Linear(width, width, device=device)
        nn.init.xavier_uniform_(dense.weight)
        nn.init.zeros_(dense.bias)
        self.pre_logits = nn.Sequential(OrderedDict(dense=dense, act=nn.Tanh()))
        self.fc = nn.Linear(width, num_classes, device=device)

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, num_classes) of class tokens (B, width)."""
        return self.fc(self.pre_logits(features))


def zero_head(head: nn.Module, bias: float) -> None:
    """Zero the last linear layer of `head` except its bias (-10 for sigmoid losses: issue #2 there)."""
    layer = head.fc if isinstance(head, PretrainHead) else head
    if isinstance(layer, nn.Linear | nn.Conv2d):
        nn.init.zeros_(layer.weight)
        if layer.bias is not None:
            nn.init.constant_(layer.bias, bias)


def initialise_vit(model: VisionTransformer) -> None:
    """The authors' initial weights (vit_jax/models_vit.py); the ResNet of a hybrid keeps its own.

    timm's `weight_init='jax'` is close, but draws the matrices of qkv as one (a bound 1/sqrt(2) too small)
    and, in a hybrid, zeroes the last convolution of every pre-activation block: weight standardisation then
    divides its gradient by the standard deviation of a constant.
    """
    parts: Any = model  # its submodules are Tensor | Module to a type checker
    nn.init.normal_(parts.pos_embed, std=0.02)
    nn.init.zeros_(parts.cls_token)
    lecun_normal_(parts.patch_embed.proj.weight)
    nn.init.zeros_(parts.patch_embed.proj.bias)
    for block in parts.blocks:
        with torch.no_grad():
            for matrix in block.attn.qkv.weight.chunk(3):  # query, key and value are separate layers there
                nn.init.xavier_uniform_(matrix)
        nn.init.zeros_(block.attn.qkv.bias)
        nn.init.xavier_uniform_(block.attn.proj.weight)
        nn.init.zeros_(block.attn.proj.bias)
        for layer in (block.mlp.fc1, block.mlp.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)
