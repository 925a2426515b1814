"""Checkpoints: one safetensors file each, tensors, JSON state and digest together, so that one rename makes all valid.

No pickle is written or read. `last` holds the network, the optimiser and the state of the loop, and `previous` is the
`last` before it; `best` holds the network alone. Random numbers need no place in them: every step is seeded by
(seed, step), every batch is a function of samples_seen.
"""

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from harness.errors import HarnessError
from harness.run_folder import write_atomic

Tensors = dict[str, torch.Tensor]


def save(path: Path, tensors: Tensors, state: dict[str, Any]) -> None:
    """Write tensors, state and their digest to `path` atomically and durably. A full disk leaves the old content."""
    contiguous = in_host_memory(tensors)
    text = json.dumps(state)
    # One key of metadata: safetensors writes several in an order of its own, and equal checkpoints would differ
    head = json.dumps({"sha256": digest(contiguous, text), "state": text})
    try:
        write_atomic(path, safetensors.torch.save(contiguous, metadata={"head": head}))
    except OSError as error:
        for unfinished in path.parent.glob(f".{path.name}.*.tmp"):
            unfinished.unlink(missing_ok=True)
        what = f"{error.strerror}; make room, or point HARNESS_RUNS elsewhere; the last good checkpoint is still there"
        raise OSError(error.errno, what, str(path)) from error


def save_generation(path: Path, tensors: Tensors, state: dict[str, Any]) -> None:
    """`save`, and what was at `path` becomes the previous generation; at every moment one of the two is whole."""
    if path.exists():
        link = path.with_name(f".{path.name}.{os.getpid()}.link")
        link.unlink(missing_ok=True)
        link.hardlink_to(path)
        link.replace(previous_path(path))
    save(path, tensors, state)


def load_newest(path: Path) -> tuple[Tensors, dict[str, Any]] | None:
    """The newest generation that is whole, or None where there is none; one that is damaged is named on stderr.

    Raises HarnessError where there are checkpoints and none is whole.
    """
    damage: HarnessError | None = None
    for generation in (path, previous_path(path)):
        if not generation.exists():
            continue
        try:
            found = load(generation)
        except HarnessError as error:
            damage = damage or error
            print(f"warning: {error}", file=sys.stderr, flush=True)
            continue
        if damage is not None:
            print(f"warning: going on from {generation}, the checkpoint before it", file=sys.stderr, flush=True)
        return found
    if damage is not None:
        raise damage
    return None


def load(path: Path, advice: str = "delete it to start the run again") -> tuple[Tensors, dict[str, Any]]:
    """Tensors (on the CPU) and state of `path`. Raises HarnessError naming a file that is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            head = json.loads((file.metadata() or {})["head"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if digest(tensors, head["state"]) != head["sha256"]:
            raise ValueError("its content is not what its digest says")
        return tensors, json.loads(head["state"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise HarnessError(f"{path}: not a readable checkpoint ({error}); {advice}") from error


def is_whole(path: Path) -> bool:
    """Whether `path` can be loaded; if not, stderr says why."""
    try:
        load(path)
    except HarnessError as error:
        print(f"warning: {error}", file=sys.stderr, flush=True)
        return False
    return True


def in_host_memory(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Detached, contiguous, on the CPU."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def digest(tensors: Tensors, state: str) -> str:
    """sha256 over names, shapes, types and bytes of tensors in host memory, and the state's text."""
    found = hashlib.sha256(state.encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def previous_path(path: Path) -> Path:
    """Where the generation before `path` is."""
    return path.with_name(f"previous{path.suffix}")


def model_tensors(model: nn.Module) -> Tensors:
    """The network's tensors under `model/`."""
    return {f"model/{name}": tensor for name, tensor in model.state_dict().items()}


def load_model(model: nn.Module, tensors: Tensors) -> None:
    """Fill `model` from `model/` tensors; strict: a missing or surplus tensor is an error."""
    model.load_state_dict({name[len("model/") :]: t for name, t in tensors.items() if name.startswith("model/")})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimiser's per-parameter tensors under `optimizer/INDEX/NAME`; rates come from the schedule."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer/{index}/{name}": value
        for index, slot in state.items()
        for name, value in slot.items()
        if value is not None  # SGD without momentum keeps a name for nothing
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Inverse of `optimizer_tensors`."""
    state: dict[int, Tensors] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, slot = name.split("/")
            state.setdefault(int(index), {})[slot] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def parameters_sha256(model: nn.Module) -> str:
    """Digest over names, shapes and bytes of the network's tensors: equal digests, equal networks."""
    return digest(in_host_memory(model.state_dict()), "")
