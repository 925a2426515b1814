"""The command line teaches, answers at once, and works from a wheel as from a clone."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness import results_schema
from harness.cli import parser
from tests.conftest import ROOT, harness

COMMANDS = [
    [],
    ["data"],
    ["data", "pack"],
    ["data", "check"],
    ["data", "show"],
    ["data", "keys"],
    ["plan"],
    ["run"],
    ["status"],
    ["results"],
    ["report"],
    ["sync"],
    ["calibrate"],
    ["flops"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words) or "harness")
def test_every_command_has_help(command: list[str]) -> None:
    done = harness(*command, "--help")
    assert "usage: harness" in done.stdout
    assert len(done.stdout.splitlines()) > 5


def test_help_imports_neither_torch_nor_hydra() -> None:
    """That is what makes it answer in a tenth of a second."""
    script = (
        "import sys, contextlib\n"
        "from harness.cli import main\n"
        "with contextlib.suppress(SystemExit):\n    main(['run', '--help'])\n"
        "print(sorted({'torch', 'timm', 'hydra', 'pandas', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_no_command_prints_help_and_fails() -> None:
    done = harness(check=False)
    assert done.returncode == 2
    assert "harness data pack glyphs" in done.stdout


@pytest.mark.parametrize("words", [["run"], ["run", "pocket", "--nonsense"], ["data", "check", "a", "b=c"], ["fly"]])
def test_wrong_words_are_a_usage_error(words: list[str]) -> None:
    done = harness(*words, check=False)
    assert done.returncode == 2
    assert "usage: harness" in done.stderr


def test_overrides_may_stand_before_and_after_options() -> None:
    from harness.cli import parse

    options = parse(["data", "pack", "glyphs", "data.samples=5", "--workers", "3", "data.name=x"])
    assert options.overrides == ["data.samples=5", "data.name=x"]
    assert options.workers == 3


def test_the_tables_documentation_is_the_schemas() -> None:
    assert (ROOT / "docs" / "results.md").read_text() == results_schema.markdown() + "\n", "run `make docs`"


def test_every_command_in_the_readme_exists() -> None:
    known = set(parser()._subparsers._group_actions[0].choices)  # type: ignore[union-attr, arg-type]
    for line in (ROOT / "README.md").read_text().splitlines():
        words = line.split()
        if words[:1] == ["harness"] and len(words) > 1:
            assert words[1] in known, line


def test_make_help_lists_the_house_commands() -> None:
    listed = subprocess.run(["make", "help"], capture_output=True, text=True, cwd=ROOT, check=True).stdout
    for word in ("setup", "test", "check", "demo", "help"):
        assert any(line.startswith(word) for line in listed.splitlines()), listed


@pytest.mark.slow
def test_a_wheel_carries_configuration_and_studies(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)],
        check=True,
    )
    zipfile.ZipFile(next(tmp_path.glob("*.whl"))).extractall(tmp_path / "site")
    env = dict(os.environ) | {"PYTHONPATH": str(tmp_path / "site"), "HARNESS_DATA": str(tmp_path / "data")}
    command = [sys.executable, "-m", "harness.cli", "data", "pack", "glyphs", "data.samples=50", "data.val_samples=10"]
    done = subprocess.run([*command, "data.test_samples=10"], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    script = "import harness.paths as p, analysis; print(p.sweeps_dir(), p.conf_dir(), analysis.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    for path in where.stdout.split():
        assert path.startswith(str(tmp_path / "site"))
    assert (tmp_path / "site" / "harness" / "_sweeps" / "pocket.yaml").is_file()
