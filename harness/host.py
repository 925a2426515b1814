"""This machine: the cores and the memory that a process may use."""

import os
from pathlib import Path

import psutil

CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_memory_bytes() -> float:
    """Memory of this machine, or of the control group that confines this process."""
    limits = [float(psutil.virtual_memory().total)]
    for name in CGROUP_LIMITS:
        try:
            limits.append(float(Path(name).read_text()))
        except (OSError, ValueError):  # not there, or 'max'
            continue
    return min(limits)
