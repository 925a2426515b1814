"""Signals set a flag; the loop reads it between two steps."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from harness.errors import ConfigError, HarnessError


class StoppedError(HarnessError):
    """The run was told to stop and has made a checkpoint: started again it goes on (exit code 85)."""


@contextmanager
def stop_flag(names: list[str]) -> Iterator[Callable[[], str | None]]:
    """A function that gives the name of the stop signal that came, if one did; handlers are put back afterwards.

    Outside the main thread no signal can be caught, and the flag stays down. Raises ConfigError for an unknown name.
    """
    numbers = [signal_number(name) for name in names]
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield lambda: signal.Signals(came[0]).name if came else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def signal_number(name: str) -> signal.Signals:
    """'SIGUSR1' as a number."""
    try:
        return signal.Signals[name]
    except KeyError:
        raise ConfigError(f"loop.stop_signals: {name} is no signal here; SIGTERM, SIGUSR1, SIGUSR2 are") from None
