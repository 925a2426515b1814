"""The layout is a contract: imports only go down, analysis stands alone, files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted([*(ROOT / "harness").rglob("*.py"), *(ROOT / "analysis").rglob("*.py")])

# Each room and what it may import of harness. DESIGN: imports only go down.
MAY_IMPORT = {
    "harness.data": {"data", "compose", "config", "errors", "paths", "run_folder"},
    "harness.models": {"models", "config", "errors", "paths", "run_folder"},
    "harness.train": {"train", "data", "models", "config", "errors", "paths", "run_folder"},
    "harness.transfer": {"transfer", "train", "data", "models", "config", "errors", "paths", "run_folder"}
    | {"results_schema", "host"},  # what rooms have in common; they import none
}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:2])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_go_down(path: Path) -> None:
    names = imported(path)
    allowed = MAY_IMPORT.get(room_of(path))
    if allowed is not None:
        used = {name.split(".")[1] for name in names if name.startswith("harness.") and name != "harness.__version__"}
        assert used <= allowed, f"{path}: imports {used - allowed}"
    if path.is_relative_to(ROOT / "analysis"):
        tops = {name.split(".")[0] for name in names}
        assert not tops & {"torch", "timm", "hydra", "omegaconf"}
        of_harness = {name for name in names if name.split(".")[0] == "harness" and name != "harness"}
        assert all(name.startswith("harness.results_schema") for name in of_harness), of_harness
    if path.is_relative_to(ROOT / "harness") and path.name != "commands.py" and path.name != "cli.py":
        assert not {name for name in names if name.split(".")[0] == "analysis"}


def test_a_forbidden_import_is_seen(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from harness.train import loop\n")
    assert "harness.train.loop" in imported(bad)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            limit = 80 if node.name == "train" else 60  # the one loop that is read from top to bottom
            assert length <= limit, f"{path}: {node.name} has {length} lines"


def test_no_pickle() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert "import pickle" not in text, path
        assert "torch.load(" not in text, path
