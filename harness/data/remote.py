"""Shards behind URLs, read through a local cache of bounded size that all processes of a machine share.

A shard is downloaded as a whole when the first sample of it is read: one process does, the others wait; its sha256 is
compared with the manifest's before anything is read. The cache names shards by their sha256, drops those that were read
longest ago, and holds no file open, so that its limit is one of the disk too. $HARNESS_CACHE (default ~/.cache/harness)
says where, $HARNESS_CACHE_BYTES (default 50G) how much. Needs no torch.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from harness.data.download import download, remote_size, reread
from harness.data.subset import parse_size
from harness.errors import ConfigError, DatasetError
from harness.paths import cache_root

DEFAULT_LIMIT = "50G"
WRONG_BYTES = 2  # downloads whose sha256 differs before that is an error
EVICTED = 20  # times that a shard may go between fetching and reading it
WAIT_SECONDS = 0.2


def cache_folder() -> Path:
    """Where shards are kept."""
    return cache_root() / "shards"


def limit_bytes() -> int:
    """How many bytes of shards are kept. Raises ConfigError for what is no size."""
    text = os.environ.get("HARNESS_CACHE_BYTES") or DEFAULT_LIMIT
    try:
        return parse_size(text, None)
    except ConfigError as error:
        raise ConfigError(f"HARNESS_CACHE_BYTES={text}: not a number of bytes like 500M or 50G") from error


class RemoteShard(NamedTuple):
    """A shard behind a URL, as the manifest describes it."""

    url: str
    size: int  # bytes
    sha256: str

    def __str__(self) -> str:
        return self.url

    @property
    def path(self) -> Path:
        """Where it lies in the cache, if it does."""
        return cache_folder() / f"{self.sha256}.tar"

    def local(self) -> Path:
        """The path of a whole, checked copy, downloaded first if need be.

        Raises DatasetError naming the URL when it cannot be read or holds other bytes than the manifest says.
        """
        while not self.path.exists():
            with kept(self.url):
                part = reserve(self.sha256, self.size, self.url)
                if part is not None:
                    with part:
                        self._fill(part)
        touch(self.path)
        return self.path

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the shard. Raises DatasetError as `local` does."""
        for _ in range(EVICTED):
            try:
                with open(self.path, "rb", buffering=0) as file:
                    os.utime(file.fileno())  # it was read now: what was read longest ago goes first
                    return os.pread(file.fileno(), size, offset)
            except FileNotFoundError:
                self.local()
        raise DatasetError(
            f"{self.url}: dropped from the cache {EVICTED} times before it could be read: what runs here needs more "
            f"than {limit_bytes():,} bytes of shards at a time; raise HARNESS_CACHE_BYTES"
        )

    def _fill(self, part: BinaryIO) -> None:
        for _ in range(WRONG_BYTES):
            download(self.url, part, self.size)
            found = sha256_of(part)
            if found == self.sha256:
                os.fsync(part.fileno())
                Path(part.name).rename(self.path)
                return
            part.truncate(0)
        raise DatasetError(
            f"{self.url}: its sha256 is {found[:12]}…, the manifest says {self.sha256[:12]}…: the shard was "
            "changed, or is damaged where it lies"
        )


def fetch_unknown(url: str) -> RemoteShard:
    """Download a shard of which nothing is known yet; returns what a manifest is to say of it."""
    size, key = remote_size(url), hashlib.sha256(url.encode()).hexdigest()
    while (part := reserve(key, size, url)) is None:
        pass
    with kept(url), part:
        part.truncate(0)  # it may be of another day, and there is no sha256 to tell
        download(url, part, size)
        shard = RemoteShard(url, size, sha256_of(part))
        Path(part.name).rename(shard.path)
    return shard


@contextmanager
def kept(url: str) -> Iterator[None]:
    """A full disk, or a cache that may not be written, as an error that says which."""
    try:
        yield
    except OSError as error:
        raise DatasetError(
            f"{url}: cannot be kept in {cache_folder()} ({error.strerror or error}): free some space, put "
            "HARNESS_CACHE elsewhere, or lower HARNESS_CACHE_BYTES"
        ) from error


def reserve(key: str, size: int, url: str) -> BinaryIO | None:
    """The unfinished download `key`, locked by this process, with room for `size` bytes in all.

    What was downloaded before a kill is still in it. None, after a while, where another process is downloading it, or
    others take up the room for now. Raises DatasetError for a shard that fits in no case.
    """
    limit, folder = limit_bytes(), cache_folder()
    if size > limit:
        raise DatasetError(f"{url}: {size:,} bytes, the cache holds {limit:,}: raise HARNESS_CACHE_BYTES")
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{key}-{size}.part"
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if part.exists() or drop_oldest(folder, limit - size):
            file = open(part, "ab+")  # noqa: SIM115 (the caller closes it)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if part.exists() and part.stat().st_ino == os.fstat(file.fileno()).st_ino:  # not renamed just now
                    return file
            except (BlockingIOError, FileNotFoundError):
                pass
            file.close()
    time.sleep(WAIT_SECONDS)
    return None


def drop_oldest(folder: Path, limit: int) -> bool:
    """Remove shards, longest unread first, until the rest takes up `limit` bytes; whether that could be done."""
    taken = {path: reserved_bytes(path) for path in folder.iterdir() if path.suffix in (".tar", ".part")}
    total = sum(taken.values())
    for path in sorted(taken, key=modified):
        if total <= limit:
            break
        if path.suffix == ".tar" or abandoned(path):
            path.unlink(missing_ok=True)
            total -= taken[path]
    return total <= limit


def reserved_bytes(path: Path) -> int:
    """What a shard takes up, an unfinished one when it will be finished."""
    if path.suffix == ".part":
        return int(path.stem.rpartition("-")[2])
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def modified(path: Path) -> float:
    """When a shard was read last, in seconds."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def abandoned(part: Path) -> bool:
    """Whether no process is downloading this."""
    try:
        with open(part, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
    except (BlockingIOError, FileNotFoundError):
        return False


def touch(path: Path) -> None:
    """Say that a shard was read now."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return


def sha256_of(file: BinaryIO) -> str:
    """sha256 of everything in an open file."""
    file.flush()
    file.seek(0)
    digest = hashlib.sha256()
    for block in reread(file):
        digest.update(block)
    return digest.hexdigest()
