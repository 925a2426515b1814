"""One process a run: a lock that needs no flock, works on a shared file system, and survives a dead holder.

`FOLDER/.lock/000001` is created exclusively (O_EXCL, which NFS keeps too) and holds who made it: host, pid and its
start time. Its modification time is the heartbeat. The lock is the file of the highest number; taking over from a dead
holder, or after a release, is creating the next number, which only one process can. Numbers are never used again, so
a process that looked long ago cannot take a lock away from one that looked later.

A holder is dead when its process is gone (same machine), or has not beaten for STALE_SECONDS (another machine; both
times are the file server's). A holder that slept through its own burial finds the next number and ends.
"""

import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

BEAT_SECONDS = 10.0
STALE_SECONDS = 120.0
EXIT_BUSY = 75  # another process has the run


@dataclass(frozen=True)
class Holder:
    """Who has a lock: enough to tell from the same machine whether it is still alive."""

    machine: str  # host, boot and process namespace: pids mean something only inside one
    host: str
    pid: int
    started: float  # of the process, by the kernel's own clock: a pid alone comes round again


def this_machine() -> str:
    """Host, boot and process namespace (containers share a host name now and then, never all three)."""
    parts = [platform.node()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: str(os.stat("/proc/self/ns/pid").st_ino),  # noqa: PTH116
    ):
        try:
            parts.append(read())
        except OSError:
            parts.append("")
    return "/".join(parts)


def myself() -> Holder:
    return Holder(this_machine(), platform.node(), os.getpid(), start_of(os.getpid()))


def start_of(pid: int) -> float:
    """When a process started, in clock ticks since boot: setting the clock does not move it (else psutil's time)."""
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return psutil.Process(pid).create_time()


def newest(folder: Path) -> Path | None:
    """The lock file that counts: the one of the highest number."""
    try:
        names = [entry.name for entry in os.scandir(folder / ".lock") if entry.name.isdigit()]
    except OSError:
        return None
    return folder / ".lock" / max(names) if names else None


def holder(folder: Path, now: float | None = None) -> Holder | None:
    """Who holds the folder's lock and lives, else None. `now`: the file server's time, else this machine's."""
    path = newest(folder)
    if path is None:
        return None
    try:
        age = (time.time() if now is None else now) - path.stat().st_mtime
        content = json.loads(path.read_text() or "{}")
    except (OSError, ValueError):
        return None
    if not isinstance(content, dict) or content.get("released"):
        return None
    try:
        found = Holder(content["machine"], content["host"], int(content["pid"]), float(content["started"]))
    except (KeyError, TypeError, ValueError):  # not yet written, its writer died before it was, or damaged
        return Holder("", "unknown", 0, 0.0) if age < STALE_SECONDS else None
    if found.machine == this_machine():
        return found if is_running(found) else None
    return found if age < STALE_SECONDS else None


def is_running(found: Holder) -> bool:
    """Whether that very process still runs on this machine."""
    try:
        return start_of(found.pid) == found.started and psutil.Process(found.pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, OverflowError):  # the last two: a pid that no process can have
        return False


def last_beat(folder: Path) -> float:
    """When the lock's holder last showed that it lives, seconds since the epoch; 0 without one."""
    path = newest(folder)
    try:
        return path.stat().st_mtime if path else 0.0
    except OSError:
        return 0.0


def acquire(folder: Path) -> Path | None:
    """Take the lock; its file, or None while another has it."""
    if (folder / ".lock").is_file():  # left by harness 0.1.0, which used flock
        (folder / ".lock").unlink()
    (folder / ".lock").mkdir(parents=True, exist_ok=True)
    before = newest(folder)
    if before is not None and holder(folder, server_time(folder)) is not None:
        return None
    number = int(before.name) + 1 if before else 1
    path = folder / ".lock" / f"{number:06d}"
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return None
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(asdict(myself())))
    return path


def server_time(folder: Path) -> float:
    """Now by the clock of the file system, which stamps the heartbeats of every machine."""
    probe = folder / ".lock" / f"probe.{platform.node()}.{os.getpid()}"
    probe.write_text("")
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink(missing_ok=True)


def release(path: Path) -> None:
    """Give the lock back: its file stays, so that its number is never used again. Written over in place, which needs
    no room on a full disk."""
    with open(path, "r+") as file:
        length = len(file.read())
        file.seek(0)
        file.write('{"released": true}'.ljust(length))


@contextmanager
def lock(folder: Path) -> Iterator[bool]:
    """Whether this process alone has the folder; beats while the block runs."""
    path = acquire(folder)
    if path is None:
        yield False
        return
    done = threading.Event()
    beating = threading.Thread(target=beat, args=(path, done), name="lock", daemon=True)
    beating.start()
    try:
        yield True
    finally:
        done.set()
        beating.join()
        release(path)


def beat(path: Path, done: threading.Event) -> None:
    """Show every BEAT_SECONDS that the holder lives; end the process when another has taken over meanwhile."""
    following = path.with_name(f"{int(path.name) + 1:06d}")
    while not done.wait(BEAT_SECONDS):
        if following.exists():  # this machine slept; another one works on the run now
            os._exit(EXIT_BUSY)
        try:
            os.utime(path)
        except OSError:
            continue  # the file server is away: others cannot take over either
