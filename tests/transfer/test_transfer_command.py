"""`harness transfer` as a user gives it: on a study's runs, on one run, on a checkpoint from elsewhere."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pandas as pd
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from harness.compose import compose
from harness.data.pack import pack
from harness.errors import ConfigError
from harness.models.build import build_model
from harness.results_schema import AVERAGE_5
from harness.stored_transfer import why_again
from harness.submission import is_complete, load_frozen
from harness.train import checkpoint
from harness.transfer.check import check_transfer
from harness.transfer_command import listed, split_overrides, target_config
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


@pytest.mark.parametrize(
    "change, why", [({"digest": "0" * 64}, "of other images than"), (None, "rows: no list of rows")]
)
def test_a_result_of_other_images_is_not_taken_for_one_of_these(
    run: Path, change: dict[str, str] | None, why: str
) -> None:
    """As after packing the target anew: its file says other images than lie below the data root."""
    path = next((run / "transfer").glob("digits-*.json"))
    content = json.loads(path.read_text())
    old = {"rows": None} if change is None else content | {"target": content["target"] | change}
    path.write_text(json.dumps(old))
    frozen = load_frozen(run)
    assert not is_complete(run, frozen.config_hash, frozen.transfer_id)  # `harness run` does it again as well
    (run / "checkpoints").rename(run / "elsewhere")
    assert is_complete(run, frozen.config_hash, frozen.transfer_id)  # it could not be done
    (run / "elsewhere").rename(run / "checkpoints")
    done = harness("transfer", str(run), "transfer=digits")
    assert why in done.stdout
    assert is_complete(run, frozen.config_hash, frozen.transfer_id)
    assert json.loads(path.read_text()) == content
    assert "evaluated again" not in harness("transfer", str(run), "transfer=digits").stdout


def test_a_study_takes_a_target_later(roots: Path, study_file: Path) -> None:
    narrowed = ["model=vit_pocket", "subset=100", "seed=0"]
    harness("run", str(study_file), *narrowed)
    done = harness("transfer", str(study_file), *narrowed, "transfer=digits", "transfer.protocol=probe")
    assert "linear_probe" in done.stdout
    out = roots / "tables"
    harness("results", str(study_file), "data=tiny", "--out", str(out))
    rows = pd.read_csv(out / "transfer.csv")
    ids = rows.groupby("protocol")["transfer_id"].unique()
    assert all(len(found) == 1 for found in ids)
    assert ids["linear_probe"][0].startswith("digits_probe-")
    own = json.loads((out / "study.json").read_text())["transfer_ids"]
    assert own == [ids["fewshot_linear"][0]]
    failed = harness("transfer", str(study_file), "transfer=digits", check=False)
    assert failed.returncode == 1
    assert "not started" in failed.stderr


def test_a_target_of_the_same_images_is_refused(run: Path) -> None:
    done = harness("transfer", str(run), "transfer=folder", "transfer.name=tiny", check=False)
    assert done.returncode == 1
    assert "shares images" in done.stderr


def test_a_refused_target_leaves_the_next_ones_alone(run: Path) -> None:
    done = harness("transfer", str(run), "transfer=tiny,digits", "transfer.shots=[2]", check=False)
    assert done.returncode == 1
    assert "shares images" in done.stderr
    assert "2-shot" in done.stdout


def test_a_finished_runs_checkpoint_that_is_damaged_or_anothers_is_told(run: Path) -> None:
    best = run / "checkpoints" / "best.safetensors"
    tensors, state = checkpoint.load(best)
    whole = best.read_bytes()
    checkpoint.save(best, tensors, state | {"val_loss": state["val_loss"] + 1e-9})
    anothers = best.read_bytes()
    for content, why in ((whole[:-8], "not a readable checkpoint"), (anothers, "another run's checkpoint")):
        best.write_bytes(content)
        done = harness("transfer", str(run), "transfer=digits", "transfer.shots=[2]", check=False)
        assert done.returncode == 1
        assert why in done.stderr
        assert "put a copy of it back; or delete result.json and checkpoints/" in done.stderr
    best.write_bytes(whole)
    harness("transfer", str(run), "transfer=digits", "transfer.shots=[2]")


def test_a_place_that_takes_no_results_is_told_before_anything_is_computed(run: Path) -> None:
    folder = run / "transfer"
    folder.rename(run / "elsewhere")
    folder.touch()
    done = harness("transfer", str(run), "transfer=digits", "transfer.shots=[2]", check=False)
    assert done.returncode == 1
    assert f"{folder}: results cannot be written there (File exists)" in done.stderr
    assert "Traceback" not in done.stderr
    folder.unlink()
    (run / "elsewhere").rename(folder)
    (run / "checkpoints" / "best.safetensors").unlink()
    done = harness("transfer", str(run), "transfer=digits", "transfer.shots=[2]", check=False)
    assert done.returncode == 1
    assert "is not here: transfer needs the checkpoint" in done.stderr
    assert "delete result.json and checkpoints/, and `harness run` makes both again" in done.stderr


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


def test_a_list_of_targets_is_text_each_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(b"\xef\xbb\xbfdigits\n# these\nmnist\ndigits\n")
    assert listed(str(path)) == ["digits", "mnist"]
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"mine.txt: not a text file in UTF-8"):
        listed(str(path))


@pytest.mark.parametrize("name", ["", "../x", ".x", "a\\b"])
def test_a_target_is_called_by_a_name(name: str) -> None:
    with pytest.raises(ConfigError, match="a name for files, without a path"):
        check_transfer(replace(compose(["transfer=digits"]).transfer, name=name))


@pytest.mark.parametrize(
    "words, message",
    [
        (["pocket"], "which target"),
        (["transfer=digits"], "name a study"),
        (["pocket", "transfer=digit"], "Did you mean digits"),
        (["pocket", "transfer=@nolist"], "neither a list"),
        (["pocket", "transfer=@vtab1k"], "vtab_caltech101"),
        (["runs/none/here", "transfer=digits"], "no run's folder"),
        (["model=vit_pocket", "checkpoint=/", "transfer=digits"], "a folder; name the file in it"),
        (["model=vit_pocket", "checkpoint=", "transfer=digits"], "which file?"),
        (["pocket", "transfer=digits", "transfer.shots=5"], "in brackets: KEY=[A,B]"),
    ],
)
def test_mistakes_are_told(words: list[str], message: str, roots: Path) -> None:
    done = harness("transfer", *words, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert torch.get_num_threads() >= 1


def test_another_network_from_the_same_file_is_another_result(run: Path, roots: Path) -> None:
    """Heads change no tensor's shape: what is kept is kept by network, seed and file."""
    checkpoint = f"checkpoint={run / 'checkpoints' / 'best.safetensors'}"
    words = ["transfer", "model=vit_pocket", checkpoint, "transfer=digits"]
    first, again, heads, seed = (harness(*words, *more).stdout for more in ([], [], ["model.vit.heads=6"], ["seed=5"]))
    assert again == first
    assert heads != first
    assert seed.splitlines()[0].split()[2:] == first.splitlines()[0].split()[2:]  # pre-trained: the same network
    assert seed.splitlines()[1] != first.splitlines()[1]  # its untrained twin: another
    assert len(list((roots / "imported").iterdir())) == 3


def test_weights_of_timm_that_saw_other_pixels_come_with_a_warning(tmp_path: Path, roots: Path) -> None:
    torch.manual_seed(0)
    save_file(timm.create_model("resnet10t", num_classes=7).state_dict(), tmp_path / "w.safetensors")
    words = ["model=timm", "model.name=resnet10t", "model.image_size=16", f"checkpoint={tmp_path / 'w.safetensors'}"]
    done = harness("transfer", *words, "transfer=digits", "transfer.support_seeds=[0]", "transfer.baselines=false")
    assert "mean (0.485, 0.456, 0.406)" in done.stderr
    assert "resnet10t" in done.stdout


def test_files_that_are_not_what_they_say_are_refused(run: Path, tmp_path: Path) -> None:
    tensors = {
        name.removeprefix("model/"): tensor
        for name, tensor in load_file(run / "checkpoints" / "best.safetensors").items()
    }
    broken = {
        "nan": {**tensors, "norm.weight": torch.full_like(tensors["norm.weight"], float("nan"))},
        "integers": {**tensors, "norm.weight": tensors["norm.weight"].int()},
        "channels": {**tensors, "patch_embed.proj.weight": torch.zeros(48, 4, 8, 8)},
    }
    said = {
        "nan": "norm.weight holds numbers",
        "integers": "norm.weight is of torch.int32",
        "channels": "(48, 4, 8, 8), wanted",
    }
    for name, content in broken.items():
        save_file(content, tmp_path / f"{name}.safetensors")
    flipped = bytearray((run / "checkpoints" / "best.safetensors").read_bytes())
    flipped[-100] ^= 0xFF
    (tmp_path / "flipped.safetensors").write_bytes(bytes(flipped))
    for name, message in {**said, "flipped": "not what its digest says"}.items():
        checkpoint = f"checkpoint={tmp_path / name}.safetensors"
        done = harness("transfer", "model=vit_pocket", checkpoint, "transfer=digits", check=False)
        assert done.returncode == 2, name
        assert message in done.stderr


def test_a_damaged_transfer_file_is_made_again(run: Path) -> None:
    """JSON or not; where it cannot be made again, that is said, and nothing of it is shown."""
    [path] = (run / "transfer").glob("digits-*.json")
    whole = path.read_bytes()
    above_one = json.loads(whole)
    above_one["rows"][0]["value"] = 7.5
    kinds = {
        "no JSON": whole[:500],
        "no object": b"[]",
        "no row": b'{"rows": []}',
        "empty rows": b'{"rows": [{}, 1]}',
        "value": json.dumps(above_one).encode(),
        "target": json.dumps(json.loads(whole) | {"target": 5}).encode(),
    }
    for kind, damaged in kinds.items():
        path.write_bytes(damaged)
        assert (why_again(path) or "").startswith("damaged"), kind
    done = harness("transfer", str(run), "transfer=digits")
    assert "target: no object with a name; evaluated again" in done.stdout
    assert path.read_bytes() == whole
    (run / "checkpoints").rename(run / "elsewhere")
    path.write_bytes(kinds["value"])
    done = harness("transfer", str(run), "transfer=digits", check=False)
    assert done.returncode == 1
    assert "is damaged: row 1: value: 7.5 is not in [0, 1]" in done.stderr
    assert "750" not in done.stdout


def test_five_targets_have_an_average_each_by_its_own_metric(
    tmp_path: Path, roots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Digits under the names of Table 6's targets."""
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    digits = pack(compose(["data=digits"]).data, tmp_path, workers=1, progress=False)
    for name in AVERAGE_5:
        copy = Path(shutil.copytree(digits, tmp_path / name)) / "manifest.json"
        copy.write_text(json.dumps(json.loads(copy.read_text()) | {"name": name}))
    torch.manual_seed(0)
    save_file(build_model(compose(["model=vit_pocket"]).model, 10, 1).state_dict(), tmp_path / "w.safetensors")
    words = ["model=vit_pocket", f"checkpoint={tmp_path / 'w.safetensors'}", "transfer.shots=[5]"]
    done = harness("transfer", *words, f"transfer={','.join(AVERAGE_5)}")
    values = []
    for target, metric in AVERAGE_5.items():
        [path] = (roots / "imported").glob(f"*/transfer/{target}-*.json")
        rows = json.loads(path.read_text())["rows"]
        found = [row["value"] for row in rows if row["metric"] == metric and row["features"] == "pretrained"]
        assert len(found) == 3
        values.append(mean(found))
    assert done.stdout.splitlines()[-1].endswith(f"average-5        fewshot_linear 5  {100 * mean(values):.2f}")


def test_an_image_size_of_one_model_is_an_option_of_transfer() -> None:
    """A key that is not there yet takes Hydra's +."""
    word = "+transfer.finetune.image_sizes.vit_b16=512"
    targets, options, others = split_overrides(["transfer=pets", word, "seed=0"])
    assert others == ["seed=0"]
    tuned = target_config(targets[0], options).finetune
    assert tuned is not None
    assert tuned.image_sizes == {"vit_b16": 512, "vit_h14": 378}


def test_options_that_transfer_would_refuse_are_refused_before_training(roots: Path) -> None:
    done = harness("train", *TINY_DATA, *WORDS, "model=vit_pocket", "transfer.shots=[0]", check=False)
    assert done.returncode != 0
    assert "transfer.shots: 0 is not at least 1" in done.stdout + done.stderr
    assert not roots.exists() or not list(roots.glob("*/*/metrics.jsonl"))
