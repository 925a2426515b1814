"""Studies with real processes: killed, damaged, diverging, twice at once."""

import os
import signal
import time
from pathlib import Path

import pandas as pd
import pytest

from harness.run_folder import read_json, read_result, read_status, write_atomic
from tests.conftest import TINY_DATA, harness, start_harness
from tests.study.conftest import assert_equal_tables, run_folders, tables


def test_the_tables_hold_every_run_complete(undisturbed: dict[str, pd.DataFrame]) -> None:
    runs = undisturbed["runs"]
    assert len(runs) == 8
    assert (runs["state"] == "finished").all()
    assert set(runs["subset_samples"]) == {100, 300}
    assert (runs["samples_seen"] == 1600).all()
    assert (runs["draw"] == runs["seed"]).all()
    exaflops = runs["training_flops_per_image"] * runs["samples_seen"] / 1e18
    pd.testing.assert_series_equal(exaflops, runs["exaflops_spent"], check_names=False)
    assert (runs["samples_seen_at_best"] <= runs["samples_seen"]).all()
    transfer = undisturbed["transfer"]
    assert len(transfer) == 8 * 3 * 3
    assert set(transfer["features"]) == {"pretrained", "untrained", "raw_pixels"}
    assert transfer[transfer["features"] == "raw_pixels"].groupby("support_seed")["value"].nunique().max() == 1
    curves = undisturbed["curves"]
    val = curves[(curves["split"] == "val") & (curves["metric"] == "top1")]
    assert val.groupby("run_id").size().eq(4).all()
    best = val.groupby("run_id")["value"].max()
    assert (runs.set_index("run_id")["best_val_top1"] == best.reindex(runs["run_id"])).all()


def test_sigkill_of_the_whole_tree_then_the_same_command_ends_as_undisturbed(
    roots: Path, study_file: Path, tmp_path: Path, undisturbed: dict[str, pd.DataFrame]
) -> None:
    kills = 0
    for wanted_checkpoints in (1, 3):
        process = start_harness("run", str(study_file))
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and process.poll() is None:
            midway = [
                folder
                for folder in run_folders(roots)
                if (folder / "checkpoints" / "last.safetensors").exists() and not read_result(folder)
            ]
            if len(midway) >= 1 and len(run_folders(roots)) >= wanted_checkpoints:
                break
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kills += any(not read_result(folder) for folder in run_folders(roots))
    assert kills == 2
    harness("run", str(study_file))
    assert_equal_tables(tables(study_file, tmp_path / "out"), undisturbed)
    assert max(int(read_status(folder)["attempt"]) for folder in run_folders(roots)) >= 2


def test_a_second_run_trains_nothing_and_new_cells_are_added(roots: Path, study_file: Path) -> None:
    harness("run", str(study_file), "model=vit_pocket", "subset=100")
    before = {folder: (folder / "result.json").stat().st_mtime_ns for folder in run_folders(roots)}
    assert len(before) == 2
    again = harness("run", str(study_file), "model=vit_pocket")
    assert "2 runs finished now, 2 before, 0 failed" in again.stdout
    for folder, modified in before.items():
        assert (folder / "result.json").stat().st_mtime_ns == modified
    status = harness("status", str(study_file), "data=tiny").stdout
    assert "4 finished, 0 running, 4 waiting, 0 failed" in status


def test_a_failing_run_leaves_the_others_alone_and_is_tried_again(roots: Path, study_file: Path) -> None:
    """One run finds its checkpoints damaged: it fails with a message that names the file, the others finish."""
    harness("run", str(study_file), "model=vit_pocket", "subset=100", "seed=0")
    broken = run_folders(roots)[0]
    (broken / "result.json").unlink()
    for name in ("last", "previous"):
        write_atomic(broken / "checkpoints" / f"{name}.safetensors", "garbage")
    done = harness("run", str(study_file), "subset=100", check=False)
    assert done.returncode == 1
    assert "3 runs finished now, 0 before, 1 failed" in done.stdout
    assert "last.safetensors: not a readable checkpoint" in done.stdout
    assert read_status(broken)["state"] == "failed"
    assert read_status(broken)["reason"] == "error"
    report = harness("report", str(study_file), "data=tiny")
    assert "index.html" in report.stdout
    for name in ("last", "previous"):
        (broken / "checkpoints" / f"{name}.safetensors").unlink()
    assert "1 runs finished now, 3 before" in harness("run", str(study_file), "subset=100").stdout


def test_a_run_that_is_killed_alone_is_failed_and_the_next_command_finishes_it(roots: Path, study_file: Path) -> None:
    words = ["run", str(study_file), "model=vit_pocket", "subset=100", "recipe.samples_seen=12k"]
    process = start_harness(*words)
    deadline = time.monotonic() + 60
    victim = None
    while victim is None and time.monotonic() < deadline:
        for folder in run_folders(roots):
            if read_status(folder)["state"] == "running" and (folder / "checkpoints" / "last.safetensors").exists():
                victim = folder
        time.sleep(0.01)
    assert victim is not None
    os.kill(int(read_status(victim)["pid"]), signal.SIGKILL)
    output = process.communicate()[0]
    assert process.returncode == 1
    assert "killed by SIGKILL" in output
    assert read_status(victim)["reason"] == "killed"
    done = harness(*words)
    assert "1 runs finished now, 1 before, 0 failed" in done.stdout


def test_divergence_is_a_state_and_is_not_tried_again(roots: Path, study_file: Path) -> None:
    words = ["run", str(study_file), "model=resnet_pocket", "subset=100", "seed=0", "recipe.learning_rate=1e38"]
    words += ["recipe.clip_norm=null"]
    done = harness(*words, check=False)
    assert done.returncode == 1
    folder = run_folders(roots)[0]
    assert read_status(folder)["reason"] == "diverged"
    assert "learning rate" in read_status(folder)["error"]
    again = harness(*words, check=False)
    assert again.returncode == 1
    assert "not tried again" in again.stdout
    assert read_status(folder)["attempt"] == 1


def test_two_commands_at_once_train_no_cell_twice(roots: Path, study_file: Path) -> None:
    both = [start_harness("run", str(study_file), "subset=100") for _ in range(2)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    for folder in run_folders(roots):
        assert read_status(folder)["attempt"] == 1
        assert read_json(folder / "result.json")["attempt"] == 1  # type: ignore[index]


def test_sizes_that_exceed_the_set_are_left_out_with_a_message(roots: Path, study_file: Path) -> None:
    study_file.write_text(study_file.read_text().replace('"50%"', "1k"))
    done = harness("run", str(study_file), "model=vit_pocket", "seed=0")
    assert "subset 1k is left out: tiny has 600 training images" in done.stdout
    assert len(run_folders(roots)) == 1


def test_one_run_alone_and_its_mistakes(roots: Path) -> None:
    words = ["train", *TINY_DATA, "model=vit_pocket", "subset=100", "seed=3", "recipe.samples_seen=1600"]
    first = harness(*words)
    assert "best_val_top1" in first.stdout
    assert "already finished" in harness(*words).stdout
    for mistake, hint in (("model=vit_poket", "vit_pocket"), ("subset=5k", "600 images"), ("sed=1", "seed")):
        done = harness(*words, mistake, check=False)
        assert done.returncode == 2
        assert hint in done.stderr
        assert "Traceback" not in done.stderr
    composed = harness("train", "--cfg", "job", "model=resnet_pocket")
    assert "resnet_pocket" in composed.stdout


def test_a_data_set_that_is_not_packed_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path / "empty"))
    done = harness("run", "pocket", check=False)
    assert done.returncode == 2
    assert "harness data pack glyphs" in done.stderr
