"""Evaluations of one target by several protocols, settings and metrics are told apart and never averaged."""

import re
from pathlib import Path

import pandas as pd
import pytest

from analysis.commands import report_command
from analysis.figures_compute import compute_scaling
from analysis.report import build
from analysis.report_tables import transfer_table as transfer_table_of
from analysis.results import TableError, Tables, evaluations_of, load, scores, transfer_title
from analysis.summary import analyse, lines
from analysis.transfer import evaluations
from tests.analysis.studies import linear_gap, runs_table, transfer_table, write_study

EXTRA = [  # protocol, shots, metric, transfer_id, added to the accuracy of the first
    ("fewshot_linear", 5, "mean_per_class", "digits-aaaaaaaa", 0.01),
    ("fewshot_linear", 5, "top1", "digits-bbbbbbbb", 0.02),
    ("linear_probe", 0, "top1", "digits_probe-cccccccc", 0.03),
    ("finetune", 0, "top1", "digits_finetune-dddddddd", 0.04),
]


def study(tmp_path: Path, **about: object) -> Path:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    folder = write_study(tmp_path / "t", runs, **about)
    first = transfer_table(runs).assign(transfer_id="digits-aaaaaaaa")
    parts = [first]
    for protocol, shots, metric, transfer_id, more in EXTRA:
        part = first[first["features"] != "raw_pixels"] if protocol == "finetune" else first
        names = {"protocol": protocol, "shots": shots, "metric": metric, "transfer_id": transfer_id}
        parts.append(part.assign(**names, value=part["value"] + more))
    pd.concat(parts).to_csv(folder / "transfer.csv", index=False)
    return folder


def mean(tables: Tables, metric: str) -> float:
    return float(scores(tables, metric)["value"].mean())


def test_a_metric_names_one_evaluation_or_is_refused(tmp_path: Path) -> None:
    tables = load(study(tmp_path))
    assert mean(tables, "transfer:digits:5:mean_per_class") == pytest.approx(0.72)
    assert mean(tables, "transfer:digits:5:top1:digits-aaaaaaaa") == pytest.approx(0.71)
    assert mean(tables, "transfer:digits:5:top1:digits-bbbbbbbb") == pytest.approx(0.73)
    assert mean(tables, "transfer:digits:0:top1:digits_finetune-dddddddd") == pytest.approx(0.75)
    for several in ("transfer:digits:5", "transfer:digits:0"):
        with pytest.raises(TableError, match=r"several such evaluations; there are: transfer:digits:\d:top1:digits"):
            scores(tables, several)
    for wrong in ("transfer:digits", "transfer:digits:five", "transfer:a:1:top1:x:y:z"):
        with pytest.raises(TableError, match="write transfer:TARGET:SHOTS"):
            scores(tables, wrong)
    with pytest.raises(TableError, match="no such rows; there are: transfer:digits:5:top1"):
        scores(tables, "transfer:digits:10")


def test_the_studys_own_evaluation_comes_first(tmp_path: Path) -> None:
    tables = load(study(tmp_path, transfer_ids=["digits-bbbbbbbb"]))
    assert mean(tables, "transfer:digits:5") == pytest.approx(0.73)


def test_every_evaluation_has_its_own_figure_and_rows(tmp_path: Path) -> None:
    folder = study(tmp_path)
    found = evaluations(load(folder).transfer)
    assert [item.title for item in found] == [
        "digits, 5-shot (digits-aaaaaaaa)",
        "digits, 5-shot, mean per-class accuracy",
        "digits, 5-shot (digits-bbbbbbbb)",
        "digits, linear probe",
        "digits, fine-tuned",
    ]
    assert report_command(folder, tmp_path / "out") == 0
    names = {path.stem for path in (tmp_path / "out").glob("transfer_*.svg")}
    assert names == {f"transfer_{item.slug}" for item in found}
    assert len(names) == 5
    text = (tmp_path / "out" / "index.html").read_text()
    for shown in ("71.00", "72.00", "73.00", "74.00", "75.00"):  # a mean of two evaluations would be none of these
        assert f">{shown}</td>" in text


def test_a_table_without_transfer_id_is_one_evaluation(tmp_path: Path) -> None:
    folder = study(tmp_path)
    table = pd.read_csv(folder / "transfer.csv")
    table[table["transfer_id"] == "digits-aaaaaaaa"].drop(columns="transfer_id").to_csv(folder / "transfer.csv")
    assert [item.slug for item in evaluations(load(folder).transfer)] == ["digits_5shot", "digits_5shot_mean_per_class"]
    assert mean(load(folder), "transfer:digits:5") == pytest.approx(0.71)


def test_the_average_is_over_targets_and_over_runs_that_have_them_all(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    folder = write_study(tmp_path / "t", runs)
    digits = transfer_table(runs)
    mnist = digits.assign(target="mnist", value=digits["value"] + 0.1)
    pd.concat([digits, mnist[mnist["run_id"] != runs["run_id"][0]]]).to_csv(folder / "transfer.csv", index=False)
    tables = load(folder)
    found = scores(tables, "transfer:average:5")
    assert found["value"].tolist() == pytest.approx([0.76] * 17)  # of 0.71 and 0.81; the first run lacks one
    assert transfer_title(tables, "transfer:average:5") == "average of 2 targets, 5-shot"
    assert analyse(tables, metric="transfer:average:5")["notes"][0] == (
        "Not all of the 18 finished runs have the metric transfer:average:5 (mnist, 5-shot: 1): "
        "1 lacks it and is left out"
    )
    with pytest.raises(TableError, match="0 target"):
        scores(tables, "transfer:average:10")


def test_sizes_that_pandas_wrote_as_decimals_are_sizes(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "t", runs_table(linear_gap(6.0, 10_000)))
    table = pd.read_csv(folder / "transfer.csv")
    table.assign(subset_samples=table["subset_samples"].astype(float)).to_csv(folder / "transfer.csv", index=False)
    build(folder, tmp_path / "out")
    assert "| vit, pretrained | digits, 5-shot | top-1 | 10,000 | 71.00 |" in (tmp_path / "out/report.md").read_text()


def test_pets_and_flowers_count_by_mean_per_class_in_an_average_where_they_have_it(tmp_path: Path) -> None:
    runs = runs_table(linear_gap(6.0, 10_000, noise=0.5))
    folder = write_study(tmp_path / "t", runs)
    digits = transfer_table(runs)  # 0.71
    pets = [digits.assign(target="pets", metric=name, value=digits["value"] + more) for name, more in
            (("top1", 0.02), ("mean_per_class", 0.04))]  # fmt: skip
    other = digits.assign(metric="mean_per_class", value=digits["value"] + 0.2)
    pd.concat([digits, other, *pets]).to_csv(folder / "transfer.csv", index=False)
    assert mean(load(folder), "transfer:average:5") == pytest.approx((0.71 + 0.75) / 2)
    pd.concat([digits, other, pets[0]]).to_csv(folder / "transfer.csv", index=False)
    assert mean(load(folder), "transfer:average:5") == pytest.approx((0.71 + 0.73) / 2)


def test_a_metric_other_than_top1_is_named_where_it_was_not_asked_for(tmp_path: Path) -> None:
    """A target that has mean per-class accuracy alone, as Pets in the paper; alone and in an average."""
    parts = []
    for rung, compute in enumerate((1e-7, 2e-7, 4e-7)):
        part = runs_table(linear_gap(1.0, 10_000, noise=0.5), sizes=(10_000,)).assign(exaflops_spent=compute)
        parts.append(part.assign(run_id=f"{rung}-" + part["run_id"], model=f"{rung}-" + part["model"]))
    folder = write_study(tmp_path / "t", pd.concat(parts), metric="transfer:pets:5", pairs=[["0-vit", "0-resnet"]])
    digits = pd.read_csv(folder / "transfer.csv")
    pets = digits.assign(target="pets", metric="mean_per_class")
    pd.concat([digits, pets]).to_csv(folder / "transfer.csv", index=False)
    tables = load(folder)
    alone, average = (compute_scaling(tables, f"transfer:{name}:5") for name in ("pets", "average"))
    assert alone is not None
    assert average is not None
    assert alone.axes.get_ylabel() == "Mean per-class accuracy [%], pets, 5-shot"
    assert alone.title == "Compute scaling in exaFLOPs: pets, 5-shot, mean per-class accuracy"
    assert average.axes.get_ylabel() == "Accuracy [%], average of 2 targets, 5-shot"
    assert average.title.endswith(": average of 2 targets, 5-shot (mean per-class accuracy on pets)")
    assert lines(analyse(tables))[0].endswith("metric transfer:pets:5 (pets, 5-shot, mean per-class accuracy)")
    build(folder, tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "Metric transfer:pets:5 (pets, 5-shot, mean per-class accuracy). 95 % intervals" in page
    assert "At accuracy [%]" in page


def test_an_average_over_protocols_is_refused(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "t", runs_table(linear_gap(6.0, 10_000, noise=0.5)))
    probe = pd.read_csv(folder / "transfer.csv").assign(shots=0, protocol="linear_probe")
    tuned = probe.assign(target="mnist", protocol="finetune")
    pd.concat([probe, tuned]).to_csv(folder / "transfer.csv", index=False)
    with pytest.raises(TableError, match="there are transfer:digits:0:top1:linear_probe and transfer:mnist"):
        scores(load(folder), "transfer:average:0")


def test_a_table_without_transfer_id_names_protocols_and_makes_a_page(tmp_path: Path) -> None:
    folder = study(tmp_path)
    frame = pd.read_csv(folder / "transfer.csv")
    frame[frame["transfer_id"] != "digits-bbbbbbbb"].drop(columns="transfer_id").to_csv(folder / "transfer.csv")
    tables = load(folder)
    with pytest.raises(TableError, match="transfer:digits:0:top1:linear_probe, transfer:digits:0:top1:finetune"):
        scores(tables, "transfer:digits:0")
    assert mean(tables, "transfer:digits:0:top1:finetune") == pytest.approx(0.75)
    assert report_command(folder, tmp_path / "out") == 0


@pytest.mark.parametrize(
    "column, value, message",
    [
        ("target", None, "column target: empty in 1 rows, the first vit-1000-s0"),
        ("metric", None, "column metric: empty"),
        ("shots", None, "column shots: empty"),
        ("shots", 5.5, r"column shots: 5\.5 is no number of images a class"),
        ("value", 7, "column value: 7 is no fraction"),
    ],
)
def test_a_transfer_row_that_nothing_can_use_is_refused(
    tmp_path: Path, column: str, value: float | None, message: str
) -> None:
    folder = study(tmp_path)
    frame = pd.read_csv(folder / "transfer.csv").astype(object)
    frame.loc[0, column] = value
    frame.to_csv(folder / "transfer.csv", index=False)
    with pytest.raises(TableError, match=message):
        load(folder)


def test_that_chance_is_not_known_is_said(tmp_path: Path) -> None:
    tables = load(study(tmp_path, transfer_ids=["digits-bbbbbbbb"]))
    assert "min_times_chance leaves out no size" in "".join(lines(analyse(tables, metric="transfer:digits:5")))
    assert "min_times_chance" not in "".join(lines(analyse(tables)))


def test_one_transfer_id_under_two_protocols_can_be_chosen(tmp_path: Path) -> None:
    folder = study(tmp_path)
    first = pd.read_csv(folder / "transfer.csv").head(9)
    pd.concat([first, first.assign(protocol="fewshot_knn", value=0.2)]).to_csv(folder / "transfer.csv", index=False)
    tables = load(folder)
    names = [item.name for item in evaluations(tables.transfer)]
    assert len(set(names)) == len({item.slug for item in evaluations(tables.transfer)}) == 2
    with pytest.raises(TableError, match=", ".join(names)):
        scores(tables, "transfer:digits:5")
    assert mean(tables, next(name for name in names if name.endswith(":fewshot_knn"))) == pytest.approx(0.2)


def test_a_target_with_a_colon_can_be_named(tmp_path: Path) -> None:
    folder = study(tmp_path)
    pd.read_csv(folder / "transfer.csv").head(9).assign(target="a:b").to_csv(folder / "transfer.csv", index=False)
    assert mean(load(folder), "transfer:a:b:5") == pytest.approx(0.71)
    with pytest.raises(TableError, match="write transfer:TARGET:SHOTS"):
        scores(load(folder), "transfer:a")


def test_file_names_of_targets_are_safe_and_no_two_alike(tmp_path: Path) -> None:
    names = ["../../evil", "/etc", "a b", "a/b", "a_b", "数字", "字数", "x" * 300, "x" * 301]
    folder = study(tmp_path)
    first = pd.read_csv(folder / "transfer.csv").head(9)
    pd.concat([first.assign(target=name) for name in names]).to_csv(folder / "transfer.csv", index=False)
    slugs = [item.slug for item in evaluations(load(folder).transfer)]
    assert len(set(slugs)) == len(names)
    assert slugs[4] == "a_b_5shot"
    for slug in slugs:
        assert re.fullmatch(r"[\w-]{1,120}", slug, re.ASCII)


def test_raw_pixels_count_once_a_support_set(tmp_path: Path) -> None:
    """They depend on no run: 18 runs and 3 support sets are 3 values, and their spread is over these."""
    folder = study(tmp_path)
    rows = [[shown for shown, _ in row] for row in transfer_table_of(load(folder))]
    assert next(row[4:] for row in rows if row[0] == "raw pixels") == ["61.00", "1.00", "3"]


def test_a_ladder_with_several_targets_has_the_figures_of_figure_5(tmp_path: Path) -> None:
    parts = []
    for rung, (pair, compute) in enumerate((("small", 1e-7), ("middle", 2e-7), ("large", 4e-7))):
        part = runs_table(linear_gap(1.0, 10_000, noise=0.5), sizes=(10_000,))
        names = {"run_id": pair + part["run_id"], "model": pair + part["model"], "exaflops_spent": compute}
        parts.append(part.assign(**names, device_seconds_train=3600.0 * 2**rung, parameters=1000 * 2**rung))
    folder = write_study(tmp_path / "t", pd.concat(parts), pairs=[])
    digits = pd.read_csv(folder / "transfer.csv")
    pd.concat([digits, digits.assign(target="mnist")]).to_csv(folder / "transfer.csv", index=False)
    assert report_command(folder, tmp_path / "out") == 0
    drawn = {path.stem for path in (tmp_path / "out").glob("compute_scaling*.svg")}
    panels = ("digits_5shot", "mnist_5shot", "average_5shot")
    assert drawn == {
        "compute_scaling",
        "compute_scaling_device_days",
        *(f"compute_scaling_{panel}{unit}" for panel in panels for unit in ("", "_device_days")),
    }


def test_a_targets_name_may_hold_colons(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "t", runs_table(linear_gap(6.0, 10_000)))
    table = pd.read_csv(folder / "transfer.csv")
    pd.concat([table.assign(target="photos:night:5"), table]).to_csv(folder / "transfer.csv", index=False)
    tables = load(folder)
    for metric in ("transfer:photos:night:5:5", "transfer:photos:night:5:5:top1"):
        (found,) = evaluations_of(tables, metric)
        assert found.target == "photos:night:5"
    assert evaluations_of(tables, "transfer:digits:5")[0].target == "digits"
    with pytest.raises(TableError, match="no such rows"):
        evaluations_of(tables, "transfer:photos:night:5")  # a target "photos:night" that is not there
    build(folder, tmp_path / "report")
    assert "photos:night:5, 5-shot" in (tmp_path / "report" / "index.html").read_text()


def test_a_report_says_how_many_runs_lack_its_metric_and_that_chance_is_not_known(tmp_path: Path) -> None:
    folder = study(tmp_path, metric="transfer:digits:5", transfer_ids=["digits-bbbbbbbb"])
    table = pd.read_csv(folder / "transfer.csv")
    table[~table["run_id"].isin(["vit-1000-s0", "vit-1000-s1"])].to_csv(folder / "transfer.csv", index=False)
    build(folder, tmp_path / "out")
    said = [
        "Not all of the 18 finished runs have the metric transfer:digits:5: 2 lack it and are left out",
        "Chance is not known for a transfer metric: min_times_chance leaves out no size",
    ]
    assert analyse(load(folder))["notes"] == said
    page, markdown = ((tmp_path / "out" / name).read_text() for name in ("index.html", "report.md"))
    for text in said:
        assert f'role="note">{text}.</p>' in page
        assert f"- {text}.\n" in markdown
    assert "Sizes count where both" not in page
    assert "Chance is not known for this metric, so no size is left out for it." in page


@pytest.mark.parametrize("metric", ["transfer:digits:5", "transfer:average:5"])
@pytest.mark.parametrize("rows", ["none", "untrained", "no table"])
def test_a_study_judged_by_transfer_has_a_page_before_any_is_evaluated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], metric: str, rows: str
) -> None:
    folder = study(tmp_path, metric=metric)
    table = pd.read_csv(folder / "transfer.csv")
    table[table["features"] == rows].to_csv(folder / "transfer.csv", index=False)
    if rows == "no table":
        (folder / "transfer.csv").unlink()
    assert report_command(folder, tmp_path / "out") == 0
    said = f"No verdict yet: metric {metric}: no transfer of a trained network is evaluated yet."
    assert f'role="note">{said}</p>' in (tmp_path / "out" / "index.html").read_text()
    assert f"- {said}\n" in (tmp_path / "out" / "report.md").read_text()
    assert (tmp_path / "out" / "data_scaling.svg").is_file()
    assert capsys.readouterr().out == f"{tmp_path / 'out' / 'index.html'}\n"
    with pytest.raises(TableError, match="no transfer of a trained network is evaluated yet"):
        analyse(load(folder))


@pytest.mark.parametrize("metric", ["transfer:digits", "transfer:average:x", "transfer:pets:5"])
def test_a_transfer_metric_that_cannot_be_meant_is_still_refused(tmp_path: Path, metric: str) -> None:
    folder = study(tmp_path, metric=metric)
    if metric != "transfer:pets:5":
        (folder / "transfer.csv").unlink()
    assert report_command(folder, tmp_path / "out") == 2
