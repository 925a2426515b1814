"""The sample sequence is a function of (window, seed, samples seen), whatever reads it."""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from harness.data import cache
from harness.data.loader import Batch, distinct_origins, eval_batches, train_batches
from harness.data.manifest import INDEX, Dataset, index_path, open_dataset
from harness.data.order import batch as order_batch
from harness.data.pixels import Pixels
from harness.data.shard import member_key
from harness.data.subset import window
from harness.errors import DatasetError
from tests.conftest import ROOT

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


def test_going_on_replays_nothing(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the 400-thousandth epoch on: the first batch reads its own 32 samples and no other, with either order."""
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    read: list[int] = []
    whole = Pixels._read

    def counting(self: Pixels, row: np.void) -> bytes:
        read.append(int(row["offset"]))
        return whole(self, row)

    monkeypatch.setattr(Pixels, "_read", counting)
    for order in ("global", "block"):
        read.clear()
        chosen = window(600, 250, 1)
        stream = train_batches(tiny, chosen, seed=5, batch_size=32, start_samples_seen=10**8, order=order, **SIZE)
        ids = next(stream).ids.numpy()
        assert read == tiny.index("train")["offset"][ids].tolist()


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_worker_processes_change_no_sample(tiny: Dataset, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    cached = take(tiny, 12)
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    assert isinstance(cache.open_pixels(tiny, "train", 16, 1), Pixels)
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
    pixels = Pixels(tiny, "train", 16, 1)
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


def test_a_damaged_sample_names_shard_and_key(tiny: Dataset, tmp_path: Path) -> None:
    pixels = Pixels(tiny, "val", 16, 1)
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


def processes(count: int, program: str, folder: Path, **env: str) -> list[subprocess.CompletedProcess[str]]:
    """`program` in `count` Python processes at once; sys.argv[1] is `folder`."""
    words = [sys.executable, "-c", program, str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [
        subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(ROOT), **env}, **pipes) for _ in range(count)
    ]  # type: ignore[call-overload]
    done = [(one, one.communicate(timeout=120)) for one in started]
    return [subprocess.CompletedProcess(words, one.returncode, *output) for one, output in done]


@pytest.fixture
def copy(tiny: Dataset, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("cache")))


SUM_OF_CACHE = """
import sys; from pathlib import Path
from harness.data.cache import open_pixels; from harness.data.manifest import open_dataset
pixels = open_pixels(open_dataset(Path(sys.argv[1])), "train", 16, 1)
print(type(pixels).__name__, sum(int(pixels[i].sum()) for i in range(600)))
"""


def test_processes_that_want_one_cache_build_one(copy: Path) -> None:
    done = processes(3, SUM_OF_CACHE, copy)
    assert {one.returncode for one in done} == {0}, done[0].stderr
    assert len({one.stdout for one in done}) == 1
    assert [path.suffix for path in sorted((copy / "cache").iterdir())] == [".lock", ".npy"]


def test_where_a_cache_does_not_fit_the_samples_are_the_same(copy: Path) -> None:
    """A limit on file sizes stands for the full disk: writing beyond either is an OSError."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
    without = processes(1, limit + SUM_OF_CACHE, copy)[0]
    assert without.returncode == 0, without.stderr
    assert "no cache of decoded images" in without.stderr
    with_cache = processes(1, SUM_OF_CACHE, copy)[0]
    assert without.stdout.split() == ["Pixels", with_cache.stdout.split()[1]]
    assert with_cache.stdout.split()[0] == "ndarray"


def test_an_error_in_a_worker_process_reads_as_one_here(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = open_dataset(copy)
    row = dataset.index("val")[4]
    shard = copy / "val-000000.tar"
    data = bytearray(shard.read_bytes())
    data[int(row["offset"]) : int(row["offset"]) + 8] = bytes(8)
    shard.write_bytes(data)
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    for workers in (0, 1):
        with pytest.raises(DatasetError) as caught:
            list(eval_batches(dataset, "val", batch_size=64, workers=workers, **SIZE))
        assert str(caught.value).startswith(f"{shard}: sample {member_key(shard, int(row['offset']))}: not_an_image")
        assert "Traceback" not in str(caught.value)


def exhaust(stream: Iterator[Batch], batches: int) -> None:
    for _ in islice(stream, batches):
        pass


def test_a_dead_worker_is_an_error_and_not_a_hang(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    before = set(psutil.Process().children())
    stream = train_batches(tiny, window(600, 250, 1), seed=5, batch_size=32, start_samples_seen=0, workers=2, **SIZE)
    next(stream)
    workers = set(psutil.Process().children()) - before
    assert len(workers) == 2
    workers.pop().kill()
    with pytest.raises(DatasetError, match="a decoding process was killed"):
        exhaust(stream, 100)
    assert set(psutil.Process().children()) <= before


def test_workers_end_with_the_iterator_and_with_their_parent(tiny: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    before = set(psutil.Process().children())
    take(tiny, 3, workers=2)
    gc.collect()
    assert set(psutil.Process().children()) <= before
    pid = os.fork()
    if pid == 0:  # a parent that is killed while its workers wait for more
        stream = train_batches(
            tiny, window(600, 250, 1), seed=5, batch_size=32, start_samples_seen=0, workers=2, **SIZE
        )
        next(stream)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(pid, os.WUNTRACED)
    workers = psutil.Process(pid).children()
    assert len(workers) == 2
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert psutil.wait_procs(workers, timeout=10)[1] == []


def test_ctrl_c_leaves_no_process(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGINT to a process group, as a terminal sends it, while workers decode and while they wait."""
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    for batches in (3, 10**9):
        started = tmp_path / f"started-{batches}"
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.default_int_handler)
            code = 1
            try:
                stream = train_batches(
                    tiny, window(600, 250, 1), seed=5, batch_size=32, start_samples_seen=0, workers=3, **SIZE
                )
                next(stream)
                started.touch()
                exhaust(stream, batches)
                time.sleep(60)
            except KeyboardInterrupt:
                code = 130
                stream.close()
            finally:
                os._exit(code)
        wait_until(started.exists)
        workers = psutil.Process(pid).children()
        assert len(workers) == 3
        time.sleep(0.2)
        os.killpg(pid, signal.SIGINT)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
        assert psutil.wait_procs(workers, timeout=10)[1] == []


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("limit, workers", [(cache.CACHE_LIMIT_BYTES, 0), (0, 2)])
def test_memory_is_flat_over_a_hundred_thousand_batches(
    tiny: Dataset, monkeypatch: pytest.MonkeyPatch, limit: int, workers: int
) -> None:
    """Resident memory of this process and its workers after 100,000 batches against after 10,000; decoded, cached."""
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", limit)
    stream = train_batches(
        tiny, window(600, 250, 1), seed=5, batch_size=4, start_samples_seen=0, workers=workers, **SIZE
    )

    def resident() -> int:
        gc.collect()
        processes = [psutil.Process(), *psutil.Process().children()]
        return sum(process.memory_info().rss for process in processes)

    exhaust(stream, 10_000)
    before = resident()
    exhaust(stream, 90_000)
    grown = (resident() - before) / 2**20
    print(f"{workers} workers: {before / 2**20:.0f} MiB after 10,000 batches, {grown:+.1f} MiB after 100,000")
    assert grown < 4


def test_few_files_are_open_at_once_however_many_shards(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.pixels.OPEN_FILES", 2)
    pixels = Pixels(open_dataset(copy), "train", 16, 1)
    expected = [pixels[i] for i in (0, 300, 599)]
    for _ in range(3):
        for position, image in zip((0, 300, 599), expected, strict=True):
            assert np.array_equal(pixels[position], image)

    def open_shards() -> int:
        paths = [Path(file.path) for file in psutil.Process().open_files()]
        return sum(path.parent == copy and path.suffix == ".tar" for path in paths)

    assert open_shards() == 2
    pixels.close()
    assert open_shards() == 0


BIG = """
import json, sys, time, resource; from pathlib import Path; import numpy as np
from collections.abc import Iterator
from itertools import islice
from harness.data.manifest import INDEX, index_path, open_dataset
import harness.data.loader as loader; from harness.data.order import batch; from harness.data.subset import window
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
dataset = open_dataset(Path(sys.argv[1]))
labels = loader.Labels(dataset, "train")
opened = time.perf_counter() - start
chosen = window(300_000_000, 9_000_000, 3)
seeks = []
for position in range(0, 10**12, 10**12 // 21):
    start = time.perf_counter()
    labels[chosen.split_positions(batch(0, position, 1, chosen.size))]
    seeks.append(time.perf_counter() - start)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps([opened, float(np.median(seeks)), (after - before) / 1024]))
"""


@pytest.mark.slow
def test_three_hundred_million_samples_open_at_once(copy: Path) -> None:
    """A sparse index of that size: open < 1 s, seek to a sample < 1 ms, < 200 MB more than Python with torch."""
    samples = 300_000_000
    with open(index_path(copy, "train"), "wb") as file:
        header = {"descr": INDEX.descr, "fortran_order": False, "shape": (samples,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + samples * INDEX.itemsize)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["splits"]["train"]["samples"] = samples
    (copy / "manifest.json").write_text(json.dumps(manifest))
    runs = [json.loads(processes(1, BIG, copy)[0].stdout) for _ in range(2)]
    opened, seek, megabytes = np.min(runs, axis=0)
    assert opened < 1
    assert seek < 0.001
    assert megabytes < 200
