"""Reading a URL to its end: by ranges, so that it goes on where it broke, and with retries that back off.

fsspec does the reading, so that https, s3, gs, abfs, sftp, … all work, with the credentials that it finds in the
environment or ~/.config/fsspec. Only a `pipe:` URL, which the user must have allowed, starts a shell.
"""

import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any, BinaryIO

from harness.data.urls import SHELL_SCHEMES, scheme_of
from harness.errors import DatasetError

CHUNK_BYTES = 8 * 2**20
SMALLEST_CHUNK_BYTES = 64 * 2**10  # a range that breaks is asked for again by halves, so that bad lines get on too
STALL_SECONDS = 60.0  # without the range having come
FAILURES = 8  # one after another, without a byte in between
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 30.0
MAY_PASS = (408, 425, 429)  # HTTP statuses of the 400s that are worth another try


def download(url: str, file: BinaryIO, size: int) -> None:
    """Append bytes of `url` to `file`, from where it ends, until it has `size`.

    Raises DatasetError naming the URL when it is not there, not allowed, shorter, or fails too often in a row.
    """
    scheme = scheme_of(url)
    if scheme in SHELL_SCHEMES:
        run_command(url.partition(":")[2], url, file, size)
        return
    chunk, failures = CHUNK_BYTES, 0
    file.seek(0, 2)
    while (start := file.tell()) < size:
        try:
            data = read_range(url, start, min(start + chunk, size), size)
            if not data:
                raise EOFError(f"nothing at byte {start:,} of {size:,}")
            failures = 0
        except Exception as error:  # every library behind fsspec has errors of its own
            failures += 1
            forget_frames(error)
            if is_final(error) or failures > FAILURES:
                raise DatasetError(
                    f"{url}: {describe(error)} at byte {start:,} of {size:,}"
                    + ("" if is_final(error) else f", {failures} times in a row; the same command goes on from there")
                ) from error
            chunk = max(SMALLEST_CHUNK_BYTES, chunk // 2)
            wait = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (failures - 1))
            if failures > 1:  # one failure is nothing to speak of
                print(f"{url}: {describe(error)} at byte {start:,}; trying again", file=sys.stderr, flush=True)
            time.sleep(wait * random.uniform(0.5, 1))
            continue
        chunk = min(CHUNK_BYTES, 2 * chunk)
        file.write(data)
        file.flush()  # a kill loses no more than the range that is on its way


def read_range(url: str, start: int, end: int, size: int) -> bytes:
    """Bytes [start, end), or fewer; more where a server without ranges answers with the whole."""
    fs, path, options = open_filesystem(url)
    data: bytes = fs.cat_file(path, start=start, end=end, **options)
    if len(data) > end - start:
        return data[start:size]
    return data


def remote_size(url: str) -> int:
    """How long a shard is. Raises DatasetError naming the URL."""
    if scheme_of(url) in SHELL_SCHEMES:
        return command_size(url)
    failures = 0
    while True:
        try:
            fs, path, options = open_filesystem(url)
            size = fs.info(path, **options)["size"]
            break
        except Exception as error:
            failures += 1
            if is_final(error) or failures > FAILURES:
                raise DatasetError(f"{url}: {describe(error)}") from error
            time.sleep(min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2 ** (failures - 1)))
    if size is None:
        raise DatasetError(f"{url}: the server does not say how long it is")
    return int(size)


def open_filesystem(url: str) -> tuple[Any, str, dict[str, Any]]:
    """fsspec's file system, the path on it, and what each call is to be given.

    Raises DatasetError for a protocol that fsspec does not know, or whose package is not installed.
    """
    import fsspec
    from fsspec.asyn import AsyncFileSystem

    options: dict[str, Any] = {}
    http = scheme_of(url) in ("http", "https")
    if http:
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=STALL_SECONDS, sock_read=STALL_SECONDS)
        # identity: offsets are those of the file, not of what a server makes of it on the way
        options = {"client_kwargs": {"timeout": timeout}, "headers": {"Accept-Encoding": "identity"}}
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except (ImportError, ValueError) as error:
        raise DatasetError(f"{url}: {error}") from error
    # http minds stalls itself: without ranges, a whole shard that comes slowly is no stall
    return fs, path, {"timeout": STALL_SECONDS} if isinstance(fs, AsyncFileSystem) and not http else {}


def is_final(error: Exception) -> bool:
    """Whether another try would end the same way."""
    if isinstance(error, FileNotFoundError | PermissionError | DatasetError):
        return True
    status = getattr(error, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in MAY_PASS


def forget_frames(error: BaseException | None) -> None:
    """Empty the frames that an error has passed through.

    fsspec's keep the error itself, a cycle that would keep alive who called, and with it the processes of a loader
    that nobody uses any more, until the garbage collector comes by.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def describe(error: Exception) -> str:
    """An error in a few words; those of time-outs have none of their own."""
    import asyncio

    status = getattr(error, "status", None)
    if isinstance(error, FileNotFoundError):
        return "not found"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):  # one class from Python 3.11 on
        return f"no answer within {STALL_SECONDS:g} s"
    if isinstance(status, int):
        return f"the server answers {status}"
    return f"{type(error).__name__} ({error})" if str(error) else type(error).__name__


def run_command(command: str, url: str, file: BinaryIO, size: int) -> None:
    """Everything that a shell command writes, into `file`. Raises DatasetError when it fails or is not `size` long."""
    file.truncate(0)
    done = subprocess.run(command, shell=True, stdout=file, stderr=subprocess.PIPE, check=False, preexec_fn=heed_ctrl_c)
    file.seek(0, 2)
    if done.returncode or file.tell() != size:
        words = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise DatasetError(
            f"{url}: exit code {done.returncode}, {file.tell():,} of {size:,} bytes{': ' + words[0] if words else ''}"
        )


def heed_ctrl_c() -> None:
    """In a command's process: workers ignore SIGINT, since their parent decides; a command ends with the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def command_size(url: str) -> int:
    """How many bytes a shell command writes: it has to run for that."""
    with subprocess.Popen(url.partition(":")[2], shell=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        size = sum(len(block) for block in reread(process.stdout))
    if process.returncode:
        raise DatasetError(f"{url}: exit code {process.returncode}")
    return size


def reread(file: Any) -> Iterator[bytes]:
    """Blocks of an open file up to its end."""
    while block := file.read(1 << 20):
        yield block
