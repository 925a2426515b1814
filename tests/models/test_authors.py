"""Files in the authors' layout, made here by name and shape, against a forward pass that knows nothing of timm."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import HarnessError
from harness.models.adapt import downstream, resized
from harness.models.build import build_model, pre_logits
from harness.models.checkpoints import Imported, import_checkpoint
from harness.models.precision import attention_path

WIDTH, HEADS, DEPTH, CLASSES = 32, 4, 2, 7
VIT = ModelConfig("small_vit", "ViT", 32, ViTConfig(8, WIDTH, DEPTH, HEADS, activation="gelu_tanh"), head="hidden_tanh")
HYBRID = ModelConfig(
    "small_hybrid",
    "hybrid",
    32,
    ViTConfig(1, WIDTH, DEPTH, HEADS, activation="gelu_tanh"),
    ResNetConfig([2, 1], [128, 256], 32, stem="same", preactivation=False),
)
BIT = ModelConfig("small_bit", "ResNet", 64, None, ResNetConfig([2, 1], [128, 256], 32))
Arrays = dict[str, np.ndarray]


def arrays_of(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    """Random numbers of a sensible size; scales near one."""
    rng = np.random.default_rng(0)
    found = {}
    for name, shape in shapes.items():
        fan_in = max(1, int(np.prod(shape[:-1])))
        numbers = rng.normal(size=shape) / np.sqrt(fan_in)
        is_scale = name.endswith(("scale", "gamma"))
        found[name] = (1 + 0.1 * rng.normal(size=shape) if is_scale else numbers).astype(np.float32)
    return found


def vit_shapes(patch: int, inputs: int, tokens: int, hidden: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "cls": (1, 1, WIDTH),
        "embedding/kernel": (patch, patch, inputs, WIDTH),
        "embedding/bias": (WIDTH,),
        "Transformer/posembed_input/pos_embedding": (1, tokens + 1, WIDTH),
        "Transformer/encoder_norm/scale": (WIDTH,),
        "Transformer/encoder_norm/bias": (WIDTH,),
        "head/kernel": (WIDTH, CLASSES),
        "head/bias": (CLASSES,),
    }
    if hidden:
        shapes |= {"pre_logits/kernel": (WIDTH, WIDTH), "pre_logits/bias": (WIDTH,)}
    for number in range(DEPTH):
        block = f"Transformer/encoderblock_{number}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes |= {f"{block}/{norm}/scale": (WIDTH,), f"{block}/{norm}/bias": (WIDTH,)}
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            shapes[f"{attention}/{part}/kernel"] = (WIDTH, HEADS, WIDTH // HEADS)
            shapes[f"{attention}/{part}/bias"] = (HEADS, WIDTH // HEADS)
        shapes |= {f"{attention}/out/kernel": (HEADS, WIDTH // HEADS, WIDTH), f"{attention}/out/bias": (WIDTH,)}
        for dense, (inner, outer) in {"Dense_0": (WIDTH, 4 * WIDTH), "Dense_1": (4 * WIDTH, WIDTH)}.items():
            shapes[f"{block}/MlpBlock_3/{dense}/kernel"] = (inner, outer)
            shapes[f"{block}/MlpBlock_3/{dense}/bias"] = (outer,)
    return shapes


def hybrid_shapes() -> dict[str, tuple[int, ...]]:
    shapes = vit_shapes(1, 256, 16, hidden=False) | {"conv_root/kernel": (7, 7, 3, 32)}
    shapes |= {"gn_root/scale": (1, 1, 1, 32), "gn_root/bias": (1, 1, 1, 32)}
    before = 32
    for stage, (units, out) in enumerate([(2, 128), (1, 256)], start=1):
        for unit in range(1, units + 1):
            block, inner = f"block{stage}/unit{unit}", out // 4
            kernels = {"conv1": (1, 1, before, inner), "conv2": (3, 3, inner, inner), "conv3": (1, 1, inner, out)}
            for number, (name, shape) in enumerate(kernels.items(), start=1):
                shapes |= {f"{block}/{name}/kernel": shape}
                shapes |= {f"{block}/gn{number}/{part}": (shape[-1],) for part in ("scale", "bias")}
            if unit == 1:
                shapes[f"{block}/conv_proj/kernel"] = (1, 1, before, out)
                shapes |= {f"{block}/gn_proj/{part}": (out,) for part in ("scale", "bias")}
            before = out
    return shapes


def bit_shapes() -> dict[str, tuple[int, ...]]:
    kernel = "standardized_conv2d/kernel"
    shapes: dict[str, tuple[int, ...]] = {f"resnet/root_block/{kernel}": (7, 7, 3, 32)}
    before = 32
    for stage, (units, out) in enumerate([(2, 128), (1, 256)], start=1):
        for unit in range(1, units + 1):
            block, inner = f"resnet/block{stage}/unit{unit:02d}", out // 4
            for letter, shape in {
                "a": (1, 1, before, inner),
                "b": (3, 3, inner, inner),
                "c": (1, 1, inner, out),
            }.items():
                shapes[f"{block}/{letter}/{kernel}"] = shape
                shapes |= {f"{block}/{letter}/group_norm/{part}": (shape[2],) for part in ("gamma", "beta")}
            if unit == 1:
                shapes[f"{block}/a/proj/{kernel}"] = (1, 1, before, out)
            before = out
    shapes |= {"resnet/group_norm/gamma": (256,), "resnet/group_norm/beta": (256,)}
    return shapes | {"resnet/head/conv2d/kernel": (1, 1, 256, CLASSES), "resnet/head/conv2d/bias": (CLASSES,)}


# --- The forward passes, from the authors' code, on (B, H, W, C) or (B, N, D) numbers ---------------------------------


class Net:
    """Layers by the authors' names; torch's functions do the sums."""

    def __init__(self, arrays: Arrays, epsilon: float, hybrid: bool = False) -> None:
        self.hybrid = hybrid
        self.w = {name: torch.from_numpy(array).double() for name, array in arrays.items()}
        self.epsilon = epsilon

    def conv(self, x: torch.Tensor, name: str, stride: int, padding: str, standardise: bool) -> torch.Tensor:
        kernel = self.w[name]
        if standardise:
            kernel = kernel - kernel.mean((0, 1, 2), keepdim=True)
            variance = kernel.square().mean((0, 1, 2), keepdim=True)
            # vit_jax adds to the deviation, bit_pytorch (as timm) to the variance.
            kernel = kernel / (variance.sqrt() + 1e-5 if self.hybrid else torch.sqrt(variance + 1e-8))
        size, side = kernel.shape[0], x.shape[1]
        if padding == "SAME":  # what TensorFlow pads: more behind than in front
            total = max(0, (-(-side // stride) - 1) * stride + size - side)
            x = F.pad(x, (0, 0, total // 2, total - total // 2, total // 2, total - total // 2))
        return F.conv2d(x.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), stride=stride).permute(0, 2, 3, 1)

    def group_norm(self, x: torch.Tensor, scale: str, bias: str) -> torch.Tensor:
        grouped = x.reshape(len(x), -1, 32, x.shape[-1] // 32)
        mean, variance = grouped.mean((1, 3), keepdim=True), grouped.var((1, 3), keepdim=True, unbiased=False)
        normal = ((grouped - mean) / torch.sqrt(variance + self.epsilon)).reshape(x.shape)
        return normal * self.w[scale].reshape(-1) + self.w[bias].reshape(-1)

    def layer_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-6) * self.w[f"{name}/scale"] + self.w[f"{name}/bias"]

    def dense(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.w[f"{name}/kernel"] + self.w[f"{name}/bias"]

    def transformer(self, x: torch.Tensor) -> torch.Tensor:
        x = x.reshape(len(x), -1, x.shape[-1])
        x = torch.cat([self.w["cls"].expand(len(x), -1, -1), x], 1) + self.w["Transformer/posembed_input/pos_embedding"]
        for number in range(DEPTH):
            block = f"Transformer/encoderblock_{number}"
            attention = f"{block}/MultiHeadDotProductAttention_1"
            y = self.layer_norm(x, f"{block}/LayerNorm_0")
            query, key, value = (
                torch.einsum("bnd,dhe->bhne", y, self.w[f"{attention}/{part}/kernel"])
                + self.w[f"{attention}/{part}/bias"][:, None]
                for part in ("query", "key", "value")
            )
            weights = (query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5).softmax(-1)
            out = torch.einsum("bhne,hed->bnd", weights @ value, self.w[f"{attention}/out/kernel"])
            x = x + out + self.w[f"{attention}/out/bias"]
            y = self.dense(self.layer_norm(x, f"{block}/LayerNorm_2"), f"{block}/MlpBlock_3/Dense_0")
            x = x + self.dense(F.gelu(y, approximate="tanh"), f"{block}/MlpBlock_3/Dense_1")
        return self.layer_norm(x, "Transformer/encoder_norm")[:, 0]


def vit_forward(arrays: Arrays, images: torch.Tensor) -> torch.Tensor:
    net = Net(arrays, 1e-6)
    x = net.conv(images, "embedding/kernel", 8, "VALID", standardise=False) + net.w["embedding/bias"]
    x = net.transformer(x)
    if "pre_logits/kernel" in arrays:
        x = torch.tanh(net.dense(x, "pre_logits"))
    return net.dense(x, "head")


def hybrid_forward(arrays: Arrays, images: torch.Tensor) -> torch.Tensor:
    net = Net(arrays, 1e-6, hybrid=True)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return net.group_norm(x, f"{name}/scale", f"{name}/bias")

    x = net.conv(images, "conv_root/kernel", 2, "SAME", standardise=True)
    x = F.relu(norm(x, "gn_root")).permute(0, 3, 1, 2)
    x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=-torch.inf), 3, 2).permute(0, 2, 3, 1)
    for stage, units in enumerate((2, 1), start=1):
        for unit in range(1, units + 1):
            block, stride = f"block{stage}/unit{unit}", 2 if stage > 1 and unit == 1 else 1
            residual = x
            if unit == 1:
                residual = norm(net.conv(x, f"{block}/conv_proj/kernel", stride, "SAME", True), f"{block}/gn_proj")
            y = F.relu(norm(net.conv(x, f"{block}/conv1/kernel", 1, "SAME", True), f"{block}/gn1"))
            y = F.relu(norm(net.conv(y, f"{block}/conv2/kernel", stride, "SAME", True), f"{block}/gn2"))
            x = F.relu(residual + norm(net.conv(y, f"{block}/conv3/kernel", 1, "SAME", True), f"{block}/gn3"))
    x = net.conv(x, "embedding/kernel", 1, "VALID", standardise=False) + net.w["embedding/bias"]
    return net.dense(net.transformer(x), "head")


def bit_forward(arrays: Arrays, images: torch.Tensor) -> torch.Tensor:
    net, kernel = Net(arrays, 1e-5), "standardized_conv2d/kernel"

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.relu(net.group_norm(x, f"{name}/gamma", f"{name}/beta"))

    def conv(x: torch.Tensor, name: str, stride: int) -> torch.Tensor:
        side = net.w[name].shape[0] // 2  # BiT pads by hand, evenly
        return net.conv(F.pad(x, (0, 0, side, side, side, side)), name, stride, "VALID", standardise=True)

    x = conv(images, f"resnet/root_block/{kernel}", 2).permute(0, 3, 1, 2)
    x = F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 2).permute(0, 2, 3, 1)  # zeros, as there
    for stage, units in enumerate((2, 1), start=1):
        for unit in range(1, units + 1):
            block, stride = f"resnet/block{stage}/unit{unit:02d}", 2 if stage > 1 and unit == 1 else 1
            y = norm(x, f"{block}/a/group_norm")
            residual = conv(y, f"{block}/a/proj/{kernel}", stride) if unit == 1 else x
            y = conv(y, f"{block}/a/{kernel}", 1)
            y = conv(norm(y, f"{block}/b/group_norm"), f"{block}/b/{kernel}", stride)
            x = residual + conv(norm(y, f"{block}/c/group_norm"), f"{block}/c/{kernel}", 1)
    x = norm(x, "resnet/group_norm").mean((1, 2))
    return x @ net.w["resnet/head/conv2d/kernel"][0, 0] + net.w["resnet/head/conv2d/bias"]


POSITIONS = "Transformer/posembed_input/pos_embedding"
CASES = {
    "vit": (VIT, vit_shapes(8, 3, 16, hidden=True), vit_forward),
    "vit without hidden layer": (VIT, vit_shapes(8, 3, 16, hidden=False), vit_forward),
    "hybrid": (HYBRID, hybrid_shapes(), hybrid_forward),
    "hybrid of small weights": (HYBRID, hybrid_shapes(), hybrid_forward),
    "bit": (BIT, bit_shapes(), bit_forward),
}


def network(found: Imported, image_size: int) -> torch.nn.Module:
    with attention_path("unfused"):
        return resized(found.config, found.tensors, image_size, found.num_classes, found.channels).eval()


@pytest.mark.parametrize("config, shapes, forward", CASES.values(), ids=CASES)
def test_logits_equal_an_independent_forward_pass(
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    forward: Callable[[Arrays, torch.Tensor], torch.Tensor],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    arrays = arrays_of(shapes)
    if "small" in request.node.callspec.id:  # the standardisation's epsilon counts
        arrays |= {name: array * 1e-3 for name, array in arrays.items() if "conv" in name}
    np.savez(tmp_path / "weights.npz", **arrays)
    found = import_checkpoint(tmp_path / "weights.npz", config)
    assert (found.num_classes, found.channels) == (CLASSES, 3)
    torch.manual_seed(1)
    images = torch.randn(2, config.image_size, config.image_size, 3)
    with torch.no_grad():
        logits = network(found, config.image_size).double()(images.double().permute(0, 3, 1, 2))
    expected = forward(arrays, images.double())
    assert expected.std() > 0.05
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_a_wrapped_file_is_the_same(tmp_path: Path) -> None:
    arrays = arrays_of(CASES["vit"][1])
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez(tmp_path / "wrapped.npz", **{f"opt/target/{name}": array for name, array in arrays.items()})
    plain, wrapped = (import_checkpoint(tmp_path / f"{name}.npz", VIT) for name in ("plain", "wrapped"))
    assert all(torch.equal(plain.tensors[name], wrapped.tensors[name]) for name in plain.tensors)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda arrays: arrays.pop("Transformer/encoderblock_1/LayerNorm_2/scale"), "missing: .*encoderblock_1/LayerN"),
        (lambda arrays: arrays.update({"Transformer/encoderblock_2/x": np.zeros(1)}), "left over: .*encoderblock_2/x"),
        (
            lambda arrays: arrays.update({"embedding/bias": np.zeros(5)}),
            r"patch_embed.proj.bias is \(5,\), wanted \(32",
        ),
    ],
)
def test_a_mismatch_names_the_tensors(change: Callable[[Arrays], object], message: str, tmp_path: Path) -> None:
    arrays = arrays_of(CASES["vit"][1])
    change(arrays)
    np.savez(tmp_path / "weights.npz", **arrays)
    with pytest.raises(HarnessError, match=message):
        import_checkpoint(tmp_path / "weights.npz", VIT)


def test_another_number_of_heads_is_refused(tmp_path: Path) -> None:
    """As one matrix the kernels of 4 heads of 8 are as large as those of 2 heads of 16."""
    np.savez(tmp_path / "weights.npz", **arrays_of(CASES["vit"][1]))
    assert VIT.vit is not None
    with pytest.raises(HarnessError, match=r"query/kernel is \(32, 4, 8\), wanted \(32, 2, 16\)"):
        import_checkpoint(tmp_path / "weights.npz", replace(VIT, vit=replace(VIT.vit, heads=2)))


def test_an_array_of_another_rank_is_named_with_its_file(tmp_path: Path) -> None:
    arrays = arrays_of(CASES["vit"][1])
    np.savez(tmp_path / "flat.npz", **{**arrays, "embedding/kernel": np.zeros(5)})
    with pytest.raises(HarnessError, match=r"flat.npz: .*embedding/kernel of shape \(5,\) does not fit"):
        import_checkpoint(tmp_path / "flat.npz", VIT)


@pytest.mark.parametrize(
    "change, message",
    [
        ({POSITIONS: np.zeros(())}, r"pos_embed is \(\), wanted \(1, "),
        ({POSITIONS: np.zeros(7)}, r"pos_embed is \(7,\), wanted \(1, "),
        ({POSITIONS: np.zeros((1, 4, 4, 32))}, r"pos_embed is \(1, 4, 4, 32\), wanted \(1, "),
        ({POSITIONS: np.zeros((2, 5, 32))}, r"pos_embed is \(2, 5, 32\), wanted \(1, "),
        ({POSITIONS: np.zeros((1, 1, 32))}, r"pos_embed is \(1, 1, 32\), wanted \(1, "),
        ({"head/kernel": np.zeros(()), "head/bias": np.zeros(())}, r"head.fc.weight is \(\), wanted \(1, "),
        ({"embedding/bias": np.zeros(32, complex)}, "embedding/bias is of complex128, not real numbers"),
        ({"params/cls": np.zeros((1, 1, 32))}, r"not a readable .npz \(arrays of one name: cls"),
    ],
)
def test_odd_arrays_are_named_with_their_file(change: Arrays, message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "odd.npz", **{**arrays_of(CASES["vit"][1]), **change})
    with pytest.raises(HarnessError, match=rf"odd.npz: .*{message}"):
        import_checkpoint(tmp_path / "odd.npz", VIT)


def test_weights_of_another_resolution_get_their_position_embedding_resized(tmp_path: Path) -> None:
    arrays = arrays_of(CASES["vit"][1])
    np.savez(tmp_path / "weights.npz", **arrays)
    found = import_checkpoint(tmp_path / "weights.npz", replace(VIT, image_size=48))
    assert network(found, 48)(torch.zeros(1, 3, 48, 48)).shape == (1, CLASSES)


def test_position_embeddings_without_one_for_the_class_token_are_resized(tmp_path: Path) -> None:
    config = ModelConfig("deit3_small_patch16_224", "timm", 64, timm=True)
    save_file(build_model(config, 5, 3).state_dict(), tmp_path / "deit3.safetensors")
    found = import_checkpoint(tmp_path / "deit3.safetensors", replace(config, image_size=96))
    assert network(found, 96)(torch.zeros(1, 3, 96, 96)).shape == (1, 5)


@pytest.mark.parametrize("name", ["resnet10t", "convnext_atto", "mobilenetv3_small_050"])
def test_timm_safetensors_and_ours(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ModelConfig(name, "timm", 64, timm=True)
    model = build_model(config, 5, 1).eval()
    images = torch.randn(2, 1, 64, 64)
    save_file(model.state_dict(), tmp_path / "timm.safetensors")
    save_file({f"model/{name}": tensor for name, tensor in model.state_dict().items()}, tmp_path / "ours.safetensors")
    for file in ("timm", "ours"):
        found = import_checkpoint(tmp_path / f"{file}.safetensors", config)
        assert (found.num_classes, found.channels) == (5, 1)
        with torch.no_grad():
            torch.testing.assert_close(pre_logits(network(found, 64), images), pre_logits(model, images))
            tuned = downstream(found.config, found.tensors, 64, 3, 1).eval()
            torch.testing.assert_close(pre_logits(tuned, images), pre_logits(model, images))
            assert tuned(images).abs().max() == 0  # the new head starts at zero


def test_a_network_of_timm_without_one_linear_head_is_told(tmp_path: Path) -> None:
    config = ModelConfig("deit_tiny_distilled_patch16_224", "timm", 224, timm=True)
    save_file(build_model(config, 5, 3).state_dict(), tmp_path / "deit.safetensors")
    with pytest.raises(
        HarnessError, match=r"deit.safetensors: model deit_tiny_dist.* not one linear layer but 2 layers"
    ):
        import_checkpoint(tmp_path / "deit.safetensors", config)


def test_files_that_are_no_weights_are_told(tmp_path: Path) -> None:
    for name in ("a.npz", "a.safetensors", "a.pth"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(HarnessError, match=name):
            import_checkpoint(tmp_path / name, VIT)
    np.savez(tmp_path / "pickled.npz", cls=np.array([{"a": 1}], dtype=object))
    with pytest.raises(HarnessError, match="not a readable"):
        import_checkpoint(tmp_path / "pickled.npz", VIT)
    np.save(tmp_path / "renamed.npy", np.zeros(3))
    (tmp_path / "renamed.npy").rename(tmp_path / "renamed.npz")
    with pytest.raises(HarnessError, match=r"renamed.npz: not a readable .npz \(one array"):
        import_checkpoint(tmp_path / "renamed.npz", VIT)
