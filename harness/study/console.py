"""The terminal, or lines wide enough for whole tables where there is none."""

from rich.console import Console

PLAIN_WIDTH = 160


def wide_console() -> Console:
    """A rich console; a file or pipe gets PLAIN_WIDTH columns instead of 80."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)
