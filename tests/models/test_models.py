"""Networks are what their configuration says, compute-matched, counted without the known traps."""

import dataclasses
from pathlib import Path

import pytest
import torch

from harness.compose import compose
from harness.config import ModelConfig
from harness.errors import ConfigError
from harness.models.build import build_model, pre_logits
from harness.models.compute import count
from harness.models.precision import attention_path, cpu_has_native_bf16, resolve

POCKET = ("vit_pocket", "resnet_pocket", "hybrid_pocket")
ICON = ("vit_icon", "resnet_icon")
GLYPH = ("vit_glyph", "resnet_glyph", "hybrid_glyph", "vit_p4_glyph")


def model_config(name: str, *overrides: str) -> ModelConfig:
    return compose([f"model={name}", *overrides]).model


@pytest.mark.parametrize("num_classes", [10, 550])
def test_pocket_models_are_compute_matched_within_5_percent(num_classes: int) -> None:
    flops = [count(model_config(name), num_classes, 1).training_flops_per_image for name in POCKET]
    assert max(flops) / min(flops) <= 1.05, flops


@pytest.mark.parametrize("width", ["_w32", "", "_w64", "_w96"])
def test_rungs_of_the_pocket_ladder_cost_within_10_percent_of_the_vit(width: str) -> None:
    flops = [count(model_config(name + width), 547, 1).training_flops_per_image for name in POCKET]
    assert all(0.9 <= value / flops[0] <= 1.1 for value in flops), flops


@pytest.mark.parametrize("names, num_classes, channels", [(GLYPH, 182, 1), (ICON, 1000, 3)])
def test_models_of_the_published_studies_are_compute_matched_within_3_percent(
    names: tuple[str, ...], num_classes: int, channels: int
) -> None:
    """In training and in the forward pass, with the classes and channels that the study has."""
    costs = [count(model_config(name), num_classes, channels) for name in names]
    for column in ("training_flops_per_image", "forward_macs_per_image"):
        values = [getattr(cost, column) for cost in costs]
        assert max(values) / min(values) <= 1.03, values


def test_vit_forward_macs_equal_the_closed_formula() -> None:
    """Patch embedding, per layer qkv + attention + projection + MLP on 5 tokens, head on one."""
    width, tokens, classes = 48, 5, 10
    layer = tokens * (4 * width * width + 2 * 4 * width * width) + 2 * tokens * tokens * width
    macs = 4 * (8 * 8 * width) + 2 * layer + width * classes
    assert count(model_config("vit_pocket"), classes, 1).forward_macs_per_image == macs


def test_resnet_forward_macs_equal_the_closed_formula() -> None:
    """Stem at 8x8, then (8,8), (4,4), (2,2) maps: two 3x3 convolutions a block, a 1x1 on the skip where it shrinks."""
    macs = 64 * 9 * 1 * 8
    channels_in = 8
    for size, channels in ((8, 8), (4, 24), (2, 40)):
        positions = size * size
        skip = channels_in * channels if channels != channels_in else 0
        macs += positions * (9 * channels_in * channels + 9 * channels * channels + skip)
        channels_in = channels
    assert count(model_config("resnet_pocket"), 10, 1).forward_macs_per_image == macs + 40 * 10


@pytest.mark.parametrize("name", POCKET)
def test_training_flops_are_a_little_under_three_forwards(name: str) -> None:
    cost = count(model_config(name), 10, 1)
    assert 2.8 <= cost.training_flops_per_image / (2 * cost.forward_macs_per_image) < 3.0


@pytest.mark.parametrize("name", POCKET)
def test_parameters_counted_on_meta_are_those_of_the_real_network(name: str) -> None:
    model = build_model(model_config(name), 10, 1)
    assert count(model_config(name), 10, 1).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("attention", ["fused", "unfused"])
def test_attention_is_counted_whatever_the_path(attention: str) -> None:
    with attention_path(attention):
        cost = count(model_config("vit_pocket"), 10, 1)
    assert cost == count(model_config("vit_pocket"), 10, 1)


@pytest.mark.parametrize("name", POCKET)
def test_logits_start_at_zero_and_features_have_the_classifiers_width(name: str) -> None:
    torch.manual_seed(0)
    model = build_model(model_config(name), 7, 1)
    images = torch.randn(3, 1, 16, 16)
    assert torch.equal(model(images), torch.zeros(3, 7))
    features = pre_logits(model, images)
    assert features.shape == (3, {"vit_pocket": 48, "resnet_pocket": 40, "hybrid_pocket": 40}[name])
    assert features.std() > 0


@pytest.mark.parametrize("name", POCKET)
def test_initialisation_is_a_function_of_the_seed(name: str) -> None:
    def parameters(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return torch.cat([p.flatten() for p in build_model(model_config(name), 7, 1).parameters()])

    assert torch.equal(parameters(1), parameters(1))
    assert not torch.equal(parameters(1), parameters(2))


def test_vit_kernels_start_as_in_the_authors_code() -> None:
    """Xavier-uniform a matrix: |w| <= sqrt(6 / (fan in + fan out)), query, key and value apart."""
    torch.manual_seed(0)
    block = build_model(model_config("vit_pocket"), 7, 1).requires_grad_(False).blocks[0]  # type: ignore[index]
    kernels = [*block.attn.qkv.weight.chunk(3), block.attn.proj.weight, block.mlp.fc1.weight, block.mlp.fc2.weight]
    for kernel in kernels:
        bound = (6 / sum(kernel.shape)) ** 0.5
        assert 0.97 * bound < kernel.abs().max() <= bound
        assert kernel.std() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_the_resnet_is_bit_style() -> None:
    """Pre-activation blocks, GroupNorm, weight-standardised convolutions everywhere, stem included."""
    model = build_model(model_config("resnet_pocket"), 7, 1)
    kinds = {type(module).__name__ for module in model.modules()}
    assert "PreActBasic" in kinds
    assert "GroupNormAct" in kinds
    assert not {"BatchNorm2d", "BatchNormAct2d"} & kinds
    kernels = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d) and m.kernel_size != (1, 1)]
    assert len(kernels) == 7
    assert {type(m).__name__ for m in kernels} == {"StdConv2d"}


@pytest.mark.parametrize(
    "name, overrides, words",
    [
        ("vit_pocket", ["model.vit.patch_size=7"], ["image_size=16", "patch_size=7"]),
        ("vit_pocket", ["model.vit.heads=5"], ["width=48", "heads=5"]),
        ("resnet_pocket", ["model.resnet.groups=32"], ["groups=32"]),
        ("resnet_pocket", ["model.resnet.channels=[8,24]"], ["layers", "channels"]),
        ("resnet_pocket", ["model.resnet.block=bottlenec"], ["bottleneck"]),
        ("hybrid_pocket", ["model.image_size=20"], ["image_size=20", "8"]),
        ("hybrid_pocket", ["model.vit.patch_size=2"], ["1x1"]),
    ],
)
def test_combinations_that_cannot_work_name_their_fields(name: str, overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        count(model_config(name, *overrides), 10, 1)
    for word in words:
        assert word in str(caught.value)


def test_precision_follows_the_device_and_the_size(tmp_path: Path) -> None:
    cpu = compose([]).device
    small = count(model_config("vit_pocket"), 10, 1)
    assert resolve(cpu, small) == ("fp32", "unfused")
    gpu = dataclasses.replace(cpu, kind="cuda", peak_flops_bf16=1e15)
    assert resolve(gpu, small) == ("bf16", "fused")
    assert resolve(dataclasses.replace(gpu, peak_flops_bf16=None), small) == ("fp32", "fused")
    assert resolve(cpu, small, precision="bf16", attention="fused") == ("bf16", "fused")
    large = dataclasses.replace(small, forward_macs_per_image=10**7)
    assert resolve(cpu, large)[0] == ("bf16" if cpu_has_native_bf16() else "fp32")
    with pytest.raises(ConfigError, match="bf16"):
        resolve(cpu, small, precision="bf61")
    for flags, expected in (("fpu avx512_bf16", True), ("fpu avx2", False)):
        (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags\t\t: {flags}\n")
        assert cpu_has_native_bf16(tmp_path / "cpuinfo") is expected
    assert cpu_has_native_bf16(tmp_path / "missing") is False
