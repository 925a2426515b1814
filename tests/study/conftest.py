"""A tiny study as it ends when nothing happens to it: what disturbed ones are compared with."""

import shutil
from pathlib import Path

import pandas as pd
import pytest

from harness.results_schema import RUNS
from tests.conftest import ROOT, STUDY, TINY_DATA, harness

EQUAL_COLUMNS = [name for name, column in RUNS.items() if not column.volatile]
PUBLISHED = ROOT / "results" / "pocket@fashion_mnist"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a published study that a test may damage."""
    return Path(shutil.copytree(PUBLISHED, tmp_path / PUBLISHED.name, ignore=shutil.ignore_patterns("report")))


def tables(study: Path, out: Path) -> dict[str, pd.DataFrame]:
    """The results tables without the columns in which equal runs may differ."""
    harness("results", str(study), "data=tiny", "--out", str(out))
    found = {name: pd.read_csv(out / f"{name}.csv") for name in ("runs", "transfer", "curves")}
    found["runs"] = found["runs"][EQUAL_COLUMNS]
    return found


def assert_equal_tables(one: dict[str, pd.DataFrame], other: dict[str, pd.DataFrame]) -> None:
    for name in one:
        pd.testing.assert_frame_equal(one[name], other[name], check_exact=True)


def run_folders(runs: Path) -> list[Path]:
    return sorted(path.parent for path in (runs / "tinystudy@tiny").glob("*/config.yaml"))


@pytest.fixture(scope="session")
def undisturbed(data_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, pd.DataFrame]:
    """Tables of the tiny study as it ends when nothing happens to it."""
    place = tmp_path_factory.mktemp("undisturbed")
    study = place / "tinystudy.yaml"
    study.write_text(STUDY.format(data=", ".join(TINY_DATA[1:]), samples=1600))
    patch = pytest.MonkeyPatch()
    patch.setenv("HARNESS_DATA", str(data_folder))
    patch.setenv("HARNESS_RUNS", str(place / "runs"))
    patch.setenv("PYTHONPATH", str(ROOT))
    try:
        done = harness("run", str(study))
        assert "8 runs finished now, 0 before, 0 failed" in done.stdout
        return tables(study, place / "out")
    finally:
        patch.undo()
