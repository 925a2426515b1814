"""Random resized crops: pure in (seed, position), distributed as torchvision's, the same through cache and decoder."""

import io
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.stats import ks_2samp, kstest
from sklearn.datasets import load_sample_image
from torchvision.transforms.v2 import RandomResizedCrop

from harness.compose import compose
from harness.data import cache
from harness.data.augment import Augmentation, Crop, choose_crop, cut, decode_crop, random_numbers
from harness.data.loader import Batch, train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.pack import pack
from harness.data.subset import window

INCEPTION = Augmentation(seed=3, crop=True, flip=True)
PHOTOGRAPH = load_sample_image("flower.jpg")


@settings(max_examples=200, deadline=None)
@given(
    height=st.integers(1, 700), width=st.integers(1, 700), position=st.integers(0, 2**40), seed=st.integers(0, 2**31)
)
def test_a_crop_lies_within_the_picture(height: int, width: int, position: int, seed: int) -> None:
    crop = choose_crop(random_numbers(seed, np.array([position]))[0], height, width, INCEPTION)
    assert 0 <= crop.top <= crop.top + crop.height <= height
    assert 0 <= crop.left <= crop.left + crop.width <= width
    assert crop.height > 0
    assert crop.width > 0


def test_numbers_depend_on_seed_and_position_alone_and_are_uniform() -> None:
    together = random_numbers(7, np.arange(5000))
    np.testing.assert_array_equal(together[1234], random_numbers(7, np.array([1234]))[0])
    assert not np.array_equal(together, random_numbers(8, np.arange(5000)))
    assert ((together >= 0) & (together < 1)).all()
    assert kstest(together.ravel(), "uniform").pvalue > 1e-3
    assert np.abs(np.corrcoef(together[:, :8].T) - np.eye(8)).max() < 0.06  # of 28 pairs at n = 5,000
    assert np.abs(np.corrcoef(together[:-1, 0], together[1:, 0])[0, 1]) < 0.06


@pytest.mark.parametrize("size", [(400, 500), (300, 100), (64, 64)])
def test_crops_are_distributed_as_torchvisions(size: tuple[int, int]) -> None:
    """Two-sample Kolmogorov-Smirnov on area, ratio and place, 3,000 crops each."""
    height, width = size
    numbers = random_numbers(1, np.arange(3000))
    ours = np.array([choose_crop(row, height, width, INCEPTION)[:4] for row in numbers], float)
    torch.manual_seed(0)
    transform = RandomResizedCrop(32, scale=(0.05, 1.0))
    image = torch.empty(3, height, width)
    drawn = [transform.make_params([image]) for _ in range(3000)]
    theirs = np.array([[d["top"], d["left"], d["height"], d["width"]] for d in drawn], float)
    for values in (lambda a: a[:, 2] * a[:, 3], lambda a: a[:, 3] / a[:, 2], lambda a: a[:, 0], lambda a: a[:, 1]):
        assert ks_2samp(values(ours), values(theirs)).pvalue > 1e-3


def test_half_of_the_pictures_are_mirrored_and_a_mirror_is_exact() -> None:
    numbers = random_numbers(0, np.arange(4000))
    flips = [choose_crop(row, 30, 30, INCEPTION).flip for row in numbers]
    assert abs(np.mean(flips) - 0.5) < 0.03
    assert not any(choose_crop(row, 30, 30, Augmentation(0, crop=True)).flip for row in numbers[:100])
    crop = choose_crop(numbers[flips.index(True)], *PHOTOGRAPH.shape[:2], INCEPTION)
    plain, mirrored = (np.empty((96, 96, 3), np.uint8) for _ in range(2))
    cut(PHOTOGRAPH, crop._replace(flip=False), 96, plain)
    cut(PHOTOGRAPH, crop, 96, mirrored)
    np.testing.assert_array_equal(mirrored, plain[:, ::-1])


def test_flips_alone_keep_the_centre_square() -> None:
    crop = choose_crop(random_numbers(0, np.array([5]))[0], 30, 50, Augmentation(0, flip=True))
    assert crop[:4] == (0, 10, 30, 30)


@pytest.mark.parametrize("size", [32, 224])
def test_the_fast_path_agrees_with_cutting_the_whole_picture(size: int) -> None:
    """At full size within 2 of 255 on average, colours being the nearest instead of interpolated. At 1/d, since the
    crop is d times `size` and more: the same of cutting the picture averaged over blocks of d, the place rounded down.
    """
    buffer = io.BytesIO()
    Image.fromarray(PHOTOGRAPH).save(buffer, "JPEG", quality=95)
    whole = Image.open(io.BytesIO(buffer.getvalue()))
    for numbers in random_numbers(2, np.arange(20)):
        fast, slow = (np.empty((size, size, 3), np.uint8) for _ in range(2))
        decode_crop(buffer.getvalue(), numbers, INCEPTION, size, 3, fast)
        crop = choose_crop(numbers, whole.height, whole.width, INCEPTION)
        d = max(d for d in (1, 2, 4, 8) if min(crop.height, crop.width) >= d * size or d == 1)
        small = np.asarray(whole.reduce(d))
        cut(small, Crop(*(edge // d for edge in crop[:4]), crop.flip), size, slow)
        assert np.abs(fast.astype(int) - slow).mean() <= 2


def stream(
    dataset: Dataset, augmentation: Augmentation | None, batches: int, start: int = 0, **more: int
) -> list[Batch]:
    return list(
        islice(
            train_batches(
                dataset,
                window(600, 250, 1),
                seed=5,
                batch_size=30,
                start_samples_seen=start,
                image_size=16,
                channels=1,
                augmentation=augmentation,
                **more,
            ),
            batches,
        )
    )


def test_cache_workers_and_restarts_change_no_pixel(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stream(tiny, INCEPTION, 20)
    ids = [batch.ids for batch in stream(tiny, None, 20)]
    assert all(torch.equal(a.ids, b) for a, b in zip(whole, ids, strict=True))
    again = stream(tiny, INCEPTION, 12, start=240)
    assert all(torch.equal(a.images, b.images) for a, b in zip(whole[8:], again, strict=True))
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    for workers in (0, 2):
        decoded = stream(tiny, INCEPTION, 20, workers=workers)
        assert all(torch.equal(a.images, b.images) for a, b in zip(whole, decoded, strict=True))
    halves = [stream(tiny, INCEPTION, 20, rank=rank, ranks=2) for rank in (0, 1)]
    for batch, first, second in zip(whole, *halves, strict=True):
        assert torch.equal(batch.images, torch.cat([first.images, second.images]))


def test_an_image_is_cut_anew_at_every_visit(tiny: Dataset) -> None:
    batches = stream(tiny, INCEPTION, 20)  # two epochs and more
    images, ids = torch.cat([b.images for b in batches]), torch.cat([b.ids for b in batches])
    one = images[ids == ids[0]]
    assert len(one) >= 2
    assert not torch.equal(one[0], one[1])


def test_pictures_of_several_sizes_are_cut_from_the_shards(tmp_path: Path) -> None:
    for name, width in (("a", 40), ("b", 64)):
        for number in range(30):
            path = tmp_path / "raw" / name / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(PHOTOGRAPH[number : number + 40, : width + number]).save(path)
    words = [
        "data=folder",
        f"data.path={tmp_path / 'raw'}",
        "data.name=mixed",
        "data.val_samples=5",
        "data.test_samples=5",
    ]
    pack(compose(words).data, tmp_path, workers=1, progress=False)
    mixed = open_dataset(tmp_path / "mixed")
    batches = islice(
        train_batches(
            mixed,
            window(50, 50, 0),
            seed=0,
            batch_size=10,
            start_samples_seen=0,
            image_size=24,
            channels=3,
            augmentation=INCEPTION,
        ),
        3,
    )
    assert all(batch.images.shape == (10, 3, 24, 24) for batch in batches)
    assert [path.suffix for path in (mixed.folder / "cache").glob("*stored*") if path.suffix != ".lock"] == [".differ"]
