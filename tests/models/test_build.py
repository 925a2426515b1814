"""The networks are timm's and the authors', to the shape and to the first weight."""

from dataclasses import replace

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from harness.compose import compose
from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import ConfigError
from harness.models.build import build_model, pre_logits
from harness.models.named import device_config, device_names, model_config, model_names

SMALL = ModelConfig("small", "ViT", 32, vit=ViTConfig(patch_size=8, width=64, depth=2, heads=4))
SMALL_HYBRID = ModelConfig(
    "small_hybrid",
    "hybrid",
    32,
    vit=ViTConfig(patch_size=1, width=64, depth=1, heads=4),
    resnet=ResNetConfig(layers=[1, 1], channels=[32, 64], stem_channels=8, stem="small", groups=8),
)


@pytest.mark.parametrize(
    "ours, theirs",
    [
        ("vit_b32", "vit_base_patch32_224"),
        ("r50x1", "resnetv2_50x1_bit"),
        ("r50x1_vit_b16", "vit_base_r50_s16_224"),
    ],
)
def test_names_and_shapes_are_those_of_timms_own_model(ours: str, theirs: str) -> None:
    cfg = replace(model_config(ours), head="linear")
    one = build_model(cfg, 1000, 3, "meta").state_dict()
    other = timm.create_model(theirs, num_classes=1000, device="meta").state_dict()
    assert {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in other.items()}


@pytest.mark.parametrize("name", model_names())
def test_every_model_file_composes_as_hydra_does_and_builds_without_weights(name: str) -> None:
    assert compose([f"model={name}"]).model == model_config(name)
    model = build_model(model_config(name), 10, 3, "meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize("name", device_names())
def test_every_device_composes_as_hydra_does_and_names_its_source(name: str) -> None:
    device = device_config(name)
    assert compose([f"device={name}"]).device == device
    assert device.name == name
    assert device.source
    assert 0 < device.utilisation < 1


@settings(max_examples=15, deadline=None)
@given(
    patch=st.sampled_from([2, 4, 8]),
    heads=st.integers(1, 3),
    head_width=st.sampled_from([4, 8]),
    depth=st.integers(1, 2),
    classes=st.integers(0, 5),
    channels=st.sampled_from([1, 3]),
)
def test_any_sound_vit_gives_logits_and_features(
    patch: int, heads: int, head_width: int, depth: int, classes: int, channels: int
) -> None:
    width = heads * head_width
    cfg = ModelConfig("any", "ViT", 16, vit=ViTConfig(patch_size=patch, width=width, depth=depth, heads=heads))
    model = build_model(cfg, classes, channels)
    images = torch.randn(2, channels, 16, 16)
    assert model(images).shape == (2, classes or width)
    assert pre_logits(model, images).shape == (2, width)


def test_the_pretraining_head_has_a_hidden_tanh_layer_and_its_features_come_after_it() -> None:
    cfg = replace(SMALL, head="hidden_tanh", head_bias=-10.0)
    model = build_model(cfg, 5, 3).eval()
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), torch.full((2, 5), -10.0))
    token = model.forward_features(images)[:, 0]  # type: ignore[operator]
    layer = model.head.pre_logits.dense  # type: ignore[union-attr]
    expected = torch.tanh(token @ layer.weight.T + layer.bias)
    torch.testing.assert_close(pre_logits(model, images), expected)
    assert pre_logits(model, images).abs().max() < 1


def test_activation_and_dropout_places() -> None:
    vit = ViTConfig(patch_size=8, width=64, depth=1, heads=4, activation="gelu_tanh", dropout=0.1)
    model = build_model(replace(SMALL, vit=vit), 5, 3)
    active = {name for name, module in model.named_modules() if isinstance(module, nn.Dropout) and module.p == 0.1}
    assert active == {"pos_drop", "blocks.0.attn.proj_drop", "blocks.0.mlp.drop1", "blocks.0.mlp.drop2"}
    assert model.blocks[0].mlp.act.approximate == "tanh"  # type: ignore[index]
    assert build_model(SMALL, 5, 3).blocks[0].mlp.act.approximate == "none"  # type: ignore[index]


def test_timms_initialisation_is_an_option() -> None:
    torch.manual_seed(0)
    model = build_model(replace(SMALL, vit=ViTConfig(8, 64, 2, 4, init="timm")), 5, 3)
    assert model.blocks[0].mlp.fc1.weight.std().item() == pytest.approx(0.02, rel=0.05)  # type: ignore[index]


def test_a_hybrid_starts_with_live_convolutions() -> None:
    """timm's weight_init='jax' zeroes the last one of each block, whose standardised gradient then explodes."""
    torch.manual_seed(0)
    model = build_model(SMALL_HYBRID, 5, 1)
    kernels = [m.weight for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert min(kernel.abs().max().item() for kernel in kernels) > 0
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_released_hybrids_start_with_a_zero_scale_in_every_block() -> None:
    cfg = replace(SMALL_HYBRID, resnet=ResNetConfig([1], [64], 16, "same", groups=8, preactivation=False))
    model = build_model(cfg, 5, 1)
    assert model.patch_embed.backbone.stages[0].blocks[0].norm3.weight.abs().max() == 0  # type: ignore[union-attr]


def test_five_stages_keep_their_strides() -> None:
    """timm would replace the fifth stage's stride by dilation."""
    cfg = ModelConfig("deep", "ResNet", 64, resnet=ResNetConfig([1] * 5, [32] * 5, 8, "small", groups=8))
    assert build_model(cfg, 0, 1).forward_features(torch.zeros(1, 1, 64, 64)).shape == (1, 32, 2, 2)  # type: ignore[operator]


def test_any_timm_classifier_with_our_classes_and_channels() -> None:
    cfg = compose(["model=timm", "model.name=test_vit", "model.image_size=32", "model.family=tiny"]).model
    model = build_model(cfg, 7, 1)
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert pre_logits(model, torch.zeros(2, 1, 32, 32)).shape == (2, model.num_features)


@pytest.mark.parametrize(
    "cfg, words",
    [
        (ModelConfig("x", "ViT"), ["vit", "resnet"]),
        (replace(SMALL, head="tanh"), ["head='tanh'", "hidden_tanh"]),
        (replace(SMALL, vit=ViTConfig(8, 64, 2, 4, dropout=1.0)), ["vit.dropout=1.0"]),
        (replace(SMALL, vit=ViTConfig(8, 64, 2, 4, activation="relu")), ["activation='relu'", "gelu"]),
        (replace(SMALL, vit=ViTConfig(8, 64, 0, 4)), ["depth"]),
        (replace(SMALL, image_size=225), ["image_size=225", "224 and 232"]),
        (replace(SMALL, image_size=5), ["image_size=5", "near: 8"]),
        (replace(SMALL, image_size=0), ["image_size=0"]),
        (replace(SMALL_HYBRID, vit=None, head="hidden_tanh"), ["hidden_tanh", "linear"]),
        (replace(SMALL_HYBRID, resnet=ResNetConfig([1], [48], 8, groups=8)), ["channels[0]=48", "multiple of 32"]),
        (replace(SMALL_HYBRID, resnet=ResNetConfig([1], [32], 12, groups=4)), ["stem_channels=12", "multiple of 8"]),
        (replace(SMALL_HYBRID, resnet=ResNetConfig([1], [64], 64)), ["channels[0]=64", "16", "groups=32"]),
        (
            replace(SMALL_HYBRID, resnet=ResNetConfig([1], [32], 8, block="basic", groups=8, preactivation=False)),
            ["preactivation"],
        ),
        (ModelConfig("resnet5", "x", timm=True), ["resnet5", "resnet50"]),
        (replace(SMALL, timm=True), ["timm=true"]),
        (ModelConfig("vit_base_patch16_224", "x", 225, timm=True), ["225", "16"]),
    ],
)
def test_impossible_models_say_what_and_why(cfg: ModelConfig, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        build_model(cfg, 10, 3, "meta")
    for word in words:
        assert word in str(caught.value)


def test_an_unknown_name_lists_near_matches() -> None:
    with pytest.raises(ConfigError, match=r"vit_b61.*vit_b16.*timm/NAME"):
        model_config("vit_b61")
    with pytest.raises(ConfigError, match=r"h10.*h100"):
        device_config("h10")
