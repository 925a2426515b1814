"""Ranks: together they see what one process would, in the same order, and evaluation counts every sample once."""

import multiprocessing
from itertools import islice
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import cache
from harness.data.loader import Batch, eval_batches, one_row_at_least, rank_rows, train_batches
from harness.data.manifest import Dataset
from harness.data.subset import window
from harness.errors import ConfigError

SIZE = {"image_size": 16, "channels": 1}
BATCHES = 24  # of 30 samples of a window of 250: over two epoch ends


def train(dataset: Dataset, rank: int = 0, ranks: int = 1, **options: Any) -> list[Batch]:
    stream = train_batches(
        dataset,
        window(600, 250, 1),
        seed=5,
        batch_size=30,
        start_samples_seen=60,
        rank=rank,
        ranks=ranks,
        **SIZE,
        **options,
    )
    return list(islice(stream, BATCHES))


def as_rank(dataset: Dataset, rank: int, ranks: int, store: Path, found: "Queue[Any]") -> None:
    """One rank of a gloo group: gathers every training batch over the ranks, and sums what evaluation counts."""
    cache.CACHE_LIMIT_BYTES = 0  # decoding workers below every rank
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    together = []
    for batch in train(dataset, rank, ranks, workers=rank):
        parts = [torch.empty(30 // ranks, 2 + 256, dtype=torch.int64) for _ in range(ranks)]
        columns = [batch.ids[:, None], batch.labels[:, None], batch.images.reshape(len(batch.ids), -1).long()]
        dist.all_gather(parts, torch.cat(columns, 1))
        together.append(torch.cat(parts))
    counts = torch.zeros(3, dtype=torch.int64)
    for batch in eval_batches(dataset, "val", batch_size=64, rank=rank, ranks=ranks, **SIZE):
        part = torch.stack([batch.mask.sum(), batch.labels[batch.mask].sum(), batch.ids[batch.mask].sum()])
        dist.all_reduce(part)  # in every batch: a rank with a batch less would wait here for ever
        counts += part
    if rank == ranks - 1:
        found.put((torch.stack(together).numpy(), counts.tolist()))
    dist.destroy_process_group()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_gloo_ranks_together_see_what_one_process_sees(tiny: Dataset, tmp_path: Path, ranks: int) -> None:
    context = multiprocessing.get_context("fork")
    found: Queue[Any] = context.Queue()
    processes = [
        context.Process(target=as_rank, args=(tiny, rank, ranks, tmp_path / "store", found)) for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    rows, counts = found.get(timeout=60)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    for row, batch in zip(rows, train(tiny), strict=True):
        assert row[:, 0].tolist() == batch.ids.tolist()
        assert row[:, 1].tolist() == batch.labels.tolist()
        assert np.array_equal(row[:, 2:], batch.images.reshape(30, -1).numpy())
    labels = np.asarray(tiny.index("val")["label"], np.int64)
    assert counts == [200, int(labels.sum()), sum(range(200))]


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 100))
@settings(max_examples=200, deadline=None)
def test_every_rank_has_as_many_rows_of_every_batch_and_each_sample_counts_once(
    batch_size: int, ranks: int, samples: int
) -> None:
    seen: list[int] = []
    for start in range(0, samples, batch_size):
        batch = np.arange(start, min(samples, start + batch_size))
        for rank in range(ranks):
            rows, count, _ = one_row_at_least(batch, rank_rows(batch_size, rank, ranks))
            assert 1 <= len(rows) <= -(-batch_size // ranks)
            seen += rows[:count].tolist()
    assert seen == list(range(samples))


def test_a_batch_that_does_not_divide_and_a_rank_that_is_not_there(tiny: Dataset) -> None:
    with pytest.raises(ConfigError, match="batch_size=30 does not divide over 4 ranks"):
        train(tiny, ranks=4)
    with pytest.raises(ConfigError, match="rank 3 of 3"):
        train(tiny, rank=3, ranks=3)
