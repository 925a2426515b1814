"""`harness data keys` and `show`: anyone can audit what a run saw."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from harness.data.commands import print_classes
from harness.data.loader import train_batches
from harness.data.manifest import Dataset
from harness.data.shard import member_key
from harness.data.subset import window
from tests.conftest import harness


def keys(dataset: Dataset, *words: str) -> list[str]:
    return harness("data", "keys", str(dataset.folder), *words).stdout.split()


def key_at(dataset: Dataset, split: str, position: int) -> str:
    row = dataset.index(split)[position]
    return member_key(Path(str(dataset.shards(split)[int(row["shard"])])), int(row["offset"]))


def test_keys_of_a_split_are_those_of_its_shards(tiny: Dataset) -> None:
    assert keys(tiny, "--split", "val") == [key_at(tiny, "val", position) for position in range(200)]
    everything = [*keys(tiny), *keys(tiny, "--split", "val"), *keys(tiny, "--split", "test")]
    assert len(set(everything)) == 1000


@pytest.mark.parametrize("order", ["global", "block"])
def test_an_epoch_is_what_the_loader_reads(tiny: Dataset, order: str) -> None:
    """Epoch 3 of seed 0 on 10 % of draw 1, through the loader: 60 samples from sample 180 on."""
    printed = keys(tiny, "--subset", "10%", "--draw", "1", "--seed", "0", "--epoch", "3", "--order", order)
    stream = train_batches(
        tiny,
        window(600, 60, 1),
        seed=0,
        batch_size=20,
        start_samples_seen=180,
        image_size=16,
        channels=1,
        order=order,
    )
    read = [key_at(tiny, "train", int(position)) for batch in islice(stream, 3) for position in batch.ids]
    assert printed == read
    assert sorted(printed) == sorted(keys(tiny, "--subset", "60", "--draw", "1"))


def test_subsets_nest_and_draws_are_disjoint(tiny: Dataset) -> None:
    thousand = keys(tiny, "--subset", "0.3k")
    assert thousand[:60] == keys(tiny, "--subset", "60") == keys(tiny, "--subset", "10%")
    assert set(keys(tiny, "--subset", "50%", "--draw", "1")).isdisjoint(thousand)


def test_mistakes_say_what_there_is(tiny: Dataset) -> None:
    for words, message in (
        (["--subset", "9M"], "size '9M': there are 600 images"),
        (["--split", "val", "--subset", "1k"], "size '1k': there are 200 images"),
        (["--split", "dev"], "no dev split; it has train, val, test"),
        (["--seed", "1"], "--seed and --epoch go together"),
        (["--seed", "1", "--epoch", "0", "--order", "sorted"], "order=sorted: it is one of global, block"),
    ):
        done = harness("data", "keys", str(tiny.folder), *words, check=False)
        assert done.returncode == 2
        assert message in done.stderr
    assert "there are 600 images" in harness("data", "show", str(tiny.folder), "--subset", "1k", check=False).stderr


def test_show_counts_the_classes_of_a_subset(tiny: Dataset, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    text = harness("data", "show", str(tiny.folder), "--subset", "100", "--draw", "3", "--sheet", str(sheet)).stdout
    rows = window(600, 100, 3).split_positions(np.arange(100))
    wanted = Counter(tiny.class_names[label] for label in tiny.index("train")["label"][rows])
    shown = re.findall(r"^ {4} +([\d,]+)  (\S+)$", text, re.MULTILINE)
    assert {name: int(count) for count, name in shown} == {name: wanted[name] for name in tiny.class_names}
    assert "train subset of 100 (draw 3)" in text
    assert "packed order: shuffled, as far as its labels show" in text
    assert f"  train  {600:>12,} images      3 shards" in text
    with Image.open(sheet) as image:
        assert image.size == (24 * 48, 12 * 48)
        first = np.asarray(image)[:48, :48]
    assert first.std() > 0


def test_many_classes_are_shown_from_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    print_classes([f"c{i}" for i in range(100)], np.arange(100), all_of_them=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [["99", "c99"], ["98", "c98"]]
    assert "80 classes between" in lines[10]
    assert [line.split() for line in lines[-2:]] == [["1", "c1"], ["0", "c0"]]
    print_classes([f"c{i}" for i in range(100)], np.arange(100), all_of_them=True)
    assert len(capsys.readouterr().out.splitlines()) == 100
