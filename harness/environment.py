"""What a run ran on: versions, code, hardware. For environment.json; the hash of a run does not cover it."""

import os
import platform
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from harness import __version__

PACKAGES = ("torch", "torchvision", "timm", "numpy", "hydra-core", "webdataset", "safetensors")
MAX_DIFF_CHARACTERS = 1_000_000


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


def git_state() -> tuple[str | None, str]:
    """Commit of the clone that this code runs from ('-dirty' appended when it differs) and the difference.

    (None, '') for an installed wheel, or where git is not at hand.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / "pyproject.toml").exists() or not (root / ".git").exists():
        return None, ""
    try:
        sha = _git(root, "rev-parse", "HEAD").strip()
        diff = _git(root, "diff", "HEAD", "--", "harness", "analysis", "conf", "sweeps", "pyproject.toml")
    except (OSError, subprocess.SubprocessError):
        return None, ""
    return sha + ("-dirty" if diff else ""), diff[:MAX_DIFF_CHARACTERS]


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
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20, check=True)
    return done.stdout


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
