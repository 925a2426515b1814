"""What a plan says before anything is spent: arithmetic, measured times, budgets."""

import json
from pathlib import Path

import pytest

from harness.study import calibrate
from harness.study import plan as planning
from tests.conftest import harness


def plan_rows(study: Path, *words: str) -> list[dict[str, object]]:
    return json.loads(harness("plan", str(study), "--json", *words).stdout)


def test_rows_are_arithmetic_on_the_count(roots: Path, study_file: Path) -> None:
    rows = plan_rows(study_file)
    assert len(rows) == 8
    for row in rows:
        assert row["exaflops"] == pytest.approx(row["training_flops_per_image"] * 1600 / 1e18)  # type: ignore[operator]
        assert row["epochs_of_subset"] == 1600 / row["subset_samples"]  # type: ignore[operator]
        assert row["steps"] == 50
        assert row["time_basis"] == "assumed"
        assert row["device_seconds"] == pytest.approx(row["exaflops"] * 1e18 / (80e9 * 0.2))  # type: ignore[operator]
        assert row["finished"] is False
        assert row["peak_memory_bytes"] > 16 * row["parameters"]  # type: ignore[operator]
        assert row["checkpoint_bytes"] == 16 * row["parameters"]  # type: ignore[operator]
    assert not roots.exists()


def test_price_and_narrowing(roots: Path, study_file: Path) -> None:
    rows = plan_rows(study_file, "model=vit_pocket", "seed=1", "device.price_per_hour=36")
    assert len(rows) == 2
    for row in rows:
        assert row["cost"] == pytest.approx(row["device_seconds"] / 100)  # type: ignore[operator]
    in_bf16 = plan_rows(study_file, "model=vit_pocket", "seed=1", "precision=bf16")  # a core's bf16 peak is not known
    assert [row["device_seconds"] for row in in_bf16] == [row["device_seconds"] for row in rows]


def test_a_budget_stops_before_the_first_step_and_names_the_excess(roots: Path, study_file: Path) -> None:
    total = sum(row["exaflops"] for row in plan_rows(study_file))  # type: ignore[misc]
    done = harness("run", str(study_file), f"budget.exaflops={total / 2}", check=False)
    assert done.returncode == 2
    assert "too much" in done.stderr
    assert "the 8 runs to come" in done.stderr
    assert not roots.exists()
    days = harness("run", str(study_file), "budget.device_days=1e-9", check=False)
    assert "budget.device_days" in days.stderr


def test_a_finished_run_costs_nothing_more(roots: Path, study_file: Path) -> None:
    words = [str(study_file), "model=vit_pocket", "subset=100", "seed=0"]
    total = sum(row["exaflops"] for row in plan_rows(study_file, *words[1:]))  # type: ignore[misc]
    harness("run", *words, f"budget.exaflops={total * 1.01}")
    assert [row["finished"] for row in plan_rows(study_file, *words[1:])] == [True]
    harness("run", *words, "budget.exaflops=0.0")


def test_calibration_is_used_and_is_of_this_machine(
    roots: Path, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "SECONDS_A_MODEL", 0.3)
    harness("calibrate", str(study_file), "launcher.slots=1")
    known = calibrate.read(roots)
    assert {entry["model"] for entry in known.values()} == {"vit_pocket", "resnet_pocket"}
    plan = planning.make(str(study_file), [])
    for cell, row in zip(plan.cells, plan_rows(study_file), strict=True):
        speed = known[calibrate.calibration_key(cell)]["images_per_second"]
        assert speed > 100
        assert row["time_basis"] == "measured"
        assert row["device_seconds"] == pytest.approx(1600 / speed)
    assert all(row["time_basis"] == "assumed" for row in plan_rows(study_file, "recipe.batch_size=64"))


def test_a_recipe_of_its_own_for_a_block_of_cells(roots: Path, study_file: Path) -> None:
    study_file.write_text(study_file.read_text().replace("seed: [0, 1]", "seed: [0], recipe: nosuch"))
    done = harness("plan", str(study_file), check=False)
    assert done.returncode == 2
    assert "conf/recipe/nosuch.yaml" in done.stderr
