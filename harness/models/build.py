"""Names to networks: ViT, BiT ResNet and their hybrid, built from timm's classes.

`vit` alone is a Vision Transformer (arXiv 2010.11929 §3.1), `resnet` alone a BiT ResNet (arXiv 1912.11370:
pre-activation, GroupNorm, weight standardisation), both together the paper's hybrid: a ViT on 1 x 1 patches of the
ResNet's feature map. Every network has timm's forward_features and forward_head(x, pre_logits=True).
"""

from functools import partial
from typing import Any

import torch
from timm.layers import GroupNormAct, HybridEmbed, StdConv2d
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import ConfigError, near_matches

STEMS = ("fixed", "small")
BLOCKS = ("bottleneck", "basic")
STD_CONV_EPS = 1e-8  # timm's BiT models


def build_model(cfg: ModelConfig, num_classes: int, channels: int, device: str = "cpu") -> nn.Module:
    """The network with a zero-initialised linear head, initialised from torch's global random generator.

    Args:
        num_classes: width of the head.
        channels: of the images, 1 or 3.
        device: 'meta' builds without memory, for counting.
    Raises ConfigError, before anything is built, for a combination that cannot work.
    """
    check(cfg)
    model: nn.Module
    if cfg.vit is not None and cfg.resnet is not None:
        model = build_hybrid(cfg.vit, cfg.resnet, cfg.image_size, num_classes, channels, device)
    elif cfg.vit is not None:
        model = build_vit(cfg.vit, cfg.image_size, num_classes, channels, device)
    else:
        assert cfg.resnet is not None
        model = build_resnet(cfg.resnet, num_classes, channels, device)
    if cfg.vit is not None and device != "meta":
        authors_qkv(model)
    zero_head(model)
    return model


def check(cfg: ModelConfig) -> None:
    """Raise ConfigError naming the fields that do not go together."""
    if cfg.vit is None and cfg.resnet is None:
        raise ConfigError(f"model {cfg.name}: neither model.vit nor model.resnet is given")
    if cfg.resnet is not None:
        check_resnet(cfg.name, cfg.resnet)
    if cfg.vit is None:
        return
    if cfg.vit.width % cfg.vit.heads:
        raise ConfigError(
            f"model {cfg.name}: model.vit.width={cfg.vit.width} is not divisible by model.vit.heads={cfg.vit.heads}"
        )
    if cfg.resnet is not None:
        stride = total_stride(cfg.resnet)
        if cfg.image_size % stride:
            raise ConfigError(
                f"model {cfg.name}: model.image_size={cfg.image_size} is not divisible by {stride}, "
                "the stride of its ResNet"
            )
        if cfg.vit.patch_size != 1:
            raise ConfigError(
                f"model {cfg.name}: a hybrid has 1x1 patches, model.vit.patch_size is {cfg.vit.patch_size}"
            )
    elif cfg.image_size % cfg.vit.patch_size:
        raise ConfigError(
            f"model {cfg.name}: model.image_size={cfg.image_size} is not divisible by "
            f"model.vit.patch_size={cfg.vit.patch_size}"
        )


def check_resnet(name: str, cfg: ResNetConfig) -> None:
    """Raise ConfigError naming the field of the ResNet that cannot work."""
    for value, field, known in ((cfg.stem, "stem", STEMS), (cfg.block, "block", BLOCKS)):
        if value not in known:
            raise ConfigError(f"model {name}: model.resnet.{field}={value}.{near_matches(value, known)}")
    if len(cfg.layers) != len(cfg.channels):
        raise ConfigError(f"model {name}: model.resnet.layers and model.resnet.channels differ in length")
    for channels in (cfg.stem_channels, *cfg.channels):
        # timm rounds channels to multiples of 8: what is asked for would not be what is built
        if channels % 8 or channels % cfg.groups:
            raise ConfigError(
                f"model {name}: {channels} channels are not divisible by 8 and by model.resnet.groups={cfg.groups}"
            )


def total_stride(cfg: ResNetConfig) -> int:
    """Pixels of the image a position of the feature map stands for; each stage but the first halves the map."""
    stem = 4 if cfg.stem == "fixed" else cfg.stem_stride
    return int(stem * 2 ** (len(cfg.layers) - 1))


def build_vit(cfg: ViTConfig, image_size: int, num_classes: int, channels: int, device: str) -> VisionTransformer:
    """timm's VisionTransformer with a class token and learned position embeddings."""
    return VisionTransformer(
        img_size=image_size, patch_size=cfg.patch_size, in_chans=channels, **vit_arguments(cfg, num_classes, device)
    )


def vit_arguments(cfg: ViTConfig, num_classes: int, device: str) -> dict[str, Any]:
    """What a ViT and the ViT of a hybrid have in common."""
    return {
        "embed_dim": cfg.width,
        "depth": cfg.depth,
        "num_heads": cfg.heads,
        "mlp_ratio": cfg.mlp_ratio,
        "weight_init": "jax",  # the authors': xavier-uniform kernels, MLP biases N(0, 1e-6)
        "num_classes": num_classes,
        "device": device,
    }


def build_resnet(cfg: ResNetConfig, num_classes: int, channels: int, device: str, pool: str = "avg") -> ResNetV2:
    """timm's ResNetV2 as BiT uses it; the 'small' stem suits images for which a stride of 4 is too much."""
    model = ResNetV2(
        layers=list(cfg.layers),
        channels=tuple(cfg.channels),
        num_classes=num_classes,
        in_chans=channels,
        global_pool=pool,
        stem_chs=cfg.stem_channels,
        stem_type="fixed",
        basic=cfg.block == "basic",
        bottle_ratio=1.0 if cfg.block == "basic" else 0.25,
        act_layer=nn.ReLU,
        norm_layer=partial(GroupNormAct, num_groups=cfg.groups),
        conv_layer=partial(StdConv2d, eps=STD_CONV_EPS),
        device=device,
    )
    if cfg.stem == "small":
        # timm's stems have stride 4 at least; the padding keeps out = ceil(in / stride)
        stem = StdConv2d(
            channels, cfg.stem_channels, 3, stride=cfg.stem_stride, padding=1, eps=STD_CONV_EPS, device=device
        )
        if device != "meta":
            nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        model.stem = stem  # type: ignore[assignment]
    return model


def build_hybrid(
    vit: ViTConfig, resnet: ResNetConfig, image_size: int, num_classes: int, channels: int, device: str
) -> VisionTransformer:
    """A ViT on 1 x 1 patches of a ResNet's feature map (arXiv 2010.11929 §3.1, 'Hybrid Architecture')."""
    backbone = build_resnet(resnet, 0, channels, device, pool="")
    return VisionTransformer(
        img_size=image_size,
        patch_size=1,
        in_chans=channels,
        embed_layer=partial(HybridEmbed, backbone=backbone),
        **vit_arguments(vit, num_classes, device),
    )


def authors_qkv(model: nn.Module) -> None:
    """Xavier-uniform for query, key and value each, as in the authors' code, where they are three matrices.

    timm's weight_init='jax' treats the fused (3D, D) matrix as one, which makes its bound smaller by sqrt(2).
    """
    for name, parameter in model.named_parameters():
        if name.endswith("attn.qkv.weight"):
            for matrix in parameter.detach().chunk(3):
                nn.init.xavier_uniform_(matrix)


def zero_head(model: nn.Module) -> None:
    """Zero the final linear layer, as the authors do: every class starts equally likely."""
    head = classifier(model)
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)


def classifier(model: nn.Module) -> nn.Linear | nn.Conv2d:
    """The layer that timm calls the classifier; a 1x1 convolution in ResNetV2."""
    layer = model.get_classifier()  # type: ignore[operator]
    assert isinstance(layer, nn.Linear | nn.Conv2d)
    return layer


def pre_logits(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """(B, C, H, W) float images in [-1, 1] to (B, D) features: what the classifier would see."""
    features: torch.Tensor = model.forward_head(model.forward_features(images), pre_logits=True)  # type: ignore[operator]
    return features.flatten(1)
