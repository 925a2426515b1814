"""Networks from files of weights: harness's own, timm's (safetensors), and the authors' .npz.

The format is told by the file: `.npz` is the authors'; in a safetensors file names that begin with `model/` are ours.
What the file says of its head and channels decides over the model's configuration, which decides over the rest.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from harness.config import ModelConfig
from harness.errors import HarnessError
from harness.models.adapt import head_name, resized
from harness.models.authors import read_npz, tensors_of
from harness.models.build import build_model

OURS = "model/"


@dataclass(frozen=True)
class Imported:
    """Weights of a file and the network that they fit."""

    config: ModelConfig
    tensors: Mapping[str, Tensor]
    num_classes: int  # 0 for a file without a head
    channels: int
    sha256: str


def import_checkpoint(path: Path, config: ModelConfig) -> Imported:
    """Read a checkpoint of the network of `config`; position embeddings may be of another resolution.

    Raises HarnessError for a file that is not readable, and for one of another network, naming the tensors.
    """
    if not path.is_file():
        what = "a folder; name the file in it" if path.is_dir() else "there is no such file"
        raise HarnessError(f"checkpoint={path}: {what}")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    if path.suffix == ".npz":
        tensors: Mapping[str, Tensor] = tensors_of(read_npz(path), config, str(path))
    elif path.suffix == ".safetensors":
        tensors = read_safetensors(path)
    else:
        raise HarnessError(
            f"checkpoint={path}: only .safetensors and .npz are read; others are pickles, which can run code. "
            "timm models: model.save_pretrained, or safetensors.torch.save_file(model.state_dict(), FILE)"
        )
    if config.vit is not None:
        hidden = any(name.startswith("head.pre_logits.") for name in tensors)
        config = replace(config, head="hidden_tanh" if hidden else "linear")
    try:
        classes, channels = classes_of(config, tensors), channels_of(config, tensors)
        check_numbers(tensors, resized(config, tensors, config.image_size, classes, channels))
    except HarnessError as error:
        raise HarnessError(f"{path}: {error}") from error
    return Imported(config, tensors, classes, channels, sha256)


def check_numbers(tensors: Mapping[str, Tensor], network: nn.Module) -> None:
    """Raise HarnessError naming a tensor that holds NaN or infinity, or integers where the network has real numbers."""
    expected = network.state_dict()
    for name, tensor in tensors.items():
        if tensor.is_floating_point():
            if not bool(tensor.isfinite().all()):
                raise HarnessError(f"tensor {name} holds numbers that are not finite")
        elif name in expected and expected[name].is_floating_point():
            raise HarnessError(f"tensor {name} is of {tensor.dtype}, not real numbers")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The network's tensors of a file of ours or of timm's."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            ours = [name for name in names if name.startswith(OURS)]
            return {name.removeprefix(OURS): file.get_tensor(name) for name in ours or names}
    except (OSError, SafetensorError) as error:
        raise HarnessError(f"{path}: not a readable safetensors file ({error})") from error


def classes_of(config: ModelConfig, tensors: Mapping[str, Tensor]) -> int:
    """Outputs of the head in a file; 0 where there is none."""
    head = head_name(build_model(replace(config, head="linear"), 2, 3, device="meta"), config.name)
    for name in (f"{head}.weight", f"{head}.fc.weight"):
        if name in tensors:
            return len(tensors[name]) if tensors[name].ndim else 1  # a lone number: named when shapes are compared
    return 0


def channels_of(config: ModelConfig, tensors: Mapping[str, Tensor]) -> int:
    """Channels of the images, 3 or 1: those with which more of the network's tensors fit.

    Built, since neither names nor order of the tensors tell which of a network of timm's sees the image.
    """
    bare = replace(config, head="linear")

    def fitting(channels: int) -> int:
        wanted = build_model(bare, 2, channels, device="meta").state_dict()
        return sum(name in tensors and tensors[name].shape == tensor.shape for name, tensor in wanted.items())

    return max((3, 1), key=fitting)
