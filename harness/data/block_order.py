"""Training order for shards that are read over a network: exact, and no position looks further than a few shards.

An epoch visits the blocks of a window (what of it lies in one shard) in a new permutation, a group of blocks at a time,
and the samples of a group in one permutation of all of them. Each sample comes exactly once an epoch; a reader needs
the shards of one group, and knows those of the next. Since the packed order is shuffled already, a group is a random
part of the set, and the groups are others in each epoch.

Like the global order it is a pure function of (seed, epoch, position), given the window and where shards begin, which
the digest of a data set covers. Seeking costs one permutation of the blocks, not of the samples.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.data.order import hash_words, permute
from harness.data.subset import Window
from harness.errors import ConfigError

LOOK_AHEAD_SAMPLES = 32_768  # in a group, at least: a batch draws from that many
BLOCK_ORDER = f"block-{LOOK_AHEAD_SAMPLES}"  # kind and version; its parts are those of harness.data.order
KINDS = ("global", "block")
_OF_BLOCKS, _OF_GROUP = 1, 2  # keeps the keys of both kinds of permutation apart


def check_order(kind: str) -> None:
    """Raises ConfigError for an order that there is not."""
    if kind not in KINDS:
        raise ConfigError(f"order={kind}: it is one of {', '.join(KINDS)}")


def order_identity(kind: str) -> str:
    """What of an order enters a run's hash. Raises ConfigError for an order that there is not."""
    check_order(kind)
    return BLOCK_ORDER if kind == "block" else kind


class Group(NamedTuple):
    """Blocks whose samples an epoch visits mixed with each other."""

    number: int  # within the epoch
    start: int  # position within the epoch
    size: int  # samples
    firsts: np.ndarray  # first subset position of each block
    ends: np.ndarray  # samples in the blocks up to and with each
    shards: np.ndarray  # that hold them, ascending


class Epoch(NamedTuple):
    """One epoch's permutation of the blocks."""

    blocks: np.ndarray
    starts: np.ndarray  # position at which each group begins, and the end


class BlockOrder:
    """The order of a window over shards of the given numbers of samples.

    Args:
        shard_samples: of every shard of the split, in packed order.
        look_ahead_samples: a group has as many blocks as hold that many samples; two at least.
    """

    def __init__(
        self, window: Window, shard_samples: list[int], seed: int, look_ahead_samples: int = LOOK_AHEAD_SAMPLES
    ) -> None:
        self.window, self.seed = window, seed
        edges = np.concatenate([[0], np.cumsum(shard_samples, dtype=np.int64)])
        assert edges[-1] == window.total
        inside = (edges - window.start) % window.total  # where in the window a shard begins
        self.edges = np.unique(np.concatenate([[0], inside[inside < window.size], [window.size]]))
        self.sizes = np.diff(self.edges)
        self.shard_of = np.searchsorted(edges, window.split_positions(self.edges[:-1]), side="right") - 1
        self.group_blocks = max(2, -(-look_ahead_samples // max(shard_samples)))
        self.epoch = functools.lru_cache(maxsize=2)(self._epoch)

    def _epoch(self, epoch: int) -> Epoch:
        count = len(self.sizes)
        blocks = permute(np.arange(count), count, hash_words(self.seed, epoch, _OF_BLOCKS))
        ends = np.cumsum(self.sizes[blocks])
        last = np.append(np.arange(self.group_blocks, count, self.group_blocks), count) - 1
        return Epoch(blocks, np.concatenate([[0], ends[last]]))

    def group_at(self, position: int) -> tuple[int, Group]:
        """(epoch, group) in which a global position lies."""
        epoch, offset = divmod(position, self.window.size)
        blocks, starts = self.epoch(epoch)
        number = int(np.searchsorted(starts, offset, side="right")) - 1
        members = blocks[number * self.group_blocks : (number + 1) * self.group_blocks]
        ends = np.cumsum(self.sizes[members])
        shards = np.unique(self.shard_of[members])
        return epoch, Group(number, int(starts[number]), int(ends[-1]), self.edges[members], ends, shards)

    def batch(self, start: int, count: int) -> np.ndarray:
        """Subset positions at global positions start … start + count - 1; int64 (count,)."""
        samples = np.empty(count, np.int64)
        done = 0
        while done < count:
            epoch, group = self.group_at(start + done)
            offset = (start + done) % self.window.size - group.start
            taken = min(group.size - offset, count - done)
            key = hash_words(self.seed, epoch, _OF_GROUP, group.number)
            mixed = permute(np.arange(offset, offset + taken), group.size, key)
            block = np.searchsorted(group.ends, mixed, side="right")
            before = np.concatenate([[0], group.ends[:-1]])
            samples[done : done + taken] = group.firsts[block] + mixed - before[block]
            done += taken
        return samples

    def most_shards(self) -> int:
        """Shards that two groups, one read and one fetched ahead, may take at most."""
        return min(2 * self.group_blocks, len(np.unique(self.shard_of)))


def blocks_of(kind: str, window: Window, shards: Sequence[Mapping[str, Any]], seed: int) -> BlockOrder | None:
    """The order by blocks of a window of a split's shards, as the manifest lists them; None for the global order."""
    return BlockOrder(window, [shard["samples"] for shard in shards], seed) if kind == "block" else None
