"""Rows read by pread are those of the mapped file."""

from pathlib import Path

import numpy as np
import pytest

from harness.data import manifest
from harness.data.loader import Labels
from harness.data.manifest import Dataset, index_path
from harness.data.pixels import Pixels
from harness.data.rows import Rows


def test_rows_are_those_of_the_file(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = np.array(tiny.index("train"))
    pixels, labels = Pixels(tiny, "train", 16, 1), Labels(tiny, "train")
    monkeypatch.setattr(manifest, "MAPPED_AT_MOST", 100)
    rows = tiny.rows("train")
    assert isinstance(rows, Rows)
    assert len(rows) == 600
    chosen = np.array([599, 0, 7, 7, 300])
    assert np.array_equal(rows[chosen], mapped[chosen])
    assert rows[299] == mapped[299]
    assert rows[np.empty(0, int)].shape == (0,)
    for outside in (-1, 600):
        with pytest.raises(IndexError, match="of 600"):
            rows[np.array([3, outside])]
    assert np.array_equal(Pixels(tiny, "train", 16, 1)[299], pixels[299])
    assert Labels(tiny, "train")[chosen].tolist() == labels[chosen].tolist()


def test_an_index_that_becomes_shorter_is_an_error(tiny: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "train.index.npy"
    path.write_bytes(index_path(tiny.folder, "train").read_bytes())
    rows = Rows(path, np.load(path, mmap_mode="r"))
    with open(path, "r+b") as file:
        file.truncate(1000)
    with pytest.raises(OSError, match="1 of 2 rows could be read"):
        rows[np.array([3, 500])]
