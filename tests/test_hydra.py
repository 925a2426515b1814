"""Hydra as its users expect it: multirun, --cfg, completion in a real shell, a configuration folder of their own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.run_folder import read_result
from tests.conftest import ROOT, STUDY, TINY_DATA, harness

TRAIN = ["train", *TINY_DATA, "subset=100", "recipe.samples_seen=320", "recipe.batch_size=32", "recipe.evaluations=1"]


def results(runs: Path) -> list[Path]:
    return sorted(path.parent for path in runs.glob("single@tiny/*/result.json"))


def test_multirun_trains_the_grid_and_again_trains_nothing(roots: Path) -> None:
    grid = ["-m", "model=vit_pocket,resnet_pocket", "seed=0,1"]
    harness(*TRAIN, *grid)
    folders = results(roots)
    assert {(r["model"], r["seed"]) for r in map(read_result, folders) if r} == {
        (model, seed) for model in ("vit_pocket", "resnet_pocket") for seed in (0, 1)
    }
    before = [(folder / "result.json").stat().st_mtime_ns for folder in folders]
    assert harness(*TRAIN, *grid).stdout.count("already finished") == 4
    assert [(folder / "result.json").stat().st_mtime_ns for folder in results(roots)] == before


def test_a_failing_job_of_a_multirun_makes_the_exit_code_non_zero(roots: Path) -> None:
    done = harness(*TRAIN, "-m", "model=vit_pocket", "subset=5k,100", check=False)
    assert done.returncode == 1
    assert "600 images" in done.stderr


def test_cfg_job_shows_what_overrides_make_and_starts_nothing(roots: Path) -> None:
    shown = harness("train", "--cfg", "job", "model=resnet_pocket", "recipe.learning_rate=0.5").stdout
    assert "learning_rate: 0.5" in shown
    assert "name: resnet_pocket" in shown
    assert not roots.exists()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with a model, a recipe and a study."""
    monkeypatch.delenv("HARNESS_CONFIG_DIR", raising=False)
    monkeypatch.setenv("HARNESS_CONFIG_DIR", "")  # so that what the command sets is undone after the test
    folder = tmp_path / "my conf"
    for name in ("model", "recipe", "sweeps"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / "conf" / "model" / "vit_pocket.yaml", folder / "model" / "mine.yaml")
    text = (folder / "model" / "mine.yaml").read_text().replace("name: vit_pocket", "name: mine")
    (folder / "model" / "mine.yaml").write_text(text)
    recipe = (ROOT / "conf" / "recipe" / "pocket.yaml").read_text().replace("name: pocket", "name: short")
    (folder / "recipe" / "short.yaml").write_text(recipe)
    study = STUDY.format(data=", ".join(TINY_DATA[1:]), samples=1600).replace("vit_pocket", "mine")
    (folder / "sweeps" / "ownstudy.yaml").write_text(study.replace("recipe: pocket", "recipe: short"))
    return folder


def test_models_recipes_and_studies_of_the_users_beside_ours(roots: Path, own: Path) -> None:
    words = [f"--config-dir={own}"]
    rows = json.loads(harness("plan", "ownstudy", "--json", *words).stdout)
    assert {(row["model"], row["recipe"]) for row in rows} == {("mine", "short"), ("resnet_pocket", "short")}
    harness("run", "ownstudy", "subset=100", "seed=0", "recipe.samples_seen=320", "recipe.evaluations=1", *words)
    status = harness("status", "ownstudy", "data=tiny", *words).stdout
    assert "2 finished, 0 running, 6 waiting" in status
    assert "name: mine" in harness("train", "--cfg", "job", "model=mine", "recipe=short", *words).stdout
    assert "name: mine" in harness("train", "--config-dir", str(own), "--cfg", "job", "model=mine").stdout


def test_without_the_folder_its_files_are_unknown_and_a_wrong_one_is_named(roots: Path, own: Path) -> None:
    done = harness("plan", "ownstudy", check=False)
    assert done.returncode == 2
    assert "no such study" in done.stderr
    assert "there is no conf/model/mine.yaml" in harness("train", "model=mine", check=False).stderr
    wrong = harness("plan", "pocket", "--config-dir", "nowhere", check=False)
    assert "nowhere: there is no such folder" in wrong.stderr
    shutil.copy(ROOT / "sweeps" / "pocket.yaml", own / "sweeps" / "pocket.yaml")
    twice = harness("plan", "pocket", f"--config-dir={own}", check=False)
    assert "have the same name" in twice.stderr


COMPLETIONS = [
    ("harness ru", {"run"}),
    ("harness plan pock", {"pocket", "pocket_compute"}),
    ("harness run pocket --de", {"--detach"}),
    ("harness run pocket model=resnet_g", {"model=resnet_glyph"}),
    ("harness train recipe.lea", {"recipe.learning_rate="}),
    ("harness train model=vit_pocket rec", {"recipe.", "recipe="}),
]


def test_tab_in_a_real_bash(tmp_path: Path) -> None:
    """The printed script is evaluated by bash, and its function is asked as TAB asks it."""
    program = tmp_path / "harness"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m harness.cli "$@"\n')
    program.chmod(0o755)
    lines = ['eval "$(harness completion bash)"', "complete -p harness >&2"]
    for line, _ in COMPLETIONS:
        lines += [f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; _harness; echo \"${{COMPREPLY[@]}}\""]
    env = dict(os.environ) | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert "-F _harness harness" in done.stderr
    for (line, expected), found in zip(COMPLETIONS, done.stdout.splitlines(), strict=True):
        assert set(found.split()) == expected, line


def test_hydras_own_completion_commands_work_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "complete" in harness("train", "-sc", "install=bash").stdout
    monkeypatch.setenv("COMP_LINE", "harness train device=h")
    monkeypatch.delenv("COMP_POINT", raising=False)
    assert set(harness("train", "-sc", "query=bash").stdout.split()) == {"device=h100", "device=h200"}
