"""The notebooks run from top to bottom, on the reference tables and on the published studies."""

import os
from pathlib import Path

import pytest

NOTEBOOKS = Path(__file__).parents[2] / "analysis" / "notebooks"
NAMES = ("compute_scaling", "data_scaling", "overfitting")
FEWEST_FIGURES = {"compute_scaling": 8, "data_scaling": 5, "overfitting": 3}

if os.environ.get("HARNESS_CI") != "1":
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")


def test_there_are_three_and_they_are_committed_without_outputs() -> None:
    import nbformat

    assert sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb")) == sorted(NAMES)
    for name in NAMES:
        book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
        assert not any(cell.get("outputs") for cell in book.cells)
        assert len(book.cells) <= 12  # thin: what they do is in analysis/


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    root = str(NOTEBOOKS.parents[1])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]))
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    client = NotebookClient(book, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}})
    client.execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    figures = [output for output in outputs if "image/svg+xml" in output.get("data", {})]
    assert len(figures) >= FEWEST_FIGURES[name]
    assert not any(output.get("name") == "stderr" for output in outputs)
