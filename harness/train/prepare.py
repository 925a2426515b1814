"""What a network is wrapped in for its machine: memory layout, checkpointed activations, compilation, ranks."""

from collections.abc import Callable

import torch
from torch import nn

from harness.config import LoopConfig, RecipeConfig
from harness.errors import ConfigError, HarnessError
from harness.train.distributed import Ranks
from harness.train.step import part_loss


class OutOfMemoryError(HarnessError, MemoryError):
    """A training step does not fit in the device's memory; the message says what to set."""


def lay_out(model: nn.Module, loop: LoopConfig) -> nn.Module:
    """The network itself, changed in place. Raises ConfigError where it cannot checkpoint its activations."""
    if loop.channels_last:
        model.to(memory_format=torch.channels_last)
    if loop.activation_checkpointing:
        if not hasattr(model, "set_grad_checkpointing"):
            raise ConfigError(
                f"loop.activation_checkpointing: {type(model).__name__} has no such thing; set it to false"
            )
        model.set_grad_checkpointing(True)  # type: ignore[operator]
    return model


def wrap(model: nn.Module, loop: LoopConfig, ranks: Ranks, device: torch.device) -> nn.Module:
    """What a step calls: the network, compiled where wished, its gradients averaged over ranks."""
    if loop.compile:
        model = torch.compile(model)  # type: ignore[assignment]
    if ranks.count > 1:
        ids = [device.index or 0] if device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)
    return model


def micro_batch_size(
    share: int, wished: int | None, known: int, ranks: Ranks, fits: Callable[[int], bool] | None
) -> int:
    """Images of a rank at once; divides its share of the batch, so that every part has the same shape.

    Args:
        share: images of a batch that this rank takes.
        wished: loop.micro_batch; comes first.
        known: what an interrupted run used, 0 for none; float sums then stay the same.
        fits: whether so many fit; None where that is not known.
    """
    size = min(wished or known or share, share)
    size = next(number for number in range(size, 0, -1) if share % number == 0)
    if wished or known or fits is None:
        return ranks.least(size)
    while size > 1 and not fits(size):
        size = next(number for number in range(size // 2, 0, -1) if share % number == 0)
    return ranks.least(size)


def trial(
    model: nn.Module, recipe: RecipeConfig, precision: str, shape: tuple[int, int, int], device: torch.device
) -> Callable[[int], bool]:
    """Whether a forward and backward pass of so many images of `shape` (C, H, W) fits beside the optimiser's state.

    Leaves no gradient, and running statistics as they were.
    """
    moments = 1 if recipe.optimizer == "sgd" else 2

    def fits(size: int) -> bool:
        buffers = [buffer.clone() for buffer in model.buffers()]
        held = images = labels = None
        try:
            held = [torch.empty_like(parameter) for parameter in model.parameters() for _ in range(moments)]
            images = torch.zeros(size, *shape, device=device)
            labels = torch.zeros(size, dtype=torch.long, device=device)
            part_loss(model, images, labels, recipe, precision).backward()
            return True
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return False
        finally:
            del held, images, labels
            model.zero_grad(set_to_none=True)
            for buffer, before in zip(model.buffers(), buffers, strict=True):
                buffer.copy_(before)
            if device.type == "cuda":
                torch.cuda.empty_cache()

    return fits


def out_of_memory(error: BaseException, step: int, micro_batch: int, share: int) -> OutOfMemoryError:
    """The error that a user can do something about."""
    return OutOfMemoryError(
        f"out of memory at step {step} with a micro-batch of {micro_batch} images ({share} of the batch are this "
        f"device's share): set loop.micro_batch={max(1, micro_batch // 2)} (the batch stays what it is), "
        f"loop.activation_checkpointing=true or precision=bf16 ({str(error).splitlines()[0][:200]})"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on a device or in host memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
