"""The block order: exact as the global one, and it never looks further than its group's shards."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data.block_order import BlockOrder, order_identity
from harness.data.subset import Window, window
from harness.errors import ConfigError


@st.composite
def orders(draw: st.DrawFn) -> tuple[BlockOrder, list[int]]:
    shards = draw(st.lists(st.integers(1, 40), min_size=1, max_size=30))
    total = sum(shards)
    chosen = window(total, draw(st.integers(1, total)), draw(st.integers(0, 9)))
    look_ahead = draw(st.integers(1, 200))
    return BlockOrder(chosen, shards, draw(st.integers(0, 3)), look_ahead_samples=look_ahead), shards


@given(orders(), st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_every_epoch_visits_every_sample_of_the_window_once(drawn: tuple[BlockOrder, list[int]], epoch: int) -> None:
    order, _ = drawn
    n = order.window.size
    assert sorted(order.batch(epoch * n, n)) == list(range(n))


@given(orders(), st.integers(0, 2000), st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_a_batch_is_the_order_read_position_by_position_wherever_it_starts(
    drawn: tuple[BlockOrder, list[int]], start: int, count: int
) -> None:
    order, _ = drawn
    count = min(count, 40)
    expected = [int(order.batch(position, 1)[0]) for position in range(start, start + count)]
    assert order.batch(start, count).tolist() == expected


@given(orders())
@settings(max_examples=100, deadline=None)
def test_a_group_needs_the_shards_that_it_names_and_no_more_than_its_blocks(
    drawn: tuple[BlockOrder, list[int]],
) -> None:
    order, shards = drawn
    shard_of_row = np.repeat(np.arange(len(shards)), shards)
    position = 0
    while position < order.window.size:
        _, group = order.group_at(position)
        assert group.start == position
        rows = order.window.split_positions(order.batch(position, group.size))
        assert sorted(set(shard_of_row[rows].tolist())) == group.shards.tolist()
        assert len(group.shards) <= order.group_blocks
        position += group.size
    assert position == order.window.size


def test_shards_of_a_group_by_hand() -> None:
    """Ten shards of ten samples, a window of 55 from sample 72 on, wrapping: blocks of 8, 10, 10, 10, 10, 7."""
    order = BlockOrder(Window(start=72, size=55, total=100), [10] * 10, seed=0, look_ahead_samples=20)
    assert order.edges.tolist() == [0, 8, 18, 28, 38, 48, 55]
    assert order.shard_of.tolist() == [7, 8, 9, 0, 1, 2]
    assert order.group_blocks == 2
    seen = []
    position = 0
    while position < 55:
        _, group = order.group_at(position)
        rows = order.window.split_positions(order.batch(position, group.size))
        assert set((rows // 10).tolist()) == set(group.shards.tolist())
        seen += group.shards.tolist()
        position += group.size
    assert sorted(seen) == [0, 1, 2, 7, 8, 9]
    assert order.most_shards() == 4


def test_groups_are_others_in_each_epoch_and_with_each_seed() -> None:
    def first_group(seed: int, epoch: int) -> frozenset[int]:
        order = BlockOrder(window(4000, 4000, 0), [100] * 40, seed, look_ahead_samples=400)
        return frozenset(order.group_at(epoch * 4000)[1].shards.tolist())

    assert len({first_group(0, epoch) for epoch in range(12)}) > 10
    assert first_group(0, 0) != first_group(1, 0)


def test_within_a_group_the_order_mixes_its_shards() -> None:
    """Four shards at a time: neighbours lie in one shard as often as in a shuffled group, a quarter of the time."""
    order = BlockOrder(window(40_000, 40_000, 0), [1000] * 40, 3, look_ahead_samples=4000)
    shards = order.batch(0, 40_000) // 1000
    same = (shards[1:] == shards[:-1]).mean()
    assert abs(same - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 40_000)


def test_known_values_do_not_change_between_versions_or_machines() -> None:
    order = BlockOrder(window(100_000, 90_000, 1), [10_000] * 10, 7)
    assert order.group_blocks == 4
    assert order.batch(10**9, 6).tolist() == [88166, 57432, 89756, 88545, 81802, 59171]


def test_seeking_costs_the_same_at_the_end_as_at_the_start() -> None:
    """300 million samples in 30,000 shards: nothing is replayed, and no array is longer than the shards are many."""
    order = BlockOrder(window(300_000_000, 300_000_000, 0), [10_000] * 30_000, 0)
    late = order.batch(10**12 + 123, 64)
    assert len(set(late.tolist())) == 64
    assert max(len(order.edges), len(order.epoch(10**12 // 300_000_000).blocks)) <= 30_001


def test_an_order_that_is_not_there() -> None:
    assert order_identity("global") == "global"  # as in the hash of every published run
    assert order_identity("block") == "block-32768"
    with pytest.raises(ConfigError, match="order=blok: it is one of global, block"):
        order_identity("blok")
