"""The report of a study: verdict, figures, tables, environment, as one HTML page and as Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import figures, figures_compute, page, summary
from analysis import report_tables as tables_of
from analysis.ladder import size_said
from analysis.results import NotEvaluated, TableError, Tables, evaluations_of, load
from analysis.style import Chart, inline, raw_svg, write_png
from analysis.transfer import Evaluation, evaluations
from analysis.verdict import Verdict, capped, interim, judge_all, points
from analysis.words import counted

CITATION = """@inproceedings{dosovitskiy2021image,
  title={An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale},
  author={Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, Xiaohua and
          Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg and Gelly, Sylvain and
          Uszkoreit, Jakob and Houlsby, Neil},
  booktitle={ICLR}, year={2021}, note={arXiv:2010.11929}
}"""
NOT_FINISHED = "Not finished"
ODD_FOLDERS = "Folders that are in no table, or lack something"
SMOKE = (
    "This is a smoke study: it shows that the whole line works. With so few steps the gap at the largest sizes is set "
    "by compute rather than by data, so whatever it says is no word on the paper's claim."
)


def build(folder: Path, out: Path) -> list[Verdict]:
    """Read the tables in `folder`, write out/index.html, out/report.md and the figures (SVG, PNG).

    Raises analysis.results.TableError for tables that cannot be used. Works with nothing finished yet.
    """
    tables = load(folder)
    out.mkdir(parents=True, exist_ok=True)
    verdicts, found, notes = conclusions(tables)
    charts = make_charts(tables, verdicts)
    svgs = {}
    for name, chart in charts.items():
        svgs[name] = raw_svg(chart)
        (out / f"{name}.svg").write_text(svgs[name], encoding="utf-8")
        write_png(chart, out / f"{name}.png")
    drawn = [
        page.figure(chart.title, inline(svgs[name], chart.title, f"f{number}"), chart.caption)
        for number, (name, chart) in enumerate(charts.items())
    ]
    folders = {path.name for path in out.absolute().parent.iterdir() if path.is_dir()}
    (out / "index.html").write_text(html(tables, verdicts, found, notes, drawn, folders), encoding="utf-8")
    (out / "report.md").write_text(markdown(tables, verdicts, found, notes, charts), encoding="utf-8")
    return verdicts


def conclusions(tables: Tables) -> tuple[list[Verdict], dict[str, Any] | None, list[str]]:
    """Verdicts, what analysis.summary.analyse says and its notes; of a study without a scored run the notes alone."""
    if not len(tables.finished):
        return [], None, list(tables.notes)
    try:
        verdicts, found = judge_all(tables), summary.analyse(tables)
    except NotEvaluated as error:
        return [], None, [*tables.notes, f"No verdict yet: {error}"]
    return verdicts, found, found["notes"]


def make_charts(tables: Tables, verdicts: list[Verdict]) -> dict[str, Chart]:
    """Every figure that the tables have data for, by file name; none against size for a compute ladder of one size."""
    if not len(tables.finished):
        return {}
    targets = evaluations(tables.transfer)
    compute = compute_charts(tables, targets)
    one_size = len(set(tables.finished["subset_samples"])) == 1
    charts = {} if one_size and compute else size_charts(tables, verdicts, targets)
    charts |= compute
    if len(tables.curves):
        charts["learning_curves"] = figures.learning_curves(tables)
    return charts


def size_charts(tables: Tables, verdicts: list[Verdict], targets: list[Evaluation]) -> dict[str, Chart]:
    """Figures against the number of training images."""
    metric = deciding_metric(tables)
    charts = {"data_scaling": figures.data_scaling(tables, metric, overlay=True)}
    for number, verdict in enumerate(verdicts):
        if verdict.comparison.gaps:
            charts["gap" if number == 0 else f"gap_{number + 1}"] = figures.gaps(verdict)
    if tables.finished["train_top1_final"].notna().any():
        charts["overfitting"] = figures.overfitting(tables)
    for target in targets:
        charts[f"transfer_{target.slug}"] = figures.transfer(tables, target)
    for name, other in (("data_scaling_validation", "best_val_top1"), ("data_scaling_test", "test_top1")):
        if other != metric and tables.finished[other].notna().any():
            charts[name] = figures.data_scaling(tables, other)
    return charts


def deciding_metric(tables: Tables) -> str:
    """The column of runs that the study is judged by; validation top-1 where it is judged by a transfer target."""
    metric = str(tables.study.get("metric", "best_val_top1"))
    return metric if metric in figures.METRIC_NAMES else "best_val_top1"


def compute_charts(tables: Tables, targets: list[Evaluation]) -> dict[str, Chart]:
    """Figures against compute and against the pre-training set, where there is a ladder or more than one set."""
    metric = str(tables.study.get("metric", "best_val_top1"))
    found = {"pretraining_sets": figures_compute.pretraining_sets(tables, deciding_metric(tables), overlay=True)}
    if targets or not metric.startswith("transfer:"):
        found = {
            "compute_scaling": figures_compute.compute_scaling(tables, metric, overlay=True),
            "compute_scaling_device_days": figures_compute.compute_scaling(tables, metric, "device_days"),
        } | found
    of_targets = {target.slug: target.name for target in targets} | averages(tables, targets)
    for slug, name in of_targets.items():
        found[f"compute_scaling_{slug}"] = figures_compute.compute_scaling(tables, name)
        found[f"compute_scaling_{slug}_device_days"] = figures_compute.compute_scaling(tables, name, "device_days")
    return {name: chart for name, chart in found.items() if chart is not None}


def averages(tables: Tables, targets: list[Evaluation]) -> dict[str, str]:
    """Metrics that are means over targets (Figure 5's first panel), by slug; none where one cannot be told."""
    found = {}
    for shots in dict.fromkeys(target.shots for target in targets):
        metric = f"transfer:average:{shots}"
        try:
            evaluations_of(tables, metric)
        except TableError:  # fewer than two targets, or several protocols
            continue
        found[f"average_{shots}shot" if shots else "average"] = metric
    return found


def html(
    tables: Tables,
    verdicts: list[Verdict],
    found: dict[str, Any] | None,
    notes: list[str],
    drawn: list[str],
    folders: set[str],
) -> str:
    """The page. `found` is what analysis.summary.analyse says, None with nothing scored; `folders` are the runs'."""
    study, title = tables.study, title_of(tables)
    parts = [f"<h1>{page.escape(title)}</h1>", page.paragraph(subtitle(tables), "sub")]
    if study.get("smoke"):
        parts.append(page.note(SMOKE))
    parts += [page.note(text) for text in warnings(tables, notes)]
    parts += [verdict_card(verdict, study, summary.metric_said(found)) for verdict in verdicts if found]
    if not verdicts and found and not found["ladder"]["reason"]:
        parts += ratio_cards(found["compute_ratio"], study)
    parts += ['<div class="figures">', *drawn, "</div>"]
    parts += findings(found) if found else []
    parts += [page.heading("Subsets"), tables_of.subsets_table(tables)]
    if len(tables.transfer):
        parts += [page.heading("Transfer"), page.table(tables_of.TRANSFER_HEADERS, tables_of.transfer_table(tables))]
    parts += [page.heading("Runs"), tables_of.runs_table(tables, folders)]
    unfinished = tables.runs[tables.runs["state"] != "finished"]
    if len(unfinished):
        links = [tables_of.link_to(run_id, folders) for run_id in unfinished["run_id"]]
        rows = tables_of.unfinished_table(unfinished)
        parts += [page.heading(NOT_FINISHED), page.table(tables_of.UNFINISHED_HEADERS, rows, links)]
    if study.get("odd_folders"):
        rows = tables_of.odd_folders_table(study["odd_folders"])
        parts += [page.heading(ODD_FOLDERS), page.table(tables_of.ODD_HEADERS, rows)]
    parts += [page.heading("Compute and environment"), page.definitions(facts(tables))]
    parts += [page.heading("How to repeat"), page.preformatted(str(study.get("command", "harness report STUDY")))]
    parts += [page.heading("How to cite"), page.paragraph("The claim under test:"), page.preformatted(CITATION)]
    parts += [page.paragraph("This analysis:"), page.preformatted(own_citation(tables))]
    return page.page(title, "\n".join(parts))


def findings(found: dict[str, Any]) -> list[str]:
    """Compute ratio, overfitting and fits."""
    parts = []
    if found["compute_ratio"]:
        text = (
            "Compute that the first family needs over what the second needs for the same accuracy, averaged over the "
            "accuracies that both reach, with 95 % intervals. "
        )
        reason = found["ladder"]["reason"]
        text += f"There is none: {reason}." if reason else f"Runs on {size_said(found['ladder'])}."
        rows = tables_of.ratio_table(found["compute_ratio"])
        parts += [page.heading("Compute at equal accuracy"), page.paragraph(text, "sub"), rows]
        bands = [text for row in found["compute_ratio"] for text in summary.band_lines(row)]
        parts += [page.paragraph(f"{text}.") for text in [*bands, *summary.matched_lines(found)]]
    rows_of = found["overfitting"]
    if rows_of["train_against_validation"] or rows_of["bigger_against_smaller"]:
        parts.append(page.heading("Overfitting"))
        parts += [page.paragraph(text) for text in summary.size_sentences(rows_of["bigger_against_smaller"])]
        parts.append(tables_of.overfitting_table(rows_of["train_against_validation"]))
    text = (
        "Error as a function of training images: a x^-b, with a floor c, with a shift d; the form that predicts the "
        "largest size best from the others. Intervals: bootstrap over seeds. Nothing is extrapolated."
    )
    return [*parts, page.heading("Fits"), page.paragraph(text, "sub"), tables_of.fits_table(found["fits"]["rows"])]


def own_citation(tables: Tables) -> str:
    """BibTeX of the software with the version and commit that made the runs."""
    environment = tables.study.get("environment") or {}
    version = environment.get("harness_version") or "unknown version"
    commit = environment.get("git_sha")
    note = f"Apache-2.0{f', commit {commit}' if commit else ''}"
    return (
        "@software{harness,\n  title={harness: data-scaling experiments for vision backbones},\n"
        f"  author={{The harness contributors}}, version={{{version}}}, note={{{note}}}\n}}"
    )


def title_of(tables: Tables) -> str:
    """The study's title, or its name."""
    return str(tables.study.get("title") or tables.study.get("name") or "Results")


def subtitle(tables: Tables) -> str:
    """Data set, runs, classes."""
    runs, study = tables.runs, tables.study
    classes = runs["num_classes"].dropna()
    parts = [str(study.get("dataset_title") or study.get("dataset") or "")]
    parts.append(f"{len(tables.finished)} of {study.get('expected_runs', len(runs))} runs finished")
    parts.append(f"{int(classes.iloc[0])} classes" if len(classes) else "")
    return " · ".join(part for part in parts if part)


def warnings(tables: Tables, notes: list[str]) -> list[str]:
    """What weakens the study: versions that differ, sizes and rows left out, runs that failed."""
    missing = interim(tables)
    found = [f"{missing}: what is said here may change."] if missing else []
    if not len(tables.finished):
        found = ["No run is finished yet."]
    for column in ("git_sha", "harness_version", "torch_version", "timm_version", "precision", "device_kind"):
        values = sorted(tables.finished[column].dropna().astype(str).unique())
        if len(values) > 1:
            found.append(f"The runs differ in {column}: {', '.join(values)}. Compare them with care.")
    for name, values in (tables.study.get("environment_differs") or {}).items():
        found.append(f"The runs differ in {name}: {', '.join(values)}. Compare them with care.")
    for item in tables.study.get("skipped_sizes", []):
        found.append(f"Subset {item['subset']} is left out: {item['reason']}.")
    found += [f"{note}." for note in notes]
    failed = tables.runs[tables.runs["state"] == "failed"]
    if len(failed):
        said = "1 run failed; it is" if len(failed) == 1 else f"{len(failed)} runs failed; they are"
        found.append(f"{said} listed below and in no figure.")
    return found


def verdict_card(verdict: Verdict, study: dict[str, object], metric: str) -> str:
    """Outcome, sentence, numbers and rules of one pair; `metric` is what it is called."""
    comparison, rules = verdict.comparison, verdict.rules
    rows = [
        [
            (f"{gap.size:,}", gap.size),
            (f"{100 * gap.first_mean:.2f}", gap.first_mean),
            (f"{100 * gap.second_mean:.2f}", gap.second_mean),
            (points(gap.gap), gap.gap.value),
            (str(gap.pairs), gap.pairs),
            ("yes" if gap.used else "no: near chance", gap.used),
        ]
        for gap in comparison.gaps
    ]
    headers = ("Training images", f"{comparison.first} [%]", f"{comparison.second} [%]", "Gap", "Paired seeds", "Used")
    rule = (
        f"Metric {metric}. {100 * rules.confidence:.0f} % intervals, "
        f"{counted(comparison.degrees_of_freedom, 'degree')} of freedom "
        f"(at least {rules.min_degrees_of_freedom} needed). "
        f"{sizes_that_count(verdict)} Smallest interesting slope: "
        f"{rules.smallest_interesting_slope_points_per_decade:g} points a decade of images. Fixed before the runs."
    )
    parts = [f'<p class="outcome">{page.escape(verdict.sentence)}</p>']
    if verdict.would_decide:
        parts.append(page.paragraph(f"What would decide it: {verdict.would_decide}"))
    if study.get("paper_finding"):
        parts.append(page.paragraph(f"The paper ({study.get('paper_section', '')}): {study['paper_finding']}"))
    parts += [page.table(headers, rows), page.paragraph(rule, "sub")]
    return f'<section class="verdict" aria-label="Verdict">{"".join(parts)}</section>'


def sizes_that_count(verdict: Verdict) -> str:
    """What the card says of chance."""
    if verdict.metric.startswith("transfer:"):
        return "Chance is not known for this metric, so no size is left out for it."
    text = f"Sizes count where both models reach {verdict.rules.min_times_chance:g} x chance."
    instead = capped(verdict.comparison.chance, verdict.rules)
    return f"{text} {instead}." if instead else text


def ratio_cards(rows: list[dict[str, Any]], study: dict[str, object]) -> list[str]:
    """What a compute ladder, which has no pair to judge, has found."""
    said = [summary.ratio_line(row) for row in rows if row["unit"] == "exaflops"]
    if not said:
        return []
    parts = [f'<p class="outcome">{page.escape(text)}.</p>' for text in said]
    if study.get("paper_finding"):
        parts.append(page.paragraph(f"The paper ({study.get('paper_section', '')}): {study['paper_finding']}"))
    return [f'<section class="verdict" aria-label="Compute ratio">{"".join(parts)}</section>']


def facts(tables: Tables) -> list[tuple[str, str]]:
    """Compute spent, by failed runs too where it is known, against planned; and what it ran on."""
    runs, study = tables.runs, tables.study
    planned = study.get("planned") or {}
    spent = float(runs["exaflops_spent"].fillna(0).sum())
    seconds = float(runs["device_seconds_train"].fillna(0).sum())
    of = f" of {planned['exaflops']:.3g} planned" if "exaflops" in planned else ""
    minutes = f"; planned {planned['device_days'] * 1440:.1f} min" if "device_days" in planned else ""
    items = [
        ("Compute", f"{spent:.3g} exaFLOPs spent{of}"),
        ("Device time", f"{seconds / 60:.1f} min in training steps{minutes}"),
        ("Of the paper's H/14", f"{spent / 4262:.2g} (4262 exaFLOPs, arXiv 2010.11929v2, Table 6)"),
    ]
    environment = study.get("environment") or {}
    for name in ("processor", "device_kind", "cores", "platform", "python", "harness_version", "git_sha"):
        if environment.get(name):
            items.append((name.replace("_", " "), str(environment[name])))
    packages = environment.get("packages") or {}
    if packages:
        items.append(("packages", ", ".join(f"{name} {value}" for name, value in packages.items())))
    return items


def markdown(
    tables: Tables,
    verdicts: list[Verdict],
    found: dict[str, Any] | None,
    notes: list[str],
    charts: dict[str, Chart],
) -> str:
    """The report for a terminal, an issue or a README."""
    study = tables.study
    lines = [f"# {title_of(tables)}", "", subtitle(tables), ""]
    lines += ([f"> {SMOKE}", ""] if study.get("smoke") else []) + [f"- {text}" for text in warnings(tables, notes)]
    for verdict in verdicts:
        lines += ["", f"**{verdict.sentence}**", ""]
        if verdict.would_decide:
            lines += [f"What would decide it: {verdict.would_decide}", ""]
        comparison = verdict.comparison
        headers = ("images", comparison.first, comparison.second, "gap", "pairs", "used")
        rows = [
            (
                *(f"{gap.size:,}", f"{100 * gap.first_mean:.2f} %", f"{100 * gap.second_mean:.2f} %", points(gap.gap)),
                *(str(gap.pairs), "yes" if gap.used else "no"),
            )
            for gap in comparison.gaps
        ]
        lines += markdown_table(headers, rows)
    if found:
        lines += ["", *[f"- {text}" for text in summary.other_lines(found)]]
    lines += ["", *[f"![{chart.title}]({name}.png)" for name, chart in charts.items()]]
    lines += ["", *[f"- {name}: {value}" for name, value in facts(tables)], ""]
    lines += [*markdown_runs(tables), *markdown_others(tables)]
    lines += ["", "The claim under test, and this analysis:", ""]
    lines += ["```bibtex", CITATION, own_citation(tables), "```", ""]
    return "\n".join(lines)


def markdown_runs(tables: Tables) -> list[str]:
    """Every run with the first columns of the page's table."""
    columns = tables_of.RUN_COLUMNS[:4]
    rows = []
    for row in tables.runs.to_dict("records"):
        texts = ["" if pd.isna(row[name]) else str(row[name]) for name in ("run_id", "state", "family")]
        rows.append(texts + ["" if pd.isna(row[name]) else form(float(row[name])) for name, _, form in columns])
    return markdown_table(("run", "state", "family", *[header for _, header, _ in columns]), rows)


def markdown_others(tables: Tables) -> list[str]:
    """Transfer, runs without a result and folders that are in no table, as the page has them."""
    unfinished = tables.runs[tables.runs["state"] != "finished"]
    parts = (
        ("Transfer", tables_of.TRANSFER_HEADERS, tables_of.transfer_table(tables)),
        (NOT_FINISHED, tables_of.UNFINISHED_HEADERS, tables_of.unfinished_table(unfinished)),
        (ODD_FOLDERS, tables_of.ODD_HEADERS, tables_of.odd_folders_table(tables.study.get("odd_folders") or [])),
    )
    lines = []
    for title, headers, rows in parts:
        if rows:
            lines += ["", f"## {title}", "", *markdown_table(headers, [[shown for shown, _ in row] for row in rows])]
    return lines


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, first column left; a bar in a name does not end its cell."""
    rule = "|".join([":--", *["--:"] * (len(headers) - 1)])
    head, *body = (" | ".join(text.replace("|", "\\|") for text in row) for row in (headers, *rows))
    return [f"| {head} |", f"|{rule}|", *[f"| {line} |" for line in body]]
