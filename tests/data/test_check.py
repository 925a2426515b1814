"""`harness data check` finds every kind of damage and names the shard and the key."""

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.data.check import check_dataset
from harness.data.manifest import Dataset, index_path, open_dataset
from harness.data.shard import member_key
from tests.conftest import harness


@pytest.fixture
def copy(tiny: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("cache")))


def problems(folder: Path) -> list[str]:
    return check_dataset(open_dataset(folder, cheap_checks=False), workers=1)


def rewrite(shard: Path, change: Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]) -> None:
    """The shard with other members, and a manifest that agrees with its bytes: only reading it finds the fault."""
    with tarfile.open(shard) as tar:
        files = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    with tarfile.open(shard, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in change(files):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_whole_set_has_no_problem(copy: Path) -> None:
    assert problems(copy) == []
    done = harness("data", "check", str(copy))
    assert "1,000 images checked, 0 problems" in done.stdout


def test_a_flipped_byte_of_an_image(copy: Path) -> None:
    shard = copy / "train-000001.tar"
    row = open_dataset(copy).index("train")[300]
    data = bytearray(shard.read_bytes())
    start = int(row["offset"])
    data[start + int(row["size"]) // 2] ^= 0xFF
    shard.write_bytes(data)
    found = problems(copy)
    assert any("train-000001.tar: sha256" in line for line in found)
    assert any(f"sample {member_key(shard, start)}" in line for line in found)
    done = harness("data", "check", str(copy), check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines()[:-1] == found


def test_missing_truncated_and_swapped_shards_are_all_named(copy: Path) -> None:
    first, second, third = (copy / f"train-00000{i}.tar" for i in range(3))
    third.unlink()
    first.rename(copy / "x")
    second.rename(first)
    (copy / "x").rename(second)
    val = copy / "val-000000.tar"
    val.write_bytes(val.read_bytes()[:-700])
    found = "\n".join(problems(copy))
    assert f"{third}: missing; 100 samples lie in it" in found
    assert f"{first}: sha256 differs from the manifest's: it holds what the manifest calls {second.name}" in found
    assert f"{second}: sha256 differs from the manifest's: it holds what the manifest calls {first.name}" in found
    for shard in (first, second):
        assert f"{shard}: sample" in found
    assert f"{val}: sha256 differs from the manifest's" in found.splitlines()
    assert "test-000000" not in found


def test_an_edited_manifest(copy: Path) -> None:
    edit_manifest(copy, lambda m: m["splits"]["val"]["class_counts"].__setitem__(slice(0, 2), [1, 2]))
    assert [line for line in problems(copy) if "class counts of val" in line]
    edit_manifest(copy, lambda m: m.update(digest="0" * 64))
    assert [line for line in problems(copy) if "digest" in line]


def test_a_manifest_edited_anywhere_is_seen(copy: Path) -> None:
    """Class names are in no shard, index or digest; the seal covers them."""
    edit_manifest(copy, lambda m: m["class_names"].reverse())
    assert problems(copy) == [f"{copy / 'manifest.json'}: edited since it was written (its manifest_sha256 is another)"]
    edit_manifest(copy, lambda m: m.pop("manifest_sha256"))  # as older versions wrote it
    assert problems(copy) == []
    edit_manifest(copy, lambda m: m["splits"]["train"]["shards"][1].update(samples=249))
    assert f"{copy / 'train-000001.tar'}: 250 samples, the manifest says 249" in "\n".join(problems(copy))
    edit_manifest(copy, lambda m: m["splits"]["train"]["shards"][1].update(samples=250, sha256="0" * 64))
    assert problems(copy) == [f"{copy / 'train-000001.tar'}: sha256 differs from the manifest's"]


def test_a_tar_that_is_cut_within_a_sample_names_the_last_whole_one(copy: Path) -> None:
    shard = copy / "train-000001.tar"
    rows = open_dataset(copy).index("train")
    rows = rows[rows["shard"] == 1]
    last = member_key(shard, int(rows[99]["offset"]))
    shard.write_bytes(shard.read_bytes()[: int(rows[100]["offset"]) + 20])
    found = problems(copy)
    broken = [line for line in found if line.startswith(f"{shard}: not a whole tar")]
    assert [line.endswith(f"the last whole sample is {last}") for line in broken] == [True]
    assert f"{shard}: 100 samples, the manifest says 250; the last whole sample is {last}" in found


def test_a_stale_index(copy: Path, tiny: Dataset) -> None:
    index = np.array(tiny.index("train"))
    swapped = index.copy()
    swapped[["offset", "size"]][3:5] = index[["offset", "size"]][[4, 3]]
    swapped["offset"][3:5] = index["offset"][[4, 3]]
    np.save(index_path(copy, "train"), swapped)
    found = problems(copy)
    assert len(found) == 2
    assert all("the index points elsewhere" in line for line in found)
    wrong = index.copy()
    wrong["label"][7] = (wrong["label"][7] + 1) % 10
    np.save(index_path(copy, "train"), wrong)
    assert "the index says" in problems(copy)[0]
    np.save(index_path(copy, "train"), index[:-1])
    assert "599 rows, the manifest says 600" in problems(copy)[0]
    index_path(copy, "train").write_bytes(b"rubbish")
    assert "missing or damaged" in problems(copy)[0]


def test_a_sample_without_a_label(copy: Path) -> None:
    shard = copy / "val-000000.tar"
    rewrite(shard, lambda files: [file for i, file in enumerate(files) if i != 1])
    key = member_key(shard, 512)
    assert any(f"val-000000.tar: sample {key}: no label follows it" in line for line in problems(copy))


def test_interleaved_members_are_not_two_half_samples(copy: Path) -> None:
    shard = copy / "val-000000.tar"
    rewrite(shard, lambda files: [files[0], files[2], files[1], files[3], *files[4:]])
    assert any("no label follows it" in line for line in problems(copy))


def test_a_label_that_is_no_class(copy: Path) -> None:
    rewrite(copy / "val-000000.tar", lambda files: [files[0], (files[1][0], b"10"), *files[2:]])
    assert any("label 10, the set has 10 classes" in line for line in problems(copy))


def test_a_key_in_two_shards(copy: Path) -> None:
    with tarfile.open(copy / "train-000000.tar") as tar:
        name = tar.getnames()[0]
    key = name.rpartition(".")[0]
    rewrite(copy / "val-000000.tar", lambda files: [(name, files[0][1]), (f"{key}.cls", files[1][1]), *files[2:]])
    line = next(line for line in problems(copy) if "occurs" in line)
    assert line == f"key {key} occurs 2 times: {copy / 'train-000000.tar'}, {copy / 'val-000000.tar'}"
