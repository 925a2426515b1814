"""Checkpoints: one safetensors file each, tensors and a JSON state together, so that one rename makes both valid.

No pickle is written or read. `last` holds the network, the optimiser and the state of the loop; `best` the network
alone. Random numbers need no place in them: every step is seeded by (seed, step), every batch is a function of
samples_seen.
"""

import hashlib
import json
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
    """Write tensors and state to `path` atomically and durably."""
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(path, safetensors.torch.save(contiguous, metadata={"state": json.dumps(state)}))


def load(path: Path) -> tuple[Tensors, dict[str, Any]]:
    """Tensors (on the CPU) and state of `path`. Raises HarnessError naming a file that is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads((file.metadata() or {})["state"])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise HarnessError(f"{path}: not a readable checkpoint ({error}); delete it to start the run again") from error


def model_tensors(model: nn.Module) -> Tensors:
    """The network's tensors under `model/`."""
    return {f"model/{name}": tensor for name, tensor in model.state_dict().items()}


def load_model(model: nn.Module, tensors: Tensors) -> None:
    """Fill `model` from `model/` tensors; strict: a missing or surplus tensor is an error."""
    model.load_state_dict({name[len("model/") :]: t for name, t in tensors.items() if name.startswith("model/")})


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> Tensors:
    """The optimiser's per-parameter tensors under `optimizer/INDEX/NAME`; rates come from the schedule."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer/{index}/{name}": value for index, slot in state.items() for name, value in slot.items()}


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
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
