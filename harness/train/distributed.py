"""Ranks: the processes that train one run together, each a slice of every batch.

Started by torchrun or by Slurm (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT). Decisions are made from what
all ranks say, at the same step on all of them: a rank that stopped alone would leave the others waiting. Flags and
scores travel between host processes (gloo), so that agreeing waits for no device.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from harness.errors import HarnessError


class LostRankError(HarnessError):
    """Another rank of the run died or hangs. Starting the run again goes on from its checkpoint."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this rank writes: checkpoints, metrics, status."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks of a tensor in host memory."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def any(self, flag: bool) -> bool:
        """Whether any rank says so; the same answer on all."""
        return self.agree(flag)[0]

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether any rank raises it; the same answer on all, for one message."""
        if self.count == 1:
            return flags
        return tuple(bool(number) for number in self.sum(torch.tensor(flags, dtype=torch.int32)))

    def least(self, value: int) -> int:
        """The smallest number that any rank names."""
        if self.count > 1:
            number = torch.tensor(value)
            dist.all_reduce(number, op=dist.ReduceOp.MIN)
            return int(number)
        return value


ALONE = Ranks()


def ranks_of_environment() -> Ranks:
    """What torchrun or Slurm says that this process is; alone where nothing is said."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    return Ranks(int(os.environ["RANK"]), count, int(os.environ.get("LOCAL_RANK", "0")))


@contextmanager
def joined(timeout_seconds: float, device_kind: str) -> Iterator[Ranks]:
    """The ranks of this run, connected. A rank that dies or is silent for `timeout_seconds` ends the others.

    Raises LostRankError in place of whatever the connection reports then.
    """
    ranks = ranks_of_environment()
    if ranks.count == 1:
        yield ranks
        return
    backend = "gloo" if device_kind == "cpu" else "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_seconds))
        yield ranks
    except RuntimeError as error:
        if not is_lost_connection(error):
            raise
        raise LostRankError(
            f"rank {ranks.rank} of {ranks.count}: another rank died or was silent for {timeout_seconds:g} s "
            f"(loop.rank_timeout_seconds); its log says why ({str(error).splitlines()[0][:200]})"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def is_lost_connection(error: RuntimeError) -> bool:
    """Whether an error is torch.distributed's word for a peer that is gone or silent."""
    text = str(error).lower()
    words = ("connection closed by peer", "connection reset", "timed out", "timeout", "gloo", "nccl", "socket")
    return isinstance(error, dist.DistError) or any(word in text for word in words)
