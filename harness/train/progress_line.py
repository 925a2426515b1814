"""One line a run while it trains: rewritten on a terminal, a plain line now and then elsewhere."""

import sys
import time
from typing import Any, TextIO

PLAIN_LINE_SECONDS = 10.0


class ProgressLine:
    """Prints what a heartbeat reports."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._last = float("-inf")
        self._open = False

    def show(self, report: dict[str, Any]) -> None:
        """Rewrite the line, or print one if the last was long enough ago or the run is at its end."""
        done = report["samples_seen"] >= report["horizon_samples"]
        if self._live:
            print(f"\r\x1b[2K{line(report)}", end="\n" if done else "", file=self._stream, flush=True)
            self._open = not done
        elif done or time.monotonic() - self._last >= PLAIN_LINE_SECONDS:
            self._last = time.monotonic()
            print(line(report), file=self._stream, flush=True)

    def close(self) -> None:
        """What is printed next begins on a line of its own, also where a run ends before its horizon."""
        if self._open:
            print(file=self._stream, flush=True)
            self._open = False


def line(report: dict[str, Any]) -> str:
    """'51,200 of 256,000 images · 0:23 left · 8,912 images/s · loss 1.234 · val top-1 56.7 % · 17 GFLOP/s (21 %)'."""
    parts = [f"{report['samples_seen']:,} of {report['horizon_samples']:,} images"]
    if report["eta_seconds"] is not None:
        parts.append(f"{duration(report['eta_seconds'])} left")
    if report["images_per_second"] is not None:
        parts.append(f"{report['images_per_second']:,.0f} images/s")
    if report["loss"] is not None:
        parts.append(f"loss {report['loss']:.4g}")
    if report["val_top1"] is not None:
        parts.append(f"val top-1 {100 * report['val_top1']:.1f} %")
    if report["flops_per_second"] is not None:
        share = report["share_of_peak"]
        parts.append(rate(report["flops_per_second"]) + ("" if share is None else f" ({100 * share:.0f} % of peak)"))
    return " · ".join(parts)


def duration(seconds: float) -> str:
    """83 -> '1:23', 3723 -> '1:02:03'."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def rate(flops_per_second: float) -> str:
    """1.7e10 -> '17 GFLOP/s'."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9)):
        if flops_per_second >= size:
            return f"{flops_per_second / size:.3g} {unit}FLOP/s"
    return f"{flops_per_second / 1e6:.3g} MFLOP/s"
