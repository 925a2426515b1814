"""Mistakes in a study, an override or a flag: each ends at once, with the field and what to write instead."""

import json
import re
from pathlib import Path

import pytest

from harness.cell import resolve
from harness.compose import compose
from harness.data.manifest import Dataset
from harness.errors import ConfigError
from harness.study import spec
from tests.conftest import TINY_DATA, harness


@pytest.mark.parametrize(
    "override, words",
    [
        ("recipe.batch_size=0", "recipe.batch_size=0: at least 1"),
        ("recipe.learning_rate=-1", "recipe.learning_rate=-1.0: a number above 0"),
        ("recipe.learning_rate=nan", "recipe.learning_rate=nan: a number above 0"),
        ("recipe.evaluations=0", "recipe.evaluations=0: at least 1"),
        ("recipe.train_eval_samples=0", "recipe.train_eval_samples=0: at least 1"),
        ("device.utilisation=1.5", "device.utilisation=1.5: a share of the peak"),
        ("device.peak_flops_fp32=-1", "device.peak_flops_fp32=-1.0: a number above 0"),
        ("device.price_per_hour=-2", "device.price_per_hour=-2.0: 0 and above"),
    ],
)
def test_overrides_that_no_run_could_use(tiny: Dataset, override: str, words: str) -> None:
    config = compose([*TINY_DATA, "model=vit_pocket", "recipe=pocket", "subset=100", override])
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(config, tiny)


def test_a_size_that_the_study_does_not_have(roots: Path, study_file: Path) -> None:
    done = harness("plan", str(study_file), "subset=5k", check=False)
    assert done.returncode == 2
    assert "not in this study. Known: 100, 50%" in done.stderr


@pytest.mark.parametrize(
    "old, new, words",
    [
        ('subset: ["100", "50%"]', "subset: []", "subset has no value"),
        ("seed: [0, 1]", "seed: [-1]", "seeds are numbered from 0"),
        ("smoke: true", "metric: best_val_top", "Did you mean best_val_top1"),
        ("smoke: true", "rules: {confidence: 95}", "confidence: 95.0: between 0 and 1"),
    ],
)
def test_study_files_that_no_report_could_use(study_file: Path, old: str, new: str, words: str) -> None:
    text = study_file.read_text()
    assert old in text
    study_file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(words)):
        spec.load(str(study_file))


def test_one_size_written_in_two_ways_is_one_too_many(roots: Path, study_file: Path) -> None:
    study_file.write_text(study_file.read_text().replace('["100", "50%"]', '["300", "50%"]'))
    done = harness("plan", str(study_file), check=False)
    assert done.returncode == 2
    assert "300 and 50% are the same 300 images" in done.stderr


@pytest.mark.parametrize(
    "words, message",
    [
        (["vit_pocket", "--images", "1e6", "--epochs", "0"], "must be above 0"),
        (["vit_pocket", "--epochs", "7"], "--epochs needs --images"),
        (["vit_pocket", "--images", "inf"], "must be above 0"),
    ],
)
def test_flops_of_nothing(words: list[str], message: str) -> None:
    done = harness("flops", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_model_of_the_user_is_counted(tmp_path: Path) -> None:
    folder = tmp_path / "mine" / "model"
    folder.mkdir(parents=True)
    (folder / "vit_mine.yaml").write_text(
        "defaults: [schema, _self_]\nname: vit_mine\nfamily: ViT\nimage_size: 16\n"
        "vit: {patch_size: 8, width: 32, depth: 2, heads: 2}\n"
    )
    done = harness("flops", "vit_mine", "--config-dir", str(tmp_path / "mine"), "--json", "--classes", "0")
    (row,) = json.loads(done.stdout)
    assert row["model"] == "vit_mine"
    assert 0 < row["parameters"] < 50_000


def test_only_failed_with_rerun_leaves_finished_runs_where_they_are(roots: Path, study_file: Path) -> None:
    words = ["run", str(study_file), "model=vit_pocket", "subset=100", "seed=0"]
    harness(*words)
    folder = next(roots.glob("tinystudy@tiny/vit_pocket*"))
    before = (folder / "result.json").read_bytes()
    status = harness("status", str(study_file)).stdout
    assert f"{100 * json.loads(before)['best_val_top1']:.1f}" in status
    harness(*words, "--only", "failed", "--rerun")
    assert (folder / "result.json").read_bytes() == before
    assert not (folder.parent / ".replaced").exists()


def test_a_damaged_plan_is_named_with_its_remedy(roots: Path, study_file: Path) -> None:
    folder = roots / "tinystudy@tiny"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text('{"runs": ')
    done = harness("status", str(study_file), check=False)
    assert done.returncode == 2
    assert "damaged" in done.stderr
    assert "harness run" in done.stderr


def test_two_formats_of_a_plan_are_one_too_many(roots: Path, study_file: Path) -> None:
    assert "not both" in harness("plan", str(study_file), "--csv", "--json", check=False).stderr


def test_a_plan_without_a_price_says_so(roots: Path, study_file: Path) -> None:
    assert "no price (device.price_per_hour)" in " ".join(harness("plan", str(study_file)).stdout.split())
