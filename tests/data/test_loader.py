"""The sample sequence is a function of (window, seed, samples seen), whatever reads it."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.data import loader
from harness.data.loader import Batch, distinct_origins, eval_batches, train_batches
from harness.data.manifest import Dataset
from harness.data.order import batch as order_batch
from harness.data.subset import window
from harness.errors import DatasetError

SIZE = {"image_size": 16, "channels": 1}


def take(dataset: Dataset, count: int, start: int = 0, workers: int = 0, seed: int = 5) -> list[Batch]:
    chosen = window(600, 250, 1)
    stream = train_batches(dataset, chosen, seed=seed, batch_size=32, start_samples_seen=start, workers=workers, **SIZE)
    return list(islice(stream, count))


def test_batches_follow_the_order_over_epoch_ends(tiny: Dataset) -> None:
    ids = torch.cat([batch.ids for batch in take(tiny, 40)]).numpy()
    chosen = window(600, 250, 1)
    assert ids.tolist() == chosen.split_positions(order_batch(5, 0, 40 * 32, 250)).tolist()
    for epoch in range(5):
        assert len(set(ids[epoch * 250 : (epoch + 1) * 250])) == 250


def test_starting_later_is_the_same_sequence_from_there(tiny: Dataset) -> None:
    late = take(tiny, 6, start=32 * 9)
    for one, other in zip(take(tiny, 15)[9:], late, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.ids, other.ids)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_worker_processes_change_no_sample(tiny: Dataset, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    cached = take(tiny, 12)
    monkeypatch.setattr(loader, "CACHE_LIMIT_BYTES", 0)
    assert isinstance(loader.open_pixels(tiny, "train", 16, 1), loader.Pixels)
    for one, other in zip(cached, take(tiny, 12, workers=workers), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.ids, other.ids)


def test_evaluation_counts_every_sample_once_and_masks_the_padding(tiny: Dataset) -> None:
    batches = list(eval_batches(tiny, "val", batch_size=64, **SIZE))
    assert [batch.images.shape for batch in batches] == [(64, 1, 16, 16)] * 4
    ids = torch.cat([batch.ids[batch.mask] for batch in batches])
    assert ids.tolist() == list(range(200))
    some = list(eval_batches(tiny, "val", batch_size=64, positions=np.array([3, 9]), **SIZE))
    assert some[0].ids[some[0].mask].tolist() == [3, 9]


def test_images_and_labels_are_those_of_the_shards(tiny: Dataset) -> None:
    pixels = loader.Pixels(tiny, "train", 16, 1)
    labels = tiny.index("train")["label"]
    for batch in take(tiny, 3):
        for image, label, position in zip(batch.images, batch.labels, batch.ids, strict=True):
            assert np.array_equal(image.numpy(), pixels[int(position)])
            assert int(label) == labels[int(position)]


def test_a_split_that_is_not_there_is_an_error(tiny: Dataset) -> None:
    with pytest.raises(DatasetError, match="train, val, test"):
        next(eval_batches(tiny, "dev", batch_size=8, **SIZE))


def test_a_label_that_is_no_class_names_shard_and_key(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    index = np.array(tiny.index("val"))
    index["label"][17] = 10
    monkeypatch.setattr(Dataset, "index", lambda self, split: index)
    with pytest.raises(DatasetError, match=r"val-000000\.tar: sample val\d+ has label 10"):
        next(eval_batches(tiny, "val", batch_size=8, **SIZE))


def test_a_damaged_sample_names_shard_and_key(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "decode", loader.decode)
    pixels = loader.Pixels(tiny, "val", 16, 1)
    broken = (tiny.folder / "val-000000.tar").read_bytes()
    row = pixels.index[4]
    start = int(row["offset"])
    (tmp_path / "val-000000.tar").write_bytes(
        broken[:start] + b"\0" * int(row["size"]) + broken[start + int(row["size"]) :]
    )
    pixels.files = [tmp_path / "val-000000.tar"]
    with pytest.raises(DatasetError, match=r"val-000000\.tar: sample val\d+"):
        pixels[4]


def test_distinct_origins_count_outlines(tiny: Dataset) -> None:
    """Twelve training faces draw ten digits: at most 120 outlines; a prefix has no more than the whole."""
    whole = distinct_origins(tiny, window(600, 600, 0))
    few = distinct_origins(tiny, window(600, 50, 0))
    assert few <= 50
    assert few < whole <= 120
    assert whole == len(np.unique(tiny.index("train")["origin"]))
