"""Shards that someone else packed: ImageNet and LAION style, local and behind HTTP, adopted where they lie."""

import gzip
import io
import json
import os
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from harness.data import cache
from harness.data.check import check_dataset
from harness.data.loader import train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.shard import member_key
from harness.data.subset import window
from harness.data.urls import expand
from harness.errors import ConfigError
from tests.conftest import harness
from tests.data.server import Server

SHARDS, EACH = 4, 30
Files = list[tuple[str, bytes]]


def picture(seed: int, codec: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, codec)
    return buffer.getvalue()


def write_tar(path: Path, files: Files) -> None:
    with tarfile.open(path, "w") as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def imagenet(folder: Path, name: str, shards: int = SHARDS, ordered: bool = False) -> list[int]:
    """jpg, cls and json a sample, as timm publishes ImageNet; returns the labels in order."""
    labels = np.random.default_rng(len(name)).permutation(np.arange(shards * EACH) % 5)
    labels = np.sort(labels) if ordered else labels
    for shard in range(shards):
        files: Files = []
        for number in range(shard * EACH, (shard + 1) * EACH):
            key = f"n0144_{number:05d}"
            extra = json.dumps({"label": int(labels[number]), "filename": f"{key}.JPEG"}).encode()
            label = str(labels[number]).encode()
            files += [(f"{key}.cls", label), (f"{key}.JPG", picture(number)), (f"{key}.json", extra)]
        write_tar(folder / f"{name}-{shard:04d}.tar", files)
    return labels.tolist()


def laion(folder: Path) -> None:
    """jpg, txt and json a sample, as img2dataset writes them; no class but a field of the json."""
    for shard in range(2):
        files: Files = []
        for number in range(EACH):
            key = f"{shard:05d}{number:04d}"
            caption = f"a {('cat', 'dog', 'owl')[number % 3]}"
            about = {"caption": caption, "url": "https://example.org", "kind": caption[2:], "width": 12, "status": None}
            files += [(f"{key}.json", json.dumps(about).encode()), (f"{key}.txt", caption.encode())]
            files += [(f"{key}.jpg", picture(1000 * shard + number))]
        write_tar(folder / f"{shard:05d}.tar", files)


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "shards"
    folder.mkdir()
    return folder


def adopted(name: str = "in") -> Dataset:
    return open_dataset(Path(os.environ["HARNESS_DATA"]) / name)


def index(pattern: str | Path, *words: str, name: str = "in", check: bool = True) -> Any:
    return harness("data", "index", str(pattern), f"data.name={name}", "--workers", "1", *words, check=check)


def keys_of(dataset: Dataset, split: str) -> list[str]:
    files, rows = dataset.shards(split), dataset.index(split)
    return [member_key(Path(str(files[row["shard"]])), int(row["offset"])) for row in rows]


def test_imagenet_style_with_a_test_pattern(shards: Path) -> None:
    labels = imagenet(shards, "train")
    imagenet(shards, "val", shards=1)
    before = sorted(path.name for path in shards.iterdir())
    done = index(shards / "train-{0000..0003}.tar", "--test", str(shards / "val-0000.tar"), "data.val_samples=10%")
    assert "warning" not in done.stderr
    assert "shuffled, as far as its labels show" in done.stdout
    dataset = adopted()
    assert {name: split.samples for name, split in dataset.splits.items()} == {"train": 108, "val": 12, "test": 30}
    assert dataset.class_names == list("01234")
    keys = {split: keys_of(dataset, split) for split in dataset.splits}
    assert sorted(keys["train"] + keys["val"]) == [f"n0144_{number:05d}" for number in range(120)]
    assert keys["train"] == sorted(keys["train"])  # the shards' order
    numbers = [int(key[-5:]) for key in keys["train"]]
    assert dataset.index("train")["label"].tolist() == [labels[number] for number in numbers]
    assert sorted(path.name for path in shards.iterdir()) == before  # in place
    assert check_dataset(dataset, workers=1) == []
    batch = next(
        train_batches(
            dataset, window(108, 50, 1), seed=0, batch_size=20, start_samples_seen=0, image_size=8, channels=3
        )
    )
    assert batch.labels.tolist() == dataset.index("train")["label"][batch.ids.numpy()].tolist()
    done = harness("data", "keys", "in", "--subset", "50", "--draw", "1")
    assert done.stdout.split() == keys["train"][54:104]
    assert "already" not in done.stdout
    assert "holds another data set" in index(shards / "train-0000.tar", check=False).stderr
    index(shards / "train-{0000..0003}.tar", "--force")


def test_laion_style_with_the_class_in_a_field(shards: Path) -> None:
    laion(shards)
    done = index(shards / "{00000..00001}.tar", check=False)
    assert done.returncode == 2
    assert "30 images have neither .cls nor a field label in .json" in done.stderr
    assert "txt, caption, url, kind, width, status" in done.stderr
    assert "--label none" in done.stderr
    index(shards / "{00000..00001}.tar", "--label", "kind", "--force")
    dataset = adopted()
    assert dataset.class_names == ["cat", "dog", "owl"]
    rows = dataset.index("train")
    wanted = [int(key[-4:]) % 3 for key in keys_of(dataset, "train")]
    assert rows["label"].tolist() == wanted
    assert check_dataset(dataset, workers=1) == []
    index(shards / "{00000..00001}.tar", "--label", "none", name="plain")
    assert adopted("plain").class_names == ["unlabelled"]


def test_an_order_that_is_not_shuffled_is_said_from_its_labels(shards: Path) -> None:
    imagenet(shards, "train", ordered=True)
    done = index(shards / "train-{0000..0003}.tar")
    assert "order that is not shuffled" in done.stderr
    assert "NOT SHUFFLED" in done.stdout
    assert "NOT SHUFFLED" in harness("data", "show", "in").stdout


def test_names_of_classes_from_a_file(shards: Path) -> None:
    imagenet(shards, "train")
    names = shards / "classes.txt"
    names.write_text("tench\nshark\nray\ncock\nhen\n")
    index(shards / "train-{0000..0003}.tar", "--classes", str(names))
    assert adopted().class_names == ["tench", "shark", "ray", "cock", "hen"]
    assert check_dataset(adopted(), workers=1) == []
    names.write_text("tench\nshark\n")
    done = index(shards / "train-{0000..0003}.tar", "--classes", str(names), "--force", check=False)
    assert "a label is 4, --classes names 2" in done.stderr


def test_odd_samples_are_dropped_and_counted(shards: Path) -> None:
    files: Files = [(f"a/{i}.png", picture(i, "PNG")) for i in range(40)]
    files += [(f"a/{i}.cls", str(i % 2).encode()) for i in range(40)]  # all labels after all images
    files += [("._a/x.jpg", b"side"), ("a/._y.jpg", b"side file"), ("../../etc/z.txt", b"no image")]
    files += [("b.jpg", picture(1)), ("b.seg.png", picture(2, "PNG")), ("b.cls", b"1")]  # a.seg.png is no image of it
    files += [("c.jpg", picture(3)), ("d.jpg", picture(3)[:-40]), ("d.cls", b"0"), ("a/3.png", picture(9, "PNG"))]
    write_tar(shards / "odd.tar", files)
    done = index(shards / "odd.tar", check=False)
    assert "more than data.max_dropped" in done.stderr
    index(shards / "odd.tar", "data.max_dropped=0.2")
    dataset = adopted()
    assert dataset.dropped == {"no_image": 1, "no_label": 2, "repeated_member": 1, "truncated": 1}
    text = (dataset.folder / "dropped.csv").read_text()
    assert f"train,{shards}/odd.tar: c,no_label" in text
    assert sum(split.samples for split in dataset.splits.values()) == 41
    assert check_dataset(dataset, workers=1) == []


def test_check_names_shard_and_key(shards: Path) -> None:
    imagenet(shards, "train")
    index(shards / "train-{0000..0003}.tar")
    dataset = adopted()
    first, second, third, last = (shards / f"train-000{i}.tar" for i in range(4))
    row = dataset.index("train")[3]
    key = member_key(first, int(row["offset"]))
    data = bytearray(first.read_bytes())
    data[int(row["offset"]) : int(row["offset"]) + 2] = b"\0\0"
    first.write_bytes(data)
    content = second.read_bytes()
    second.write_bytes(third.read_bytes())
    third.write_bytes(content)
    last.unlink()
    found = "\n".join(check_dataset(open_dataset(dataset.folder, cheap_checks=False), workers=1))
    assert f"{first}: sha256 differs" in found
    assert f"{first}: sample {key}: not_an_image" in found
    assert f"{second}: sha256 differs" in found
    assert f"{third}: sha256 differs" in found
    assert f"{last}: missing" in found


def test_a_truncated_or_compressed_shard_is_an_error_that_names_it(shards: Path) -> None:
    imagenet(shards, "train", shards=1)
    path = shards / "train-0000.tar"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "train-0000.tar: not a whole, uncompressed tar" in index(path, check=False).stderr
    (shards / "x.tar").write_bytes(gzip.compress(whole))
    assert "x.tar: not a whole, uncompressed tar" in index(shards / "x.tar", name="x", check=False).stderr
    assert "no such file" in index(shards / "none-{0..3}.tar", name="y", check=False).stderr


def test_what_was_read_before_a_stop_is_not_read_again(shards: Path) -> None:
    imagenet(shards, "train")
    last = shards / "train-0003.tar"
    whole = last.read_bytes()
    last.write_bytes(whole[:1000])
    assert index(shards / "train-{0000..0003}.tar", check=False).returncode == 2
    for number in range(3):
        (shards / f"train-000{number}.tar").write_bytes(bytes((shards / f"train-000{number}.tar").stat().st_size))
    last.write_bytes(whole)
    index(shards / "train-{0000..0003}.tar")
    assert sum(split.samples for split in adopted().splits.values()) == SHARDS * EACH


def test_shards_behind_http_are_adopted_checked_and_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.download.FIRST_WAIT_SECONDS", 0.01)
    imagenet(shards, "train")
    server = Server(shards)
    server.faults = ["503", "truncate"]
    index(server.url("train-{0000..0003}.tar"), name="far")
    index(shards / "train-{0000..0003}.tar", name="near")
    far, near = adopted("far"), adopted("near")
    assert far.digest == near.digest
    assert np.array_equal(far.index("train"), near.index("train"))
    asked = len(server.asked)
    assert check_dataset(far, workers=1) == []
    assert len(server.asked) == asked  # from the cache
    damaged = far.shards("train")[0].path  # type: ignore[union-attr]
    damaged.write_bytes(bytes(damaged.stat().st_size))
    assert check_dataset(far, workers=1) == []  # fetched again
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    batches = [
        list(
            islice(
                train_batches(
                    dataset,
                    window(dataset.splits["train"].samples, 100, 0),
                    seed=1,
                    batch_size=25,
                    start_samples_seen=25,
                    image_size=8,
                    channels=3,
                    order="block",
                ),
                6,
            )
        )
        for dataset in (far, near)
    ]
    for one, other in zip(*batches, strict=True):
        assert one.images.equal(other.images)
        assert one.labels.equal(other.labels)
    words = ("--subset", "9", "--seed", "0", "--epoch", "2", "--order", "block")
    assert harness("data", "keys", "far", *words).stdout == harness("data", "keys", "near", *words).stdout
    server.stop()


def test_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.urls.MOST_SHARDS", 1000)
    assert expand("https://x.org/a-{08..11}.tar") == [f"https://x.org/a-{i}.tar" for i in ("08", "09", "10", "11")]
    assert expand("/d/{train,val}-{0..1}.tar") == [f"/d/{n}-{i}.tar" for n in ("train", "val") for i in (0, 1)]
    odd = tmp_path / "run{a,b}.tar"
    odd.touch()
    assert expand(str(odd)) == [str(odd)]  # a file that is there is taken as it is written
    for pattern, message in (
        ("a{1,2.tar", "Unbalanced"),
        ("/d/*.tar", "wildcards"),
        ("/d/{1,1}.tar", "twice"),
        ("s3://b/a.tar::s3://b/c.tar", "chained"),
        ("/d/{0..9999}.tar", "more than 1,000 shards"),
    ):
        with pytest.raises(ConfigError, match=message):
            expand(pattern)
    for secret in (
        "https://me:pw@x.org/a.tar",
        "https://x.org/a.tar?X-Amz-Signature=0",
        "https://x.org/a.tar?v=1&token=x",
    ):
        with pytest.raises(ConfigError, match="would be written to the manifest") as caught:
            expand(secret)
        assert "pw" not in str(caught.value).replace("password", "")
    assert expand("https://x.org/a.tar?version=2") == ["https://x.org/a.tar?version=2"]
    for command in ("pipe:curl https://x.org/a.tar", "PIPE:x", "sh:x", " pipe:x", "{pipe,x}:x", "| cat x", "!x"):
        with pytest.raises(ConfigError, match=r"data\.allow_shell=true"):
            expand(command)
    assert expand("pipe:cat a{0..1}.tar", allow_shell=True) == ["pipe:cat a0.tar", "pipe:cat a1.tar"]


def test_a_shell_command_is_run_only_where_it_is_allowed(shards: Path) -> None:
    imagenet(shards, "train", shards=1)
    pattern = f"pipe:cat {shards}/train-000{{0..0}}.tar"
    assert "data.allow_shell=true" in index(pattern, check=False).stderr
    index(pattern, "data.allow_shell=true")
    for command in ("check", "show", "keys"):
        assert "would run a shell command" in harness("data", command, "in", check=False).stderr
        harness("data", command, "in", "data.allow_shell=true")
    for words in (["data.seed=1"], ["--draw", "1", "data.seed=1"]):
        assert "known here: data.allow_shell=true" in harness("data", "show", "in", *words, check=False).stderr
