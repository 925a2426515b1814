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
    found, own = values.get(POSITIONS), wanted.get(POSITIONS)
    if found is not None and own is not None and are_of_two_grids(found, own):
        parts: Any = model
        grid = tuple(parts.patch_embed.grid_size)
        prefix = own.shape[1] - math.prod(grid)  # the class token may have no position embedding
        if found.shape[1] > prefix:
            old = square_grid(found.shape[1] - prefix, what)
            values[POSITIONS] = resize_position_embedding(found, old, grid, prefix)
    problems = mismatches({name: tuple(tensor.shape) for name, tensor in wanted.items()}, values)
    if problems:
        raise HarnessError(f"{what}: the checkpoint is of another network: {problems}")
    with torch.no_grad():
        model.load_state_dict(values)
    return model


def are_of_two_grids(one: Tensor, other: Tensor) -> bool:
    """Whether position embeddings (1, tokens, D) differ in the number of tokens and in nothing else."""
    return one.ndim == other.ndim == 3 and one.shape[::2] == other.shape[::2] and one.shape[1] != other.shape[1]


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
