"""`harness transfer` as a user gives it: on a study's runs, on one run, on a checkpoint from elsewhere."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from harness.compose import compose
from harness.models.build import build_model
from tests.conftest import TINY_DATA, harness

WORDS = ["recipe.samples_seen=640", "recipe.batch_size=32", "recipe.evaluations=2", "subset=100"]


@pytest.fixture
def run(roots: Path) -> Path:
    """A finished run of half a second."""
    harness("train", *TINY_DATA, *WORDS, "model=vit_pocket")
    return next((roots / "single@tiny").glob("vit_pocket-*"))


def test_targets_and_protocols_are_added_to_a_finished_run(run: Path) -> None:
    before = sorted(path.name for path in (run / "transfer").iterdir())
    result = (run / "result.json").read_bytes()
    done = harness("transfer", str(run), "transfer=digits", "transfer.shots=[1,10]")
    assert "10-shot" in done.stdout
    assert "10 class names are among those of pre-training" in done.stdout
    options = ["transfer.finetune.steps=2", "transfer.finetune.seeds=[0]", "transfer.baselines=false"]
    harness("transfer", str(run), "transfer=digits", "transfer.protocol=finetune", *options)
    names = sorted(path.name for path in (run / "transfer").iterdir())
    assert len(names) == len(before) + 2
    assert set(before) < set(names)
    tuned = next(path for path in (run / "transfer").glob("digits_finetune-*.json"))
    content = json.loads(tuned.read_text())
    assert [row["protocol"] for row in content["rows"]] == ["finetune"]
    assert (run / "result.json").read_bytes() == result
    stamps = [path.stat().st_mtime_ns for path in sorted((run / "transfer").iterdir())]
    harness("transfer", str(run), "transfer=digits", "transfer.shots=[1,10]")
    assert stamps == [path.stat().st_mtime_ns for path in sorted((run / "transfer").iterdir())]


def test_a_study_takes_a_target_later(roots: Path, study_file: Path) -> None:
    narrowed = ["model=vit_pocket", "subset=100", "seed=0"]
    harness("run", str(study_file), *narrowed)
    done = harness("transfer", str(study_file), *narrowed, "transfer=digits", "transfer.protocol=probe")
    assert "linear_probe" in done.stdout
    out = roots / "tables"
    harness("results", str(study_file), "data=tiny", "--out", str(out))
    assert "linear_probe" in (out / "transfer.csv").read_text()
    failed = harness("transfer", str(study_file), "transfer=digits", check=False)
    assert failed.returncode == 1
    assert "not started" in failed.stderr


def test_a_target_of_the_same_images_is_refused(run: Path) -> None:
    done = harness("transfer", str(run), "transfer=folder", "transfer.name=tiny", check=False)
    assert done.returncode == 1
    assert "shares images" in done.stderr


def test_a_checkpoint_from_elsewhere_gets_the_same_rows(run: Path, tmp_path: Path, roots: Path) -> None:
    """Our own best checkpoint, as a file: what transfer of the run says, transfer of the file says too."""
    best = run / "checkpoints" / "best.safetensors"
    harness("transfer", "model=vit_pocket", f"checkpoint={best}", "transfer=digits")
    found = json.loads(next((roots / "imported").glob("vit_pocket-*/transfer/digits-*.json")).read_text())
    own = json.loads(next((run / "transfer").glob("digits-*.json")).read_text())
    rows = [[row for row in content["rows"] if row["features"] == "pretrained"] for content in (found, own)]
    assert rows[0] == rows[1]

    save_file(build_model(compose(["model=resnet_pocket"]).model, 5, 1).state_dict(), tmp_path / "other.safetensors")
    words = ["transfer", "model=vit_pocket", f"checkpoint={tmp_path / 'other.safetensors'}", "transfer=digits"]
    done = harness(*words, check=False)
    assert done.returncode == 2
    assert "missing: cls_token" in done.stderr
    assert "left over: " in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["pocket"], "which target"),
        (["transfer=digits"], "name a study"),
        (["pocket", "transfer=digit"], "Did you mean digits"),
        (["pocket", "transfer=@nolist"], "neither a list"),
        (["pocket", "transfer=@vtab1k"], "vtab_caltech101"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str, roots: Path) -> None:
    done = harness("transfer", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert torch.get_num_threads() >= 1
