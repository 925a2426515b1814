"""A trained network at another image size, or with another head: what transfer builds from a checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.config import ModelConfig
from harness.errors import HarnessError
from harness.models.build import build_model
from harness.models.position_embedding import resize_position_embedding, square_grid

POSITIONS = "pos_embed"
SHOWN = 6


def resized(
    config: ModelConfig, tensors: Mapping[str, Tensor], image_size: int, num_classes: int, channels: int
) -> nn.Module:
    """The same network for images of `image_size` pixels. Raises HarnessError naming tensors that do not fit."""
    model = build_model(replace(config, image_size=image_size), num_classes, channels)
    return fill(model, tensors, config.name)


def downstream(
    config: ModelConfig, tensors: Mapping[str, Tensor], image_size: int, num_classes: int, channels: int
) -> nn.Module:
    """A network for a target: the backbone of `tensors`, and one linear layer that starts at zero in place of the head.

    The paper's pre-training head goes with its hidden layer (arXiv 2010.11929 §3.2). Raises HarnessError naming tensors
    that do not fit.
    """
    bare = replace(config, image_size=image_size, head="linear", head_bias=0.0)
    model = build_model(bare, num_classes, channels)
    head = head_name(model, config.name)
    prefix = f"{head}." if config.timm else "head."
    backbone = {name: tensor for name, tensor in tensors.items() if not name.startswith(prefix)}
    own = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(prefix)}
    model = fill(model, {**backbone, **own}, config.name)
    for parameter in model.get_submodule(head).parameters():
        nn.init.zeros_(parameter)
    return model


def head_name(model: nn.Module, what: str) -> str:
    """Where the last linear layer of a network of timm's kind is.

    Raises HarnessError for a network whose head is not one linear layer: transfer would not know what to replace.
    """
    classifier = model.get_classifier()  # type: ignore[operator]
    names = [name for name, module in model.named_modules() if module is classifier]
    if not names or not isinstance(classifier, nn.Linear | nn.Conv2d):  # BiT's is a convolution of one pixel
        several = isinstance(classifier, tuple | list | nn.ModuleList)
        found = f"{len(classifier)} layers" if several else type(classifier).__name__
        raise HarnessError(f"model {what}: its head is not one linear layer but {found}; transfer cannot replace it")
    return names[0]


def fill(model: nn.Module, tensors: Mapping[str, Tensor], what: str) -> nn.Module:
    """Load every tensor; position embeddings are resized to the network's grid.

    Raises HarnessError naming the tensors that are missing, left over or of another shape.
    """
    values, wanted = dict(tensors), model.state_dict()
    parts: Any = model
    grid = tuple(parts.patch_embed.grid_size) if POSITIONS in wanted else (0, 0)
    prefix = wanted[POSITIONS].shape[1] - math.prod(grid) if POSITIONS in wanted else 0  # a class token may have none
    if is_other_grid(values.get(POSITIONS), wanted.get(POSITIONS), prefix):
        old = square_grid(values[POSITIONS].shape[1] - prefix, what)
        values[POSITIONS] = resize_position_embedding(values[POSITIONS], old, grid, prefix)
    problems = mismatches({name: tuple(tensor.shape) for name, tensor in wanted.items()}, values)
    if problems:
        raise HarnessError(f"{what}: the checkpoint is of another network: {problems}")
    with torch.no_grad():
        model.load_state_dict(values)
    return model


def is_other_grid(found: Tensor | None, wanted: Tensor | None, prefix: int) -> bool:
    """Whether position embeddings (1, prefix + patches, D) are there for another number of patches."""
    if found is None or wanted is None or found.ndim != 3:
        return False
    return len(found) == 1 and prefix < found.shape[1] != wanted.shape[1] and found.shape[2] == wanted.shape[2]


def mismatches(wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> str:
    """What is wrong, tensor by tensor; empty where everything fits."""
    missing = [name for name in wanted if name not in found]
    surplus = [name for name in found if name not in wanted]
    shapes = [
        f"{name} is {tuple(found[name].shape)}, wanted {shape}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    parts = [
        f"{title} {', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}"
        for title, names in (("missing:", missing), ("left over:", surplus), ("shapes:", shapes))
        if names
    ]
    return "; ".join(parts)
