"""Seconds in training steps (evaluation and checkpoints apart), of the whole run, and of CPU, over all attempts."""

import time
from typing import Any, Protocol

import torch

from harness.train.distributed import Ranks

HEARTBEAT_SECONDS = 1.0


class Times(Protocol):
    """What the clock reads and keeps up to date: the loop's progress."""

    samples_seen: int
    device_seconds: float
    total_seconds: float
    cpu_seconds: float
    step_loss: float | None
    best: dict[str, Any] | None
    final: dict[str, Any] | None


class Clock:
    """Wall and CPU time of one attempt on top of those before it."""

    def __init__(
        self, progress: Times, ranks: Ranks, checkpoint_seconds: float, flops_per_image: float, peak_flops: float
    ) -> None:
        self._total_base = progress.total_seconds - time.perf_counter()
        self._cpu_base = (progress.cpu_seconds if ranks.first else 0.0) - time.process_time()
        self._steps_since: float | None = None
        self._samples_at_start, self._seconds_at_start = progress.samples_seen, progress.device_seconds
        self._last_heartbeat, self._last_checkpoint = 0.0, time.perf_counter()
        self._checkpoint_seconds = checkpoint_seconds
        self._flops_per_image, self._peak_flops = flops_per_image, peak_flops

    def start_steps(self) -> None:
        """A training step follows; its batch is waited for within it."""
        if self._steps_since is None:
            self._steps_since = time.perf_counter()

    def pause_steps(self, progress: Times, idle: bool) -> None:
        """After a step: where the device is idle (a loss was just read back) the steps since the last pause count."""
        if idle and self._steps_since is not None:
            progress.device_seconds += time.perf_counter() - self._steps_since
            self._steps_since = None

    def read(self, progress: Times, ranks: Ranks) -> None:
        """Bring the progress's totals up to now; CPU time is of all ranks."""
        progress.total_seconds = self._total_base + time.perf_counter()
        own = torch.tensor(self._cpu_base + time.process_time(), dtype=torch.float64)
        progress.cpu_seconds = float(ranks.sum(own))

    def heartbeat_due(self) -> bool:
        """Once a second at most."""
        now = time.perf_counter()
        if now - self._last_heartbeat < HEARTBEAT_SECONDS:
            return False
        self._last_heartbeat = now
        return True

    def checkpoint_due(self) -> bool:
        """Whether the last checkpoint is too long ago."""
        return time.perf_counter() - self._last_checkpoint >= self._checkpoint_seconds

    def checkpoint_made(self) -> None:
        """From now on again."""
        self._last_checkpoint = time.perf_counter()

    def report(self, progress: Times, horizon_samples: int) -> dict[str, Any]:
        """What a heartbeat shows; speeds are of this attempt, evaluation apart."""
        open_seconds = 0.0 if self._steps_since is None else time.perf_counter() - self._steps_since
        seconds = progress.device_seconds - self._seconds_at_start + open_seconds
        samples = progress.samples_seen - self._samples_at_start
        speed = samples / seconds if seconds > 0 and samples else None
        flops = speed * self._flops_per_image if speed and self._flops_per_image else None
        return {
            "samples_seen": progress.samples_seen,
            "horizon_samples": horizon_samples,
            "images_per_second": round(speed, 1) if speed else None,
            "eta_seconds": round((horizon_samples - progress.samples_seen) / speed, 1) if speed else None,
            "loss": progress.step_loss,
            "val_top1": progress.final["val_top1"] if progress.final else None,
            "best_val_top1": progress.best["val_top1"] if progress.best else None,
            "flops_per_second": flops,
            "share_of_peak": flops / self._peak_flops if flops and self._peak_flops else None,
        }
