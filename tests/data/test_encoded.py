"""Bytes that are kept or encoded anew, settings that cannot work, and splits that no group is cut by."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from harness.compose import compose
from harness.config import DataConfig
from harness.data.sources import open_source
from harness.data.sources.encoded import encoded_sample
from harness.data.sources.entries import Entries, cut_splits
from harness.errors import ConfigError, DatasetError
from tests.data.test_sources import picture


class TestBytes:
    def sample(self, data: bytes, **fields: object) -> tuple[str, bytes]:
        cfg = compose(["data=folder", "data.name=x", "data.path=y", "data.image_size=null"]).data
        for name, value in fields.items():
            setattr(cfg, name, value)
        found = encoded_sample(data, "key", 0, cfg)
        return found.extension, found.data

    @pytest.mark.parametrize("form, extension", [("JPEG", "jpg"), ("PNG", "png"), ("WEBP", "webp")])
    def test_bytes_are_kept_where_every_reader_sees_the_same(self, form: str, extension: str) -> None:
        data = picture("red", 3, form, size=80)
        assert self.sample(data) == (extension, data)
        assert self.sample(data, codec="keep") == (extension, data)

    def test_odd_ones_are_stored_anew(self) -> None:
        turned = io.BytesIO()
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.open(io.BytesIO(picture("red", 3, size=80))).resize((90, 70)).save(turned, "JPEG", exif=exif)
        extension, data = self.sample(turned.getvalue())
        assert (extension, Image.open(io.BytesIO(data)).size) == ("jpg", (70, 90))
        bmp = picture("red", 3, "BMP", size=80)
        assert self.sample(bmp)[0] == "jpg"

    @pytest.mark.parametrize("codec, form", [("png", "PNG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
    def test_codec_quality_and_short_side(self, codec: str, form: str) -> None:
        data = picture("green", 3, "BMP", size=200)
        small = Image.open(io.BytesIO(self.sample(data, codec=codec, image_size=100, quality=30)[1]))
        assert (small.format, small.size) == (form, (100, 100))
        if codec != "png":
            noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
            buffer = io.BytesIO()
            Image.fromarray(noise).save(buffer, "PNG")
            sizes = [len(self.sample(buffer.getvalue(), codec=codec, quality=q)[1]) for q in (20, 90)]
            assert sizes[0] < sizes[1] / 2

    @pytest.mark.parametrize(
        "word, message",
        [
            ("data.codec=jpg", "Did you mean"),
            ("data.codec=keep", "bytes cannot be kept and resized"),
            ("data.quality=0", "from 1 to 100"),
            ("data.torchvision=MNIST", "the source folder does not read it"),
            ("data.channels=4", "with 1 .grey. or 3"),
        ],
    )
    def test_settings_that_cannot_work(self, tmp_path: Path, word: str, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            open_source(compose(["data=folder", "data.name=x", f"data.path={tmp_path}", word]).data)


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 12), min_size=30, max_size=80),
    val=st.integers(0, 8),
    test=st.integers(0, 8),
    within=st.booleans(),
    seed=st.integers(0, 5),
)
def test_groups_are_whole_and_every_image_is_in_one_split(
    groups: list[int], val: int, test: int, within: bool, seed: int
) -> None:
    entries = Entries()
    for number, group in enumerate(groups):
        entries.add(str(number), 1, 0, str(group))
    cfg = DataConfig(val_samples=str(val), test_samples=str(test), val_within_groups=within, seed=seed)
    smallest = min(groups.count(group) for group in groups)
    if 0 < test < smallest:
        with pytest.raises(DatasetError, match="groups are not cut"):
            cut_splits(entries, {"train": np.arange(len(groups))}, cfg)
        return
    try:
        splits = cut_splits(entries, {"train": np.arange(len(groups))}, cfg)
    except DatasetError:  # what test has left holds no group as small as val is to be
        assert not within
        return
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(len(groups)))
    assert len(splits["test"]) <= test
    assert len(splits["val"]) <= val
    of = {split: {groups[row] for row in rows.tolist()} for split, rows in splits.items()}
    assert not of["test"] & (of["train"] | of["val"])
    assert within or not of["val"] & of["train"]
