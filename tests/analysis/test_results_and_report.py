"""Tables that cannot be used are refused by name; every odd table still makes a page."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from analysis.commands import report_command
from analysis.crossover import Rules, compare
from analysis.report import build
from analysis.results import TableError, load, pairs_of, scores
from tests.analysis.studies import linear_gap, runs_table, write_study

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "use", "rect"}


class Balanced(HTMLParser):
    """Collects tags, refusing one that closes what is not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def page_of(folder: Path, out: Path) -> str:
    build(folder, out)
    text = (out / "index.html").read_text()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    for link in parser.links:  # nothing is fetched: links are to run folders and to parts of this page
        assert link.startswith(("../", "#")), link
    assert "http-equiv" not in text
    assert not re.search(r"@import|url\(http", text)
    return text


@pytest.fixture
def runs() -> pd.DataFrame:
    return runs_table(linear_gap(6.0, 10_000, noise=0.5))


def test_a_whole_study_has_everything_on_its_page(tmp_path: Path, runs: pd.DataFrame) -> None:
    folder = write_study(tmp_path / "t", runs, planned={"exaflops": 2e-6, "device_days": 0.01}, expected_runs=18)
    (tmp_path / "vit-1000-s0").mkdir()  # of a folder that is there
    text = page_of(folder, tmp_path / "out")
    for words in (
        "Reproduced",
        "18 of 18 runs",
        "Fixed before the runs",
        "raw pixels",
        "Distinct originals",
        "aria-sort",
    ):
        assert words in text, words
    assert text.count("<figure>") == 6
    assert text.count("<title>vit-1000-s0") >= 3
    assert text.count('href="../') == text.count('href="../vit-1000-s0/"') == 1
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    markdown = (tmp_path / "out" / "report.md").read_text()
    assert "**Reproduced" in markdown
    for name in re.findall(r"\((\w+\.png)\)", markdown):
        assert (tmp_path / "out" / name).stat().st_size > 1000


@pytest.mark.parametrize(
    "options", [{"seeds": 1}, {"sizes": (1000,)}, {"seeds": 1, "sizes": (1000,)}, {"num_classes": 2}]
)
def test_small_tables_make_a_page(tmp_path: Path, options: dict[str, object]) -> None:
    runs = runs_table(linear_gap(6.0, 10_000), **options)  # type: ignore[arg-type]
    assert "Inconclusive" in page_of(write_study(tmp_path / "t", runs), tmp_path / "out")


def test_nothing_finished_and_failed_runs_are_listed(tmp_path: Path, runs: pd.DataFrame) -> None:
    waiting = runs.assign(state="waiting", best_val_top1=None)
    assert "No run is finished yet" in page_of(write_study(tmp_path / "a", waiting), tmp_path / "out_a")
    some = runs.copy()
    some.loc[0, ["state", "reason"]] = ["failed", "out_of_memory"]
    text = page_of(write_study(tmp_path / "b", some), tmp_path / "out_b")
    assert "1 run failed; it is listed" in text
    assert "1.8e-06 exaFLOPs spent" in text  # what the failed run has spent is spent
    assert "out_of_memory" in text
    assert text.count("Interim (17 of 18 runs finished)") == 2  # a note, and the verdict
    markdown = (tmp_path / "out_b" / "report.md").read_text()
    for words in ("## Transfer", "## Not finished", "out_of_memory", "**Interim (17 of 18 runs finished): Reproduced"):
        assert words in markdown, words
    assert "lack something" not in markdown
    assert "No run is finished yet" in (tmp_path / "out_a" / "report.md").read_text()


def test_the_figure_of_the_deciding_metric_comes_first(tmp_path: Path, runs: pd.DataFrame) -> None:
    text = page_of(write_study(tmp_path / "t", runs.assign(test_top1=0.5), metric="test_top1"), tmp_path / "out")
    titles = re.findall(r"<figure><h3>([^<]+)</h3>", text)
    assert titles[:2] == ["Test accuracy (held-out split) against training images", "vit − resnet"]
    assert titles[-2] == "Validation accuracy against training images"
    assert "Test top-1. Above zero vit is ahead" in text


def test_a_table_without_transfer_and_curves_is_enough(tmp_path: Path, runs: pd.DataFrame) -> None:
    folder = write_study(tmp_path / "t", runs)
    (folder / "transfer.csv").unlink()
    (folder / "curves.csv").unlink()
    assert page_of(folder, tmp_path / "out").count("<figure>") == 4


def test_runs_of_different_code_are_pointed_out(tmp_path: Path, runs: pd.DataFrame) -> None:
    runs.loc[0, "torch_version"] = "2.9"
    text = page_of(write_study(tmp_path / "t", runs), tmp_path / "out")
    assert "The runs differ in torch_version: 2.9, x" in text


def test_names_from_data_are_text_not_markup(tmp_path: Path, runs: pd.DataFrame) -> None:
    evil = '<script>alert("x")</script>'
    runs["run_id"] = runs["run_id"] + evil
    runs["model"] = runs["model"] + "<b>"
    text = page_of(write_study(tmp_path / "t", runs, title=evil, pairs=[["vit<b>", "resnet<b>"]]), tmp_path / "out")
    assert evil not in text
    assert "<b>" not in text


def test_a_study_under_way_makes_a_page(tmp_path: Path, runs: pd.DataFrame) -> None:
    runs.loc[runs["model"] == "resnet", "state"] = "failed"
    text = page_of(write_study(tmp_path / "t", runs), tmp_path / "out")
    assert "vit and resnet have no finished runs of one size and one seed" in text


@pytest.mark.filterwarnings("error")
def test_markdown_has_the_runs_and_citations_and_any_name_fits_its_tables(tmp_path: Path, runs: pd.DataFrame) -> None:
    runs["model"] = runs["model"] + "|数"
    folder = write_study(tmp_path / "t", runs, pairs=[["vit|数", "resnet|数"]])
    build(folder, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    rows = [re.split(r"(?<!\\)\|", line) for line in text.splitlines() if line.startswith("|")]
    assert {len(row) for row in rows} == {8, 9}  # gaps of six columns, runs of seven
    assert sum(row[1].strip() in set(runs["run_id"]) for row in rows) == len(runs)
    assert "dosovitskiy2021image" in text
    assert "@software{harness" in text


def test_a_folder_in_the_pages_place_is_named(
    tmp_path: Path, runs: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "index.html").mkdir(parents=True)
    assert report_command(write_study(tmp_path / "t", runs), tmp_path / "out") == 2
    assert "index.html: the report cannot be written there" in capsys.readouterr().out


@pytest.mark.filterwarnings("error")
def test_names_are_no_formulas_and_may_start_with_an_underscore(tmp_path: Path, runs: pd.DataFrame) -> None:
    runs["model"] = runs["model"] + " $x^$"
    runs["family"] = "_" + runs["family"] + " $y^$"
    page_of(write_study(tmp_path / "t", runs, pairs=[["vit $x^$", "resnet $x^$"]]), tmp_path / "out")
    assert "vit $x^$" in (tmp_path / "out" / "data_scaling.svg").read_text()
    assert "_ViT $y^$" in (tmp_path / "out" / "learning_curves.svg").read_text()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_the_ends_of_the_scale_make_a_page(tmp_path: Path, runs: pd.DataFrame, accuracy: float) -> None:
    runs["best_val_top1"] = runs["test_top1"] = accuracy
    assert "nconclusive" in page_of(write_study(tmp_path / "t", runs), tmp_path / "out")


def test_what_was_planned_is_said_where_it_is_known(tmp_path: Path, runs: pd.DataFrame) -> None:
    assert "planned" not in page_of(write_study(tmp_path / "t", runs), tmp_path / "out")
    planned = {"exaflops": 0.25, "device_days": 1 / 1440}
    text = page_of(write_study(tmp_path / "u", runs, planned=planned), tmp_path / "out")
    assert "of 0.25 planned" in text
    assert "planned 1.0 min" in text


@pytest.mark.parametrize("column", ["run_id", "state", "model", "subset_samples", "seed"])
def test_a_missing_column_is_named(tmp_path: Path, runs: pd.DataFrame, column: str) -> None:
    folder = write_study(tmp_path / "t", runs)
    runs.drop(columns=column).to_csv(folder / "runs.csv", index=False)
    with pytest.raises(TableError, match=f"column {column} is missing"):
        load(folder)


def test_percent_in_place_of_fractions_is_refused(tmp_path: Path, runs: pd.DataFrame) -> None:
    folder = write_study(tmp_path / "t", runs)
    runs.assign(best_val_top1=71.2).to_csv(folder / "runs.csv", index=False)
    with pytest.raises(TableError, match=r"best_val_top1: 71\.2 is no fraction"):
        load(folder)


def test_no_table_and_text_in_a_number_column(
    tmp_path: Path, runs: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_command(tmp_path, tmp_path / "out") == 2
    assert "runs.csv" in capsys.readouterr().out
    folder = write_study(tmp_path / "t", runs)
    runs.astype({"seed": object}).assign(seed="first").to_csv(folder / "runs.csv", index=False)
    with pytest.raises(TableError, match="cannot be read"):
        load(folder)


def test_a_transfer_metric_is_the_mean_over_support_seeds(tmp_path: Path, runs: pd.DataFrame) -> None:
    tables = load(write_study(tmp_path / "t", runs))
    found = scores(tables, "transfer:digits:5")
    assert len(found) == len(runs)
    assert found["value"].tolist() == pytest.approx([0.71] * len(runs))
    with pytest.raises(TableError, match="pets"):
        scores(tables, "transfer:pets:5")
    with pytest.raises(TableError, match="nonsense"):
        scores(tables, "nonsense")


def test_a_model_with_two_recipes_is_two_models_and_pairs_mean_both(tmp_path: Path, runs: pd.DataFrame) -> None:
    """Their mean would be the score of no run; a page is made of them all the same."""
    other = runs[runs["model"] == "vit"].assign(recipe="long", run_id=lambda frame: frame["run_id"] + "-long")
    other["best_val_top1"] += 0.1
    both = pd.concat([runs.assign(recipe="short"), other], ignore_index=True)
    tables = load(write_study(tmp_path / "t", both))
    assert sorted(tables.finished["model"].unique()) == ["resnet", "vit · long", "vit · short"]
    assert pairs_of(tables) == [("vit · long", "resnet"), ("vit · short", "resnet")]
    long, short = (compare(scores(tables, "best_val_top1"), *pair, Rules()) for pair in pairs_of(tables))
    for one, two in zip(long.gaps, short.gaps, strict=True):
        assert one.gap.value == pytest.approx(two.gap.value + 10)
    assert "vit · long" in page_of(tmp_path / "t", tmp_path / "out")


def test_a_table_with_the_needed_columns_alone_is_enough(tmp_path: Path, runs: pd.DataFrame) -> None:
    """Somebody else's sweep: no harness columns but the documented ones that conclusions need."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    kept = ["run_id", "state", "model", "family", "subset_samples", "seed", "best_val_top1", "num_classes"]
    runs[kept].to_csv(folder / "runs.csv", index=False)
    tables = load(folder)
    assert len(scores(tables, "best_val_top1")) == len(runs)
    build(folder, tmp_path / "out")


def test_the_example_is_the_published_studys_report_and_its_links_lead_somewhere() -> None:
    root = Path(__file__).parents[2]
    example = root / "docs" / "example"
    text = (example / "index.html").read_text()
    published = (root / "results" / "pocket@glyphs" / "report" / "index.html").read_text()
    assert text == published.replace('href="../', 'href="../../results/pocket@glyphs/')
    links = re.findall(r'<a href="([^"]+)"', text)
    assert len(links) >= 20
    assert all((example / unquote(link)).is_dir() for link in links)
    for name in re.findall(r"\((\w+\.png)\)", (example / "report.md").read_text()):
        assert (example / name).is_file()


def test_a_page_says_who_is_ahead_at_equal_compute_and_which_models_match(tmp_path: Path) -> None:
    """As report.md and `harness analyze` do: every sentence of theirs, with its own numbers."""
    parts = []
    for rung, compute in enumerate((1e-7, 2e-7, 4e-7)):
        part = runs_table(lambda model, size, seed, at=rung: 1 - 0.5 * 0.8**at + 0.001 * seed, sizes=(10_000,))
        part["exaflops_spent"] = compute * part["family"].map({"ViT": 1.0, "ResNet": 1.6})
        parts.append(part.assign(run_id=f"{rung}-" + part["run_id"], model=f"{rung}-" + part["model"]))
    folder = write_study(tmp_path / "t", pd.concat(parts), pairs=[])
    build(folder, tmp_path / "out")
    page, markdown = ((tmp_path / "out" / name).read_text() for name in ("index.html", "report.md"))
    sentences = [line[2:].strip() for line in markdown.splitlines() if " is ahead (" in line or "Matched in" in line]
    assert len(sentences) == 6  # three bands, three rungs
    assert sentences[3].startswith("Matched in accuracy (ViT over ResNet, 10,000 images): 0-vit")
    assert sentences[3].endswith("50.10 %: 1.6 x less compute")
    section = page.split("<h2>Compute at equal accuracy</h2>")[1].split("<h2>")[0]
    assert re.findall(r"<p>(.*?)\.</p>", section) == sentences
