"""The terminal, or lines wide enough for whole tables where there is none."""

from rich.console import Console

PLAIN_WIDTH = 160


def wide_console() -> Console:
    """A rich console; a file or pipe gets PLAIN_WIDTH columns instead of 80."""
    console = Console()
    return console if console.is_terminal else Console(width=PLAIN_WIDTH)


def duration(seconds: float) -> str:
    """'35 s', '12 min', '3.4 h', '2.1 days'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"
