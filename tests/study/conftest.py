"""A tiny study as it ends when nothing happens to it: what disturbed ones are compared with."""

import os
import shutil
from pathlib import Path

import pandas as pd
import pytest
from filelock import FileLock

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
    """Tables of the tiny study as it ends when nothing happens to it; trained once for all of pytest's processes."""
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "undisturbed"
    place.mkdir(exist_ok=True)
    with FileLock(place / "lock"):
        study = place / "tinystudy.yaml"
        study.write_text(STUDY.format(data=", ".join(TINY_DATA[1:]), samples=1600))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HARNESS_DATA", str(data_folder))
            patch.setenv("HARNESS_RUNS", str(place / "runs"))
            patch.setenv("PYTHONPATH", str(ROOT))
            harness("run", str(study))
            found = tables(study, place / "out")
    assert found["runs"]["state"].tolist() == ["finished"] * 8
    return found
