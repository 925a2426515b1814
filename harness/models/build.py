"""Names and numbers to timm modules: ViT, BiT-style ResNet, hybrid, or any classifier of timm.

`harness.models.check.check_model` says what is impossible before anything is built. The modules are timm's
own classes with timm's parameter names, so checkpoints, feature extraction and position-embedding resizing
from timm work on them. Every model has `forward_features(x)` and `forward_head(x, pre_logits=True)`.
"""

from functools import partial
from typing import Any

import timm
from timm.layers import GroupNormAct, HybridEmbed, StdConv2d, StdConv2dSame, pad_same
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional

from harness.config import ModelConfig, ResNetConfig
from harness.errors import ConfigError
from harness.models.check import check_model
from harness.models.initialise import PretrainHead, initialise_vit, zero_head

_ACTIVATIONS: dict[str, Any] = {"gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, approximate="tanh")}


class ReleasedStdConv2d(StdConv2dSame):
    """Weight standardisation as in the released hybrids: by the deviation + 1e-5 (vit_jax/models_resnet.py).

    timm divides by sqrt(variance + 1e-8), which differs where an output's weights are small.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.same_pad:
            x = pad_same(x, list(self.kernel_size), list(self.stride), list(self.dilation))
        flat = self.weight.reshape(1, self.out_channels, -1)
        deviation = self.weight.std((1, 2, 3), correction=0)
        share = deviation / (deviation + 1e-5)  # one pass keeps one copy of the weights for the gradient
        weight = functional.batch_norm(flat, None, None, share, training=True, eps=1e-20).reshape_as(self.weight)
        return functional.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def build_model(cfg: ModelConfig, num_classes: int, channels: int, device: str = "cpu") -> nn.Module:
    """The module of `cfg`, freshly initialised from torch's global generator (`torch.manual_seed`).

    Takes images (B, channels, image_size, image_size), gives logits (B, num_classes). Attention is fused or not
    as timm's switch says when the network is built (harness.models.precision.attention_path).

    Args:
        cfg: one file of conf/model.
        num_classes: outputs of the head; 0 leaves the head out (features of shape (B, D)).
        channels: of the images, 1 or 3.
        device: 'meta' allocates no weights and initialises none; 'cpu' otherwise (move the module afterwards,
            so that the initial weights do not depend on the device).

    Raises:
        ConfigError: the fields of `cfg` do not fit together; nothing has been built then.
    """
    check_model(cfg)
    if cfg.timm:
        return _build_timm(cfg, num_classes, channels, device)
    if cfg.vit is None:
        return _build_resnet(cfg, num_classes, channels, device)
    return _build_vit(cfg, num_classes, channels, device)


def pre_logits(model: nn.Module, images: Tensor) -> Tensor:
    """Features (B, D) of `images` (B, C, H, W): what the last linear layer sees.

    With the paper's pre-training head that is after its hidden tanh layer, as in big_vision's evaluator.
    """
    features = model.forward_head(model.forward_features(images), pre_logits=True)  # type: ignore[operator]
    head = getattr(model, "head", None)
    return head.pre_logits(features) if isinstance(head, PretrainHead) else features


def _build_vit(cfg: ModelConfig, num_classes: int, channels: int, device: str) -> nn.Module:
    """A ViT, or with `cfg.resnet` a hybrid: the ResNet's feature map cut into patches of patch_size (1)."""
    vit = cfg.vit
    assert vit is not None
    options: dict[str, Any] = {}
    if cfg.resnet is not None:
        backbone = _resnet(cfg.resnet, 0, channels, device, global_pool="")
        options["embed_layer"] = partial(HybridEmbed, backbone=backbone)
    model: Any = VisionTransformer(
        img_size=cfg.image_size,
        patch_size=vit.patch_size,
        in_chans=channels,
        num_classes=num_classes,
        embed_dim=vit.width,
        depth=vit.depth,
        num_heads=vit.heads,
        mlp_ratio=vit.mlp_ratio,
        act_layer=_ACTIVATIONS[vit.activation],
        # The paper's dropout places (B.1): after the position embedding and every dense layer but qkv.
        pos_drop_rate=vit.dropout,
        proj_drop_rate=vit.dropout,
        weight_init="" if vit.init == "timm" else "skip",
        device=device,
        **options,
    )
    if vit.init == "paper":
        initialise_vit(model)
    if num_classes and cfg.head == "hidden_tanh":
        model.head = PretrainHead(vit.width, num_classes, device)
    zero_head(model.head, cfg.head_bias)
    return model


def _build_resnet(cfg: ModelConfig, num_classes: int, channels: int, device: str) -> nn.Module:
    assert cfg.resnet is not None
    model = _resnet(cfg.resnet, num_classes, channels, device, global_pool="avg")
    zero_head(model.head.fc, cfg.head_bias)
    return model


def _resnet(cfg: ResNetConfig, num_classes: int, channels: int, device: str, global_pool: str) -> ResNetV2:
    """timm's BiT ResNet; `width_factor` is not used since `channels` holds the widened numbers."""
    released = cfg.stem == "same"
    # Small numbers as the released hybrids have them, or as timm's resnetv2_*_bit.
    convolution = ReleasedStdConv2d if released else partial(StdConv2d, eps=1e-8)
    norm = partial(GroupNormAct, num_groups=cfg.groups, eps=1e-6 if released else 1e-5)
    basic = cfg.block == "basic"
    model = ResNetV2(
        layers=list(cfg.layers),
        channels=tuple(cfg.channels),
        num_classes=num_classes,
        in_chans=channels,
        global_pool=global_pool,
        output_stride=4 * 2 ** len(cfg.layers),  # never replace a stage's stride by dilation
        stem_chs=cfg.stem_channels,
        stem_type="fixed" if cfg.stem == "small" else cfg.stem,
        preact=cfg.preactivation,
        basic=basic,
        bottle_ratio=1.0 if basic else 0.25,  # timm keeps 1/4 for basic blocks unless told
        norm_layer=norm,
        conv_layer=convolution,
        # As the released hybrids. Never with pre-activation: it would zero weight-standardised convolutions.
        zero_init_last=not cfg.preactivation,
        device=device,
    )
    if cfg.stem == "small":
        model.stem = _small_stem(cfg, channels, device)
        model.stem_feat_idx = 0
    return model


def _small_stem(cfg: ResNetConfig, channels: int, device: str) -> nn.Sequential:
    """One weight-standardised 3x3 convolution: timm's own stems have stride 4, too much for small images."""
    stem = nn.Sequential()
    convolution = StdConv2d(
        channels, cfg.stem_channels, kernel_size=3, stride=cfg.stem_stride, padding=1, eps=1e-8, device=device
    )
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")  # as ResNetV2's convolutions
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    stem.add_module("conv", convolution)
    if not cfg.preactivation:
        stem.add_module("norm", GroupNormAct(cfg.stem_channels, num_groups=cfg.groups, device=device))
    return stem


def _build_timm(cfg: ModelConfig, num_classes: int, channels: int, device: str) -> nn.Module:
    """A timm model with its own head and initial weights; the image size where it is fixed when built."""
    options: dict[str, Any] = {"num_classes": num_classes, "in_chans": channels, "device": device}
    pretrained = timm.get_pretrained_cfg(cfg.name)
    if pretrained is not None and pretrained.fixed_input_size:
        options["img_size"] = cfg.image_size
    try:
        model = timm.create_model(cfg.name, pretrained=False, **options)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"model.name={cfg.name}: timm cannot build it with image_size={cfg.image_size}, "
            f"{channels} channels and {num_classes} classes: {error}"
        ) from error
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    if isinstance(patch, tuple) and any(cfg.image_size % side for side in patch):
        raise ConfigError(
            f"model.name={cfg.name}: image_size={cfg.image_size} is not divisible by its patch size {patch[0]}; "
            "timm would cut the rest off."
        )
    return model
