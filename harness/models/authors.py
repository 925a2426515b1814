"""The authors' published checkpoints (.npz) under timm's tensor names: ViT, hybrid, BiT.

Names and layouts of google-research/vision_transformer (vit_jax/models_vit.py, models_resnet.py) and of
google-research/big_transfer: dense kernels are (in, out), attention kernels (width, heads, head width), convolution
kernels (height, width, in, out). Query, key and value are one matrix here.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from harness.config import ModelConfig, ViTConfig
from harness.errors import HarnessError

Arrays = Mapping[str, np.ndarray]
Tensors = dict[str, Tensor]


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Every array of a file. No pickle is read. Raises HarnessError for a file that is none."""
    try:
        loaded = np.load(path, allow_pickle=False)
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError("one array: a .npy by another name")
        with loaded as file:
            names = {plain_name(name): name for name in file.files}
            if len(names) < len(file.files):
                raise ValueError(f"arrays of one name: {', '.join(sorted(set(file.files) - set(names.values()))[:3])}")
            return {name: np.asarray(file[stored]) for name, stored in names.items()}
    except (OSError, ValueError, BadZipFile, EOFError, RuntimeError, MemoryError) as error:  # RuntimeError: encrypted
        raise HarnessError(f"{path}: not a readable .npz ({error})") from error


def plain_name(name: str) -> str:
    """A name without what wraps the weights in some files (opt/target/, params/), or numbers their layers (BiT)."""
    name = re.sub(r"^(opt/target/|params/)", "", name)
    return re.sub(r"/standardized_conv2d_\d+/", "/standardized_conv2d/", name)


def tensors_of(arrays: Arrays, config: ModelConfig, what: str) -> Tensors:
    """The arrays of a checkpoint as tensors of the network of `config`.

    Raises HarnessError naming the arrays that are missing, of another shape, or that nothing here wants.
    """
    reader = Reader(arrays)
    if config.vit is None:
        assert config.resnet is not None
        tensors = bit_tensors(reader, config.resnet.layers)
    else:
        tensors = vit_tensors(reader, config.vit)
        if config.resnet is not None:
            tensors |= hybrid_tensors(reader, config.resnet.layers)
    problems = reader.problems + [f"left over: {name}" for name in reader.left_over()]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise HarnessError(f"{what}: not a checkpoint of {config.name}: {shown}")
    return tensors


class Reader:
    """Arrays by name; remembers which were asked for, and what was wrong with them."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays, self.taken, self.problems = arrays, set[str](), list[str]()

    def __contains__(self, name: str) -> bool:
        return name in self.arrays

    def get(
        self,
        name: str,
        change: Callable[[np.ndarray], np.ndarray] = lambda array: array,
        wanted: tuple[int, ...] | None = None,
    ) -> Tensor:
        """An array, changed, as a float32 tensor; an empty one, noted as a problem, where there is none that fits.

        Args:
            wanted: its shape in the file, where `change` would hide another one.
        """
        self.taken.add(name)
        if name not in self.arrays:
            self.problems.append(f"missing: {name}")
            return torch.empty(0)
        array = self.arrays[name]
        if wanted is not None and array.shape != wanted:
            self.problems.append(f"array {name} is {array.shape}, wanted {wanted}")
            return torch.empty(0)
        if np.iscomplexobj(array):
            self.problems.append(f"array {name} is of {array.dtype}, not real numbers")
            return torch.empty(0)
        try:
            return torch.from_numpy(np.array(change(array), dtype=np.float32))
        except (ValueError, IndexError, TypeError) as error:
            self.problems.append(f"array {name} of shape {array.shape} does not fit ({error})")
            return torch.empty(0)

    def left_over(self) -> list[str]:
        """Names that nobody asked for."""
        return sorted(set(self.arrays) - self.taken)


def dense(array: np.ndarray) -> np.ndarray:
    """(in, out) to (out, in)."""
    return array.T


def convolution(array: np.ndarray) -> np.ndarray:
    """(height, width, in, out) to (out, in, height, width)."""
    return array.transpose(3, 2, 0, 1)


def incoming(array: np.ndarray) -> np.ndarray:
    """A query, key or value kernel (width, heads, head width) to (heads x head width, width)."""
    return array.reshape(array.shape[0], -1).T


def outgoing(array: np.ndarray) -> np.ndarray:
    """The kernel (heads, head width, width) of what attention gives to (width, heads x head width)."""
    return array.reshape(-1, array.shape[-1]).T


def flat(array: np.ndarray) -> np.ndarray:
    """A bias (heads, head width), or a scale (1, 1, 1, channels), to one dimension."""
    return array.reshape(-1)


def vit_tensors(reader: Reader, vit: ViTConfig) -> Tensors:
    """The transformer, its embedding and its head."""
    tensors = {
        "cls_token": reader.get("cls"),
        "pos_embed": reader.get("Transformer/posembed_input/pos_embedding"),
        "patch_embed.proj.weight": reader.get("embedding/kernel", convolution),
        "patch_embed.proj.bias": reader.get("embedding/bias"),
        **norm(reader, "Transformer/encoder_norm", "norm"),
    }
    for block in range(vit.depth):
        tensors |= block_tensors(reader, f"Transformer/encoderblock_{block}", f"blocks.{block}", vit)
    if "pre_logits/kernel" in reader:
        tensors |= layer(reader, "pre_logits", "head.pre_logits.dense") | layer(reader, "head", "head.fc")
    elif "head/kernel" in reader:
        tensors |= layer(reader, "head", "head")
    return tensors


def block_tensors(reader: Reader, theirs: str, ours: str, vit: ViTConfig) -> Tensors:
    """One encoder block. Heads are an axis in the file and none here, so another number of them is told only there."""
    attention = f"{theirs}/MultiHeadDotProductAttention_1"
    heads = (vit.heads, vit.width // vit.heads)
    parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
    kernels = [reader.get(f"{part}/kernel", incoming, (vit.width, *heads)) for part in parts]
    return {
        **norm(reader, f"{theirs}/LayerNorm_0", f"{ours}.norm1"),
        f"{ours}.attn.qkv.weight": torch.cat(kernels),
        f"{ours}.attn.qkv.bias": torch.cat([reader.get(f"{part}/bias", flat, heads) for part in parts]),
        f"{ours}.attn.proj.weight": reader.get(f"{attention}/out/kernel", outgoing, (*heads, vit.width)),
        f"{ours}.attn.proj.bias": reader.get(f"{attention}/out/bias"),
        **norm(reader, f"{theirs}/LayerNorm_2", f"{ours}.norm2"),
        **layer(reader, f"{theirs}/MlpBlock_3/Dense_0", f"{ours}.mlp.fc1"),
        **layer(reader, f"{theirs}/MlpBlock_3/Dense_1", f"{ours}.mlp.fc2"),
    }


def hybrid_tensors(reader: Reader, layers: list[int]) -> Tensors:
    """The post-activation ResNet below a hybrid's transformer."""
    root = "patch_embed.backbone"
    tensors = {
        f"{root}.stem.conv.weight": reader.get("conv_root/kernel", convolution),
        **norm(reader, "gn_root", f"{root}.stem.norm"),
    }
    for stage, units in enumerate(layers):
        for unit in range(units):
            theirs, ours = f"block{stage + 1}/unit{unit + 1}", f"{root}.stages.{stage}.blocks.{unit}"
            for number in (1, 2, 3):
                tensors[f"{ours}.conv{number}.weight"] = reader.get(f"{theirs}/conv{number}/kernel", convolution)
                tensors |= norm(reader, f"{theirs}/gn{number}", f"{ours}.norm{number}")
            if unit == 0:
                tensors[f"{ours}.downsample.conv.weight"] = reader.get(f"{theirs}/conv_proj/kernel", convolution)
                tensors |= norm(reader, f"{theirs}/gn_proj", f"{ours}.downsample.norm")
    return tensors


def bit_tensors(reader: Reader, layers: list[int]) -> Tensors:
    """BiT: the pre-activation ResNet."""
    tensors = {
        "stem.conv.weight": reader.get("resnet/root_block/standardized_conv2d/kernel", convolution),
        **norm(reader, "resnet/group_norm", "norm", "gamma", "beta"),
    }
    for stage, units in enumerate(layers):
        for unit in range(units):
            theirs, ours = f"resnet/block{stage + 1}/unit{unit + 1:02d}", f"stages.{stage}.blocks.{unit}"
            for number, letter in enumerate("abc", start=1):
                kernel = f"{theirs}/{letter}/standardized_conv2d/kernel"
                tensors[f"{ours}.conv{number}.weight"] = reader.get(kernel, convolution)
                tensors |= norm(reader, f"{theirs}/{letter}/group_norm", f"{ours}.norm{number}", "gamma", "beta")
            if unit == 0:
                kernel = f"{theirs}/a/proj/standardized_conv2d/kernel"
                tensors[f"{ours}.downsample.conv.weight"] = reader.get(kernel, convolution)
    if "resnet/head/conv2d/kernel" in reader:
        tensors["head.fc.weight"] = reader.get("resnet/head/conv2d/kernel", convolution)
        tensors["head.fc.bias"] = reader.get("resnet/head/conv2d/bias")
    return tensors


def norm(reader: Reader, theirs: str, ours: str, scale: str = "scale", bias: str = "bias") -> Tensors:
    """Scale and bias of a normalisation."""
    return {
        f"{ours}.weight": reader.get(f"{theirs}/{scale}", flat),
        f"{ours}.bias": reader.get(f"{theirs}/{bias}", flat),
    }


def layer(reader: Reader, theirs: str, ours: str) -> Tensors:
    """Kernel and bias of a dense layer."""
    return {f"{ours}.weight": reader.get(f"{theirs}/kernel", dense), f"{ours}.bias": reader.get(f"{theirs}/bias")}
