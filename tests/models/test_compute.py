"""The count: traps, a second count by formula, real memory, the cache."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import ConfigError
from harness.models.build import build_model
from harness.models.closed_form import closed_form
from harness.models.compute import CONVENTIONS, SHIPPED, Cost, count, count_key
from harness.models.convolutions import ConvolutionFlops, convolution_flops
from harness.models.counting import count_afresh, count_module
from harness.models.devices import device_days, sustained_flops, tpu_v3_core_days
from harness.models.named import device_config, model_config, model_names
from harness.models.precision import attention_path
from harness.models.ship_counts import shipped_heads

POCKET = ("vit_pocket", "resnet_pocket", "hybrid_pocket")


@pytest.mark.parametrize("name", model_names())
def test_two_independent_counts_agree(name: str) -> None:
    """The promise is 0.5 %; both are exact today."""
    cfg = model_config(name)
    cost, formula = count(cfg, 18_291, 3, shipped=False), closed_form(cfg, 18_291, 3)
    assert cost.parameters == formula.parameters
    assert cost.forward_macs_per_image == formula.forward_macs_per_image
    assert cost.training_flops_per_image == formula.training_flops_per_image


@pytest.mark.parametrize("name", model_names())
def test_the_counts_that_ship_are_what_counting_gives(name: str) -> None:
    """`make docs` writes them again after a model in conf/ changed or came."""
    shipped = json.loads(SHIPPED.read_text())
    cfg = model_config(name)
    for classes, channels in shipped_heads(name):
        for convention in CONVENTIONS:
            assert count_key(cfg, classes, channels, convention) in shipped
        if classes in (18_291, 182):  # the others differ in the head alone
            for convention in CONVENTIONS:
                assert count(cfg, classes, channels, convention) == count(
                    cfg, classes, channels, convention, shipped=False
                )
        cost, formula = count(cfg, classes, channels), closed_form(cfg, classes, channels)
        assert (cost.parameters, cost.forward_macs_per_image, cost.training_flops_per_image) == formula[:3]


def test_flops_of_the_largest_models_stay_under_500_mb_resident() -> None:
    """Of a process of its own: /proc counts the peak of what it held, children apart."""
    code = (
        "import sys; from harness.cli import main; code = main(['flops', 'vit_h14', 'r200x3']);"
        "print([line for line in open('/proc/self/status') if line.startswith('VmHWM')][0]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout.split("VmHWM:")[1].split()[0]) < 500_000


@settings(max_examples=10, deadline=None)
@given(
    layers=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    stem=st.sampled_from(["fixed", "small"]),
    block=st.sampled_from(["basic", "bottleneck"]),
    size=st.integers(17, 40),
    vit=st.booleans(),
)
def test_two_independent_counts_agree_on_any_model(
    layers: list[int], stem: str, block: str, size: int, vit: bool
) -> None:
    resnet = ResNetConfig(layers, [32 * (i + 1) for i in range(len(layers))], 8, stem, 2, block, groups=8)
    cfg = ModelConfig("any", "any", size, resnet=resnet)
    if vit:
        cfg = replace(cfg, image_size=32, vit=ViTConfig(1, 24, 1, 3))
    cost, formula = count_afresh(cfg, 7, 1)["executed"], closed_form(cfg, 7, 1)
    assert (cost.parameters, cost.forward_macs_per_image) == formula[:2]
    assert cost.training_flops_per_image == formula.training_flops_per_image


@pytest.mark.parametrize("switch", ["fused", "unfused"])
def test_attention_is_counted_under_either_switch(switch: str) -> None:
    """On a CPU, torch's counter gives 0 for fused attention; ViT-B/16 would lose 4 %."""
    with attention_path(switch):
        cost = count_afresh(model_config("vit_pocket"), 10, 1)["executed"]
    tokens, width, depth = 5, 48, 2
    assert cost.attention_share * cost.forward_macs_per_image == pytest.approx(2 * tokens**2 * width * depth)
    assert cost == count_afresh(model_config("vit_pocket"), 10, 1)["executed"]


def test_gradient_checkpointing_is_not_counted_twice() -> None:
    model = build_model(model_config("vit_pocket"), 10, 1, "meta")
    model.set_grad_checkpointing(True)  # type: ignore[operator]
    assert count_module(model, torch.empty(1, 1, 16, 16, device="meta"))["executed"] == count(
        model_config("vit_pocket"), 10, 1
    )


def test_weight_standardisation_is_left_out() -> None:
    """fvcore charges its normalisation of every weight to one image: 3-8 % of a ResNet."""
    cfg = model_config("resnet_pocket")
    plain = build_model(cfg, 10, 1, "meta")
    for name, module in list(plain.named_modules()):
        if type(module).__name__ == "StdConv2d":
            parent = plain.get_submodule(name.rpartition(".")[0])
            same = nn.Conv2d(
                module.in_channels, module.out_channels, module.kernel_size, module.stride, module.padding, bias=False
            )  # type: ignore[arg-type]
            setattr(parent, name.rpartition(".")[2], same.to("meta"))
    without = count_module(plain, torch.empty(1, 1, 16, 16, device="meta"))["executed"]
    assert without.training_flops_per_image == count(cfg, 10, 1).training_flops_per_image


@pytest.mark.parametrize("name", POCKET)
def test_counts_are_linear_in_the_batch(name: str) -> None:
    model = build_model(model_config(name), 10, 1, "meta")
    costs = [count_module(model, torch.empty(batch, 1, 16, 16, device="meta")) for batch in (1, 7)]
    assert costs[0] == costs[1]


def test_a_mac_is_two_flops_and_the_first_layer_has_no_input_gradient() -> None:
    cfg = ModelConfig("one", "ViT", 8, vit=ViTConfig(8, 8, 1, 1))
    cost = count(cfg, 0, 1)
    embedding, tokens, width = 64 * 8, 2, 8
    macs = embedding + tokens * 12 * width**2 + 2 * tokens**2 * width
    assert cost.forward_macs_per_image == macs
    assert cost.training_flops_per_image == 2 * (3 * macs - embedding)


def test_head_share_with_and_without_hidden_layer() -> None:
    cfg = ModelConfig("one", "ViT", 8, vit=ViTConfig(8, 8, 1, 1))
    assert count(cfg, 0, 1).head_share == 0
    for head, macs in (("linear", 8 * 100), ("hidden_tanh", 8 * 8 + 8 * 100)):
        cost = count(replace(cfg, head=head), 100, 1)
        assert cost.head_share * cost.forward_macs_per_image == pytest.approx(macs)


@settings(max_examples=40, deadline=None)
@given(
    size=st.integers(3, 9),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2]),
)
def test_padding_products_are_counted_one_by_one(
    size: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    """Oracle: convolve ones with ones; the sum of the outputs is the number of products that are not with padding."""
    if size + 2 * padding < dilation * (kernel - 1) + 1:
        return
    images, weight = torch.ones(2, 4, size, size), torch.ones(6, 4 // groups, kernel, kernel)
    output = torch.nn.functional.conv2d(images, weight, None, stride, padding, dilation, groups)
    options = ([stride] * 2, [padding] * 2, [dilation] * 2, False)
    assert convolution_flops(images.shape, weight.shape, options, padded=False) == 2 * int(output.sum())
    every = output.numel() * weight[0].numel()
    assert convolution_flops(images.shape, weight.shape, options, padded=True) == 2 * every


@pytest.mark.parametrize("groups", [1, 4])
def test_grouped_convolutions_cost_their_share_in_the_backward_pass(groups: int) -> None:
    """torch's own formula counts the weight gradient of a grouped convolution as if it had one group."""
    layer = nn.Conv2d(8, 8, 3, padding=1, groups=groups, bias=False, device="meta")
    images = torch.empty(1, 8, 5, 5, device="meta", requires_grad=True)
    with FlopCounterMode(display=False, custom_mapping=ConvolutionFlops().mapping()) as counter:
        output = layer(images)
        forward = counter.get_total_flops()
        output.sum().backward()
    assert forward == 2 * 25 * 9 * 8 * 8 // groups
    assert counter.get_total_flops() == 3 * forward


def test_the_papers_convention_leaves_padding_out() -> None:
    """Of a 7x7 map, 'same' 3x3 convolutions keep (19 / 21)^2 of their products; ViTs have no padding."""
    assert convolution_flops([1, 1, 7, 7], [1, 1, 3, 3], ([1, 1], [1, 1], [1, 1], False), padded=False) == 2 * 19**2
    executed, paper = (count(model_config("r50x1"), 18_291, 3, c) for c in ("executed", "paper"))
    assert 0.96 < paper.training_flops_per_image / executed.training_flops_per_image < 0.98
    executed, paper = (count(model_config("vit_b32"), 18_291, 3, c) for c in ("executed", "paper"))
    assert paper == replace(executed, convention="paper")


RELEASED_STYLE_HYBRID = ModelConfig(
    "hybrid",
    "hybrid",
    32,
    vit=ViTConfig(1, 24, 2, 3, activation="gelu_tanh", dropout=0.0),
    resnet=ResNetConfig([1, 2], [32, 64], 8, "same", groups=8, preactivation=False),
    head="hidden_tanh",
)


@pytest.mark.parametrize("cfg", [*map(model_config, POCKET), RELEASED_STYLE_HYBRID], ids=lambda cfg: cfg.name)
def test_activation_memory_is_what_a_real_step_keeps(cfg: ModelConfig) -> None:
    """Oracle: tensors saved by real forward passes on a CPU with fused attention."""
    with attention_path("fused"):
        model = build_model(cfg, 10, 3).train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes = []
    for batch in (1, 2):
        kept: dict[int, torch.Tensor] = {}
        with saved_tensors_hooks(lambda t, kept=kept: kept.setdefault(t.untyped_storage().data_ptr(), t), lambda t: t):
            output = model(torch.zeros(batch, 3, cfg.image_size, cfg.image_size))
        sizes.append(sum(t.untyped_storage().nbytes() for pointer, t in kept.items() if pointer not in weights))
        del output
    assert count(cfg, 10, 3).activation_bytes_per_image == sizes[1] - sizes[0]


def test_training_memory_and_exaflops_by_hand() -> None:
    cost = Cost(1000, 10, 60, 0.0, 0.0, 500, "executed")
    assert cost.training_bytes(8) == 16 * 1000 + 8 * 500
    assert cost.training_bytes(8, "bf16") == 16 * 1000 + round(0.56 * 8 * 500)
    assert cost.exaflops(1e18) == 60


def test_counting_leaves_the_random_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    count_afresh(model_config("hybrid_pocket"), 10, 1)
    assert torch.equal(torch.rand(3), expected)


def test_an_unknown_convention_is_an_error() -> None:
    with pytest.raises(ConfigError, match="xla"):
        count(model_config("vit_pocket"), 10, 1, "xla")


def file_of(folder: Path, convention: str) -> Path:
    """The cached count of a convention; there must be one."""
    (file,) = [path for path in folder.iterdir() if json.loads(path.read_text())["convention"] == convention]
    return file


class TestCache:
    """One small file a count, trusted only when whole. No counts of 9 classes ship."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
        return tmp_path / "costs"

    def test_a_second_count_is_read_back(self, folder: Path) -> None:
        cost = count(model_config("vit_pocket"), 9, 1)
        file = file_of(folder, "executed")
        assert json.loads(file.read_text()) == asdict(cost)
        file.write_text(json.dumps(asdict(cost) | {"parameters": 7}))
        assert count(model_config("vit_pocket"), 9, 1).parameters == 7

    @pytest.mark.parametrize("damage", ["", "{", "[]", '{"parameters": 1}', "null"])
    def test_a_damaged_file_is_counted_again_and_replaced(self, folder: Path, damage: str) -> None:
        cost = count(model_config("vit_pocket"), 9, 1)
        file = file_of(folder, "executed")
        file.write_text(damage)
        assert count(model_config("vit_pocket"), 9, 1) == cost
        assert json.loads(file.read_text()) == asdict(cost)

    def test_a_value_of_the_wrong_type_is_counted_again(self, folder: Path) -> None:
        cost = count(model_config("vit_pocket"), 9, 1)
        file = file_of(folder, "executed")
        file.write_text(json.dumps(asdict(cost) | {"parameters": "many"}))
        assert count(model_config("vit_pocket"), 9, 1) == cost

    def test_the_key_is_what_decides_the_count(self, folder: Path) -> None:
        cfg = model_config("vit_pocket")
        count(cfg, 9, 1)
        count(replace(cfg, name="renamed", family="other", head_bias=-10.0), 9, 1)
        assert len(list(folder.iterdir())) == 2  # a file a convention
        for other in (replace(cfg, image_size=32), replace(cfg, head="hidden_tanh")):
            count(other, 9, 1)
        count(cfg, 11, 1), count(cfg, 9, 3), count(cfg, 9, 1, "paper")
        assert len(list(folder.iterdir())) == 10

    def test_a_folder_that_cannot_be_written_is_no_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "file"))
        assert count(model_config("vit_pocket"), 9, 1).parameters > 0


def test_device_days_and_the_papers_core_days() -> None:
    a100 = device_config("a100")
    assert sustained_flops(a100, "bf16") == pytest.approx(312e12 * a100.utilisation)
    assert sustained_flops(a100, "fp32") == pytest.approx(19.5e12 * a100.utilisation)
    assert device_days(312e12 * a100.utilisation * 86_400, a100, "bf16") == pytest.approx(1)
    # Table 2: ViT-L/16 680 and ViT-H/14 2,500 TPUv3-core-days; one rate lies between theirs
    assert tpu_v3_core_days(1567e18) == pytest.approx(680, rel=0.2)
    assert tpu_v3_core_days(4262e18) == pytest.approx(2500, rel=0.2)
