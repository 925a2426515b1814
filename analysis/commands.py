"""What `harness report` prints."""

from pathlib import Path

from analysis.report import build
from analysis.results import TableError


def report_command(folder: Path, out: Path) -> int:
    """Build the report of the tables in `folder`; print each verdict and where the page is. 2 for unusable tables."""
    try:
        verdicts = build(folder, out)
    except TableError as error:
        print(f"harness: {error}")
        return 2
    for verdict in verdicts:
        print(verdict.sentence)
        if verdict.would_decide:
            print(f"What would decide it: {verdict.would_decide}")
    print(out / "index.html")
    return 0
