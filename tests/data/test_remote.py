"""Shards behind a real HTTP server that stalls, truncates, answers 503, restarts: every byte comes, or it is said."""

import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from harness.data import cache, download, remote
from harness.data.block_order import BlockOrder
from harness.data.loader import eval_batches, train_batches
from harness.data.manifest import Dataset, open_dataset
from harness.data.remote import RemoteShard, fetch_unknown
from harness.data.subset import window
from harness.errors import ConfigError, DatasetError
from tests.data.server import Server

SIZE = {"image_size": 16, "channels": 1}
BODY = np.random.default_rng(0).bytes(300_000)


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of this test's own; seconds become hundredths."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(download, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(download, "CHUNK_BYTES", 65_536)
    monkeypatch.setattr(download, "SMALLEST_CHUNK_BYTES", 16_384)
    monkeypatch.setattr(remote, "WAIT_SECONDS", 0.02)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "a.tar").write_bytes(BODY)
    server = Server(folder)
    yield server
    server.stop()


def shard(server: Server, name: str = "a.tar", body: bytes = BODY) -> RemoteShard:
    return RemoteShard(server.url(name), len(body), hashlib.sha256(body).hexdigest())


def cached() -> list[str]:
    return sorted(path.name for path in remote.cache_folder().iterdir() if path.suffix in (".tar", ".part"))


@pytest.mark.parametrize(
    "faults", [[], ["503", "503", "503"], ["truncate"], ["stall"], ["", "503", "", "truncate", "stall", "truncate"]]
)
def test_every_byte_comes_whatever_breaks_on_the_way(server: Server, faults: list[str]) -> None:
    server.faults = list(faults)
    wanted = shard(server)
    assert wanted.local().read_bytes() == BODY
    assert server.faults == []
    assert cached() == [f"{wanted.sha256}.tar"]
    asked = len(server.asked)
    assert wanted.read(1000, 50) == BODY[1000:1050]
    assert len(server.asked) == asked  # it is here now
    assert fetch_unknown(server.url("a.tar")) == wanted


def test_a_server_without_ranges_is_read_in_one_go(tmp_path: Path, server: Server) -> None:
    plain = Server(server.folder, ranges=False)
    assert shard(plain).local().read_bytes() == BODY
    assert plain.asked == [("a.tar", 0)]
    plain.stop()


def test_a_download_goes_on_after_a_restart_of_the_server_and_sends_nothing_twice(server: Server) -> None:
    server.faults = ["", "", "stall"]
    result: list[bytes] = []
    reader = threading.Thread(target=lambda: result.append(shard(server).local().read_bytes()))
    reader.start()
    assert server.stalled.wait(10)
    server.stop()
    time.sleep(0.1)  # refused connections meanwhile
    server.start()
    reader.join(20)
    assert result == [BODY]
    whole_ranges = [start for _, start in server.asked]
    assert whole_ranges == sorted(whole_ranges)
    assert whole_ranges.count(0) == 1
    assert server.sent < len(BODY) + 2 * 65_536  # no more than the range that broke was sent again


def test_a_process_that_was_killed_while_downloading_leaves_what_the_next_one_goes_on_with(server: Server) -> None:
    server.faults = ["", "", "stall"]
    pid = os.fork()
    if pid == 0:
        download.STALL_SECONDS = 60
        shard(server).local()
        os._exit(0)
    assert server.stalled.wait(10)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert [name.endswith(".part") for name in cached()] == [True]
    before = len(server.asked)
    assert shard(server).local().read_bytes() == BODY
    assert server.asked[before][1] == 131_072


def test_what_cannot_be_had_is_an_error_that_names_the_url(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DatasetError, match=r"127.0.0.1:\d+/b.tar: not found"):
        shard(server, "b.tar").local()
    assert len(server.asked) == 1  # no second try
    server.faults = ["403"]
    with pytest.raises(DatasetError, match=r"a.tar: the server answers 403"):
        shard(server).local()
    monkeypatch.setattr(download, "FAILURES", 2)
    server.faults = ["503"] * 3
    with pytest.raises(DatasetError, match=r"a.tar: the server answers 503 at byte 0 of 300,000, 3 times in a row"):
        shard(server).local()
    server.faults = ["stall"] * 3
    with pytest.raises(DatasetError, match=r"no answer within 0.5 s|TimeoutError"):
        shard(server).local()


def test_a_shard_with_other_bytes_is_not_read(server: Server) -> None:
    (server.folder / "a.tar").write_bytes(BODY[:-1] + bytes([BODY[-1] ^ 1]))
    with pytest.raises(DatasetError, match=r"a.tar: its sha256 is .*the shard was changed"):
        shard(server).local()
    assert [name for name in cached() if name.endswith(".tar")] == []
    (server.folder / "a.tar").write_bytes(BODY[:-100])
    with pytest.raises(DatasetError, match=r"a.tar: .* at byte 299,900 of 300,000"):
        shard(server).local()


def test_the_cache_stays_under_its_limit_and_drops_what_was_read_longest_ago(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = [np.random.default_rng(i).bytes(100_000) for i in range(6)]
    shards = []
    for number, body in enumerate(bodies):
        (server.folder / f"{number}.tar").write_bytes(body)
        shards.append(shard(server, f"{number}.tar", body))
    monkeypatch.setenv("HARNESS_CACHE_BYTES", "350k")
    for number in (0, 1, 2):
        shards[number].local()
    assert shards[0].read(5, 9) == bodies[0][5:14]  # 1 is the oldest now
    shards[3].local()
    assert cached() == sorted(f"{shards[number].sha256}.tar" for number in (0, 2, 3))
    for number in (4, 5, 1, 0):
        assert shards[number].read(0, 100_000) == bodies[number]
        assert sum((remote.cache_folder() / name).stat().st_size for name in cached()) <= 350_000
    monkeypatch.setenv("HARNESS_CACHE_BYTES", "99k")
    with pytest.raises(DatasetError, match=r"2.tar: 100,000 bytes, the cache holds 99,000: raise HARNESS_CACHE_BYTES"):
        shards[2].local()
    monkeypatch.setenv("HARNESS_CACHE_BYTES", "lots")
    with pytest.raises(ConfigError, match="HARNESS_CACHE_BYTES=lots"):
        shards[2].local()


def test_a_full_disk_is_an_error_that_says_so(server: Server) -> None:
    """A limit on file sizes stands for the full disk: writing beyond either is an OSError."""
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            shard(server).local()
        except DatasetError as error:
            os._exit(0 if "cannot be kept in" in str(error) and "HARNESS_CACHE" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shard(server).local().read_bytes() == BODY  # goes on, once there is room


def test_of_processes_that_want_one_shard_one_downloads_it(server: Server) -> None:
    context = multiprocessing.get_context("fork")
    wanted = shard(server)
    server.faults = ["503"]  # so that the others have time to come
    readers = [context.Process(target=wanted.local) for _ in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(20)
        assert reader.exitcode == 0
    assert server.sent == len(BODY)


# --- a whole data set -------------------------------------------------------------------------------------------------


@pytest.fixture
def far(tiny: Dataset, tmp_path: Path, server: Server) -> Dataset:
    """The set `tiny` with its shards behind the server."""
    folder = Path(shutil.copytree(tiny.folder, tmp_path / "far", ignore=shutil.ignore_patterns("cache")))
    manifest = json.loads((folder / "manifest.json").read_text())
    for split in manifest["splits"].values():
        for entry in split["shards"]:
            (folder / entry["file"]).rename(server.folder / entry["file"])
            entry["file"] = server.url(entry["file"])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return open_dataset(folder)


def sequence(dataset: Dataset, count: int, start: int = 0, **options: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    stream = train_batches(
        dataset, window(600, 500, 1), seed=5, batch_size=50, start_samples_seen=start, **SIZE, **options
    )
    return [(batch.ids, batch.images) for batch in islice(stream, count)]


@pytest.mark.parametrize("order, workers", [("block", 0), ("block", 2), ("global", 0)])
def test_the_order_is_exact_over_a_network_that_fails(
    far: Dataset, tiny: Dataset, server: Server, monkeypatch: pytest.MonkeyPatch, order: str, workers: int
) -> None:
    near = sequence(tiny, 24, order=order)
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    server.faults = ["503", "truncate", "stall", "", "503"]
    before = set(psutil.Process().children())
    found = sequence(far, 24, order=order, workers=workers)
    assert set(psutil.Process().children()) <= before
    for (ids, images), (far_ids, far_images) in zip(near, found, strict=True):
        assert torch.equal(ids, far_ids)
        assert torch.equal(images, far_images)
    late = sequence(far, 3, start=50 * 21, order=order)
    assert all(torch.equal(ids, far_ids) for (ids, _), (far_ids, _) in zip(near[21:], late, strict=True))
    counted = sum(int(batch.mask.sum()) for batch in eval_batches(far, "val", batch_size=64, **SIZE))
    assert counted == 200


def cached_shards() -> list[str]:
    return [name for name in cached() if name.endswith(".tar")]  # beside them a lock, for as long as one is fetched


def test_the_next_group_is_fetched_while_this_one_is_read(
    far: Dataset, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    chosen = window(600, 600, 0)
    blocks = BlockOrder(chosen, [250, 250, 100], 5, look_ahead_samples=1)
    monkeypatch.setattr("harness.data.loader.BlockOrder", lambda *_: blocks)
    assert (blocks.group_blocks, len(blocks.sizes)) == (2, 3)
    stream = train_batches(far, chosen, seed=5, batch_size=10, start_samples_seen=0, order="block", **SIZE)
    next(stream)
    deadline = time.monotonic() + 10
    while len(cached_shards()) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(cached_shards()) == 3
    asked = len(server.asked)
    list(islice(stream, 100))
    assert len(server.asked) == asked


def test_an_order_that_needs_more_than_the_cache_holds_is_refused(
    far: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(shard["bytes"] for shard in far.splits["train"].shards)
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    monkeypatch.setenv("HARNESS_CACHE_BYTES", str(size // 2))
    with pytest.raises(ConfigError, match="order=block reads a few shards at a time; or raise HARNESS_CACHE_BYTES"):
        sequence(far, 1)
    with pytest.raises(ConfigError, match="raise HARNESS_CACHE_BYTES"):
        sequence(far, 1, order="block")


def test_an_unknown_order_is_refused(tiny: Dataset) -> None:
    with pytest.raises(ConfigError, match="order=sorted: it is one of global, block"):
        sequence(tiny, 1, order="sorted")


def test_shell_urls_are_refused_unless_allowed(far: Dataset, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    path = far.folder / "manifest.json"
    text = path.read_text()
    for command in ("pipe:cat {}; touch " + str(far.folder / "ran"), "sh:cat {}", "| cat {}"):
        manifest = json.loads(text)
        for entry in manifest["splits"]["val"]["shards"]:
            entry["file"] = command.format(server.folder / Path(entry["file"]).name)
        path.write_text(json.dumps(manifest))
        with pytest.raises(ConfigError, match=r"would run a shell command.*data.allow_shell=true"):
            open_dataset(far.folder)
    manifest["splits"]["val"]["shards"][0]["file"] = f"pipe:cat {server.folder / 'val-000000.tar'}"
    path.write_text(json.dumps(manifest))
    assert not (far.folder / "ran").exists()
    allowed = open_dataset(far.folder, allow_shell=True)
    assert sum(int(batch.mask.sum()) for batch in eval_batches(allowed, "val", batch_size=64, **SIZE)) == 200
    manifest["splits"]["val"]["shards"][0]["file"] = "pipe:echo no such bucket >&2; exit 3"
    path.write_text(json.dumps(manifest))
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    shutil.rmtree(remote.cache_folder())
    with pytest.raises(DatasetError, match=r"exit code 3, 0 of .*no such bucket"):
        next(eval_batches(open_dataset(far.folder, allow_shell=True), "val", batch_size=64, **SIZE))


def test_a_downloading_process_that_is_killed_is_an_error_and_not_a_hang(
    far: Dataset, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    chosen = window(600, 600, 0)
    blocks = BlockOrder(chosen, [250, 250, 100], 5, look_ahead_samples=1)
    monkeypatch.setattr("harness.data.loader.BlockOrder", lambda *_: blocks)
    before = set(psutil.Process().children())
    stream = train_batches(far, chosen, seed=5, batch_size=10, start_samples_seen=0, order="block", **SIZE)
    next(stream)
    for process in set(psutil.Process().children()) - before:
        process.kill()
    with pytest.raises(DatasetError, match="a downloading process was killed"):
        for _ in islice(stream, 1000):
            pass
    assert set(psutil.Process().children()) <= before


def test_ctrl_c_while_a_server_stalls_leaves_no_process(
    far: Dataset, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decoding and downloading processes, all of them waiting for an answer that does not come."""
    monkeypatch.setattr(cache, "CACHE_LIMIT_BYTES", 0)
    monkeypatch.setattr(download, "STALL_SECONDS", 60.0)
    server.faults = ["stall"] * 20
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            sequence(far, 3, order="block", workers=2)
        except KeyboardInterrupt:
            os._exit(130)
        os._exit(0)
    assert server.stalled.wait(20)
    time.sleep(0.3)
    children = psutil.Process(pid).children()
    assert len(children) >= 3
    os.killpg(pid, signal.SIGINT)
    gone, alive = psutil.wait_procs([psutil.Process(pid), *children], timeout=10)
    assert alive == []
    assert len(gone) == len(children) + 1
