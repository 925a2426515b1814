"""What a run ran on: versions, code, hardware. For environment.json; the hash of a run does not cover it."""

import ctypes
import hashlib
import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harness import __version__
from harness.run_folder import read_json, write_atomic, write_json

PACKAGES = ("torch", "torchvision", "timm", "numpy", "hydra-core", "webdataset", "safetensors")
MAX_DIFF_CHARACTERS = 1_000_000
CODE = ("harness", "analysis", "conf", "sweeps", "pyproject.toml")
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
SNAPSHOT_STATE = "git_state.json"  # in a copy of the code: commit and difference of the clone it was made from


def describe(device_kind: str) -> dict[str, Any]:
    """Versions, git commit and diff of harness itself, processor, memory, Python. No environment variables."""
    sha, diff = git_state()
    return {
        "harness_version": __version__,
        "git_sha": sha,
        "git_diff": diff,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "device_kind": device_kind,
        "host": platform.node(),
    }


@lru_cache
def git_state() -> tuple[str | None, str]:
    """Commit of the clone that this code runs from ('-dirty' appended when it differs) and the difference.

    Files that git does not know yet are part of the difference. (None, '') for an installed wheel, or where git is not
    at hand. A snapshot (`snapshot_code`) carries the state of the clone that it was made from.
    """
    root = Path(__file__).resolve().parent.parent
    snapshot = read_json(root / SNAPSHOT_STATE)
    if snapshot is not None:
        return snapshot.get("git_sha"), str(snapshot.get("git_diff", ""))
    if not (root / "pyproject.toml").exists() or not (root / ".git").exists():
        return None, ""
    try:
        sha = _git(root, "rev-parse", "HEAD").strip()
        diff = _git(root, "diff", "HEAD", "--", *CODE)
        for name in _git(root, "ls-files", "--others", "--exclude-standard", "--", *CODE).splitlines():
            diff += _git(root, "diff", "--no-index", "--", os.devnull, name)
    except (OSError, subprocess.SubprocessError):
        return None, ""
    return sha + ("-dirty" if diff else ""), diff[:MAX_DIFF_CHARACTERS]


def snapshot_code(folder: Path) -> Path:
    """Copy the code that runs now to `folder/<digest>`, to be put first on PYTHONPATH; what is edited while a job waits
    in a queue does not change the job. Returns the copy, the same for the same code."""
    root = Path(__file__).resolve().parent.parent
    is_clone = (root / "pyproject.toml").exists()
    names = CODE if is_clone else ("harness", "analysis")
    found = [path for name in names for path in (root / name, *(root / name).rglob("*"))]
    files = sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    copy = (folder / digest.hexdigest()[:12]).resolve()
    if not (copy / SNAPSHOT_STATE).exists():  # written last
        for path in files:
            write_atomic(copy / path.relative_to(root), path.read_bytes(), durable=False)
        sha, diff = git_state()
        write_json(copy / SNAPSHOT_STATE, {"git_sha": sha, "git_diff": diff})
    return copy


def device_name(kind: str, index: int = 0) -> str:
    """A device of this machine as torch or the system names it. `kind`: cpu or cuda."""
    if kind != "cuda":
        return processor_name()
    import torch  # takes a second; a launcher does without

    return torch.cuda.get_device_name(index) if torch.cuda.is_available() else "a GPU that is not here"


@lru_cache
def processor_name() -> str:
    """Model name of the CPU as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    if done.returncode != 0 and "--no-index" not in arguments:  # which says 1 for a difference
        done.check_returncode()
    return done.stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next step in place of giving it back and faulting it in again, page by page.

    A training step of a small network on a CPU frees and asks for some megabytes: 1,600 to 2,300 page faults a step,
    5 to 8 % of its time. Blocks above 32 MiB (glibc's own limit for this) go straight back as ever. Elsewhere than on
    glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, size in ((M_MMAP_THRESHOLD, 32 << 20), (M_TRIM_THRESHOLD, 256 << 20), (M_TOP_PAD, 64 << 20)):
        mallopt(parameter, size)
