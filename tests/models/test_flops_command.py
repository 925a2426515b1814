"""`harness flops` and the check against the paper."""

import csv
import io
import json
import resource
import subprocess
import sys

import pytest

from harness.errors import ConfigError
from harness.models.commands import flops_command
from harness.models.compute import count
from harness.models.named import model_config
from harness.models.paper_check import Comparison, table1, table6


def test_table_6_within_two_percent_and_the_odd_row_within_one() -> None:
    rows = table6()
    assert len(rows) == 18
    odd = [row for row in rows if row.expected != row.paper]
    assert [(row.model, row.epochs, row.paper, row.expected) for row in odd] == [("r50x1_vit_l16", 7, 859, 834)]
    assert abs(odd[0].ours / 834 - 1) <= 0.01
    assert all(abs(row.ours / row.paper - 1) <= 0.02 for row in rows if row not in odd)


def test_parameters_within_one_and_a_half_percent_of_table_1() -> None:
    assert {row.paper_name: row.paper for row in table1()} == {"ViT-Base": 86e6, "ViT-Large": 307e6, "ViT-Huge": 632e6}
    assert all(abs(row.ours / row.paper - 1) <= 0.015 for row in table1())


def test_a_row_that_is_off_is_seen() -> None:
    assert Comparison("m", "M", 7, 101.0, 100.0, 100.0, 0.02).ok
    assert not Comparison("m", "M", 7, 103.0, 100.0, 100.0, 0.02).ok
    assert not Comparison("m", "M", 7, 97.0, 100.0, 100.0, 0.02).ok


def test_table6_prints_both_numbers_and_the_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command([], table6=True) == 0
    output = capsys.readouterr().out
    assert "ViT-H/14" in output
    assert "4262" in output
    assert "859" in output
    assert "834" in output
    assert "All within tolerance" in output


def test_table6_fails_when_our_count_moves(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    """Counted for real under the other convention, the ResNets are 3-5 % off, and the exit code says so."""
    rows = [row for row in table6("executed") if not row.ok]
    assert {row.model for row in rows} >= {"r50x1", "r101x1", "r152x1", "r152x2", "r200x3"}
    monkeypatch.setattr("harness.models.commands.compare_table6", lambda: table6("executed"))
    assert flops_command([], table6=True) == 1
    assert "OFF" in capsys.readouterr().out


def test_json_and_csv_carry_the_counts(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["vit_pocket", "resnet_pocket"]
    assert flops_command(names, json=True, images=303e6, epochs=7, classes=10, channels=1) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["model"] for row in rows] == names
    cost = count(model_config("vit_pocket"), 10, 1)
    assert rows[0]["training_flops_per_image"] == cost.training_flops_per_image
    assert rows[0]["exaflops"] == pytest.approx(cost.training_flops_per_image * 303e6 * 7 / 1e18)
    assert flops_command(names, csv=True) == 0
    table = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["model"] for row in table] == names
    assert int(table[1]["parameters"]) == count(model_config("resnet_pocket"), 1000, 3).parameters


def test_the_text_table_names_units_and_image_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command(["vit_b16"], image_size=384) == 0
    heading, row, *_ = capsys.readouterr().out.splitlines()
    assert "forward MACs/image" in heading
    assert "training FLOPs/image" in heading
    assert row.split()[:2] == ["vit_b16", "384"]
    macs = int(row.split()[3].replace(",", ""))
    assert macs == pytest.approx(55.48e9, rel=1e-3)  # B/16 at 384 px


def test_any_timm_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert flops_command(["timm/resnet18"], json=True) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["parameters"] == 11_689_512  # torchvision's published number
    assert row["forward_macs_per_image"] == pytest.approx(1.814e9, rel=1e-3)


@pytest.mark.parametrize(
    "models, options, words",
    [
        (["vit_b61"], {}, "vit_b16"),
        (["timm/resnet5"], {}, "resnet50"),
        (["vit_b16"], {"image_size": 225}, "224"),
        (["r50x1_vit_b32"], {"image_size": 240}, "32"),
        (["vit_b16"], {"csv": True, "json": True}, "--json"),
        (["vit_b16"], {"table6": True}, "--table6"),
        (["vit_b16"], {"images": -1}, "--images"),
        (["vit_b16"], {"classes": -1}, "--classes"),
        (["vit_b16"], {"convention": "xla"}, "paper"),
    ],
)
def test_bad_input_is_an_error_that_names_it(models: list[str], options: dict, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flops_command(models, **options)
    assert words in str(caught.value)


def test_the_largest_models_allocate_no_weights(tmp_path) -> None:
    """H/14 and R200x3 hold 2.6 GB of weights each; counting both may take 300 MB more than importing torch."""
    script = (
        "import resource, timm\n"
        "from harness.models.counting import count_afresh\n"
        "from harness.models.named import model_config\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for name in ('vit_h14', 'r200x3'): count_afresh(model_config(name), 18291, 3)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 300e6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > 0


def test_a_cached_count_needs_no_torch() -> None:
    count(model_config("vit_pocket"), 10, 1)
    script = (
        "import sys\n"
        "from harness.models.compute import count\n"
        "from harness.models.named import model_config\n"
        "print(count(model_config('vit_pocket'), 10, 1).parameters, 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(count(model_config("vit_pocket"), 10, 1).parameters), "False"]
