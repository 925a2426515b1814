"""The report of a study: verdict, figures, tables, environment, as one HTML page and as Markdown."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pandas as pd

from analysis import figures, page
from analysis.results import Tables, load
from analysis.style import Chart, to_svg
from analysis.verdict import Verdict, judge_all, points

CITATION = """@inproceedings{dosovitskiy2021image,
  title={An Image is Worth 16x16 Words: Transformers for Image Recognition at Scale},
  author={Dosovitskiy, Alexey and Beyer, Lucas and Kolesnikov, Alexander and Weissenborn, Dirk and Zhai, Xiaohua and
          Unterthiner, Thomas and Dehghani, Mostafa and Minderer, Matthias and Heigold, Georg and Gelly, Sylvain and
          Uszkoreit, Jakob and Houlsby, Neil},
  booktitle={ICLR}, year={2021}, note={arXiv:2010.11929}
}"""
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
    verdicts = judge_all(tables) if len(tables.finished) else []
    charts = make_charts(tables, verdicts)
    for name, chart in charts.items():
        chart.figure.savefig(out / f"{name}.svg", metadata={"Date": None})
        chart.figure.patch.set_alpha(1)  # a PNG is pasted into papers and issues: on white
        chart.figure.savefig(out / f"{name}.png", dpi=160, facecolor="white")
        chart.figure.patch.set_alpha(0)
    (out / "index.html").write_text(html(tables, verdicts, charts))
    (out / "report.md").write_text(markdown(tables, verdicts, charts))
    return verdicts


def make_charts(tables: Tables, verdicts: list[Verdict]) -> dict[str, Chart]:
    """Every figure that the tables have data for, by file name."""
    charts: dict[str, Chart] = {}
    if not len(tables.finished):
        return charts
    charts["data_scaling"] = figures.data_scaling(tables)
    for number, verdict in enumerate(verdicts):
        if verdict.comparison.gaps:
            charts["gap" if number == 0 else f"gap_{number + 1}"] = figures.gaps(verdict)
    charts["overfitting"] = figures.overfitting(tables)
    if len(tables.curves):
        charts["learning_curves"] = figures.learning_curves(tables)
    pretrained = tables.transfer[tables.transfer["features"] == "pretrained"]
    for target, shots in pretrained[["target", "shots"]].drop_duplicates().itertuples(index=False):
        charts[f"transfer_{target}_{shots}shot"] = figures.transfer(tables, str(target), int(shots))
    if tables.finished["test_top1"].notna().any():
        charts["data_scaling_test"] = figures.data_scaling(tables, "test_top1")
    return charts


def html(tables: Tables, verdicts: list[Verdict], charts: dict[str, Chart]) -> str:
    """The page."""
    study = tables.study
    title = str(study.get("title") or study.get("name") or "Results")
    parts = [f"<h1>{page.escape(title)}</h1>", page.paragraph(subtitle(tables), "sub")]
    if study.get("smoke"):
        parts.append(page.note(SMOKE))
    parts += [page.note(text) for text in warnings(tables)]
    parts += [verdict_card(verdict, study) for verdict in verdicts]
    if not len(tables.finished):
        parts.append(page.note("No run is finished yet."))
    drawn = [
        page.figure(chart.title, to_svg(chart, f"f{number}"), chart.caption)
        for number, chart in enumerate(charts.values())
    ]
    parts += ['<div class="figures">', *drawn, "</div>"]
    parts += [page.heading("Subsets"), subsets_table(tables)]
    if len(tables.transfer):
        parts += [page.heading("Transfer"), transfer_table(tables)]
    parts += [page.heading("Runs"), runs_table(tables)]
    unfinished = tables.runs[tables.runs["state"] != "finished"]
    if len(unfinished):
        parts += [page.heading("Not finished"), unfinished_table(unfinished)]
    parts += [page.heading("Compute and environment"), page.definitions(facts(tables))]
    parts += [
        page.heading("How to repeat"),
        f"<pre>{page.escape(str(study.get('command', 'harness report STUDY')))}</pre>",
    ]
    parts += [page.heading("How to cite the claim under test"), f"<pre>{page.escape(CITATION)}</pre>"]
    return page.page(title, "\n".join(parts))


def subtitle(tables: Tables) -> str:
    """Data set, runs, classes."""
    runs, study = tables.runs, tables.study
    classes = runs["num_classes"].dropna()
    text = f"{study.get('dataset_title') or study.get('dataset') or ''}"
    text += f" · {len(tables.finished)} of {study.get('expected_runs', len(runs))} runs finished"
    return text + (f" · {int(classes.iloc[0])} classes" if len(classes) else "")


def warnings(tables: Tables) -> list[str]:
    """What weakens the study: versions that differ, sizes left out, runs that failed."""
    found = []
    for column in ("git_sha", "harness_version", "torch_version", "timm_version", "precision", "device_kind"):
        values = sorted(tables.finished[column].dropna().astype(str).unique())
        if len(values) > 1:
            found.append(f"The runs differ in {column}: {', '.join(values)}. Compare them with care.")
    for item in tables.study.get("skipped_sizes", []):
        found.append(f"Subset {item['subset']} is left out: {item['reason']}.")
    failed = tables.runs[tables.runs["state"] == "failed"]
    if len(failed):
        found.append(f"{len(failed)} runs failed; they are listed below and are in no figure.")
    return found


def verdict_card(verdict: Verdict, study: dict[str, object]) -> str:
    """Outcome, sentence, numbers and rules of one pair."""
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
        f"Metric {verdict.metric}. {100 * rules.confidence:.0f} % intervals, "
        f"{comparison.degrees_of_freedom} degrees of freedom (at least {rules.min_degrees_of_freedom} needed). Sizes "
        f"count where both models reach {rules.min_times_chance:g} x chance. Smallest interesting slope: "
        f"{rules.smallest_interesting_slope_points_per_decade:g} points a decade of images. Fixed before the runs."
    )
    parts = [f'<p class="outcome">{page.escape(verdict.sentence)}</p>']
    if verdict.would_decide:
        parts.append(page.paragraph(f"What would decide it: {verdict.would_decide}"))
    if study.get("paper_finding"):
        parts.append(page.paragraph(f"The paper ({study.get('paper_section', '')}): {study['paper_finding']}"))
    parts += [page.table(headers, rows), page.paragraph(rule, "sub")]
    return f'<section class="verdict" aria-label="Verdict">{"".join(parts)}</section>'


def subsets_table(tables: Tables) -> str:
    """Distinct originals behind each subset size."""
    runs = tables.finished
    rows = []
    for size, part in runs.groupby("subset_samples"):
        origins = part["distinct_origins"].dropna()
        low, high = (int(origins.min()), int(origins.max())) if len(origins) else (None, None)
        shown = "" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,} over draws"
        epochs = float((part["samples_seen"] / part["subset_samples"]).mean())
        rows.append([(f"{size:,}", size), (shown, low), (f"{epochs:.1f}", epochs), (str(len(part)), len(part))])
    return page.table(("Training images", "Distinct originals", "Epochs", "Runs"), rows)


def transfer_table(tables: Tables) -> str:
    """Few-shot accuracy by model and size, baselines in the same table."""
    rows = []
    table = tables.transfer.assign(size=tables.transfer["subset_samples"])
    is_raw = table["features"] == "raw_pixels"
    table.loc[is_raw, "model"], table.loc[is_raw, "size"] = "raw pixels", 0  # the same whatever was trained
    keys = ["target", "shots", "features", "model", "size"]
    for target, shots, features, model, size in table[keys].drop_duplicates().itertuples(index=False, name=None):
        chosen = (table[keys] == [target, shots, features, model, size]).all(axis=1)
        values = 100 * table[chosen]["value"].astype(float)
        name = model if features == "raw_pixels" else f"{model}, {features}"
        rows.append(transfer_row(name, target, shots, size or None, values))
    headers = ("Features", "Target", "Shots", "Pre-training images", "Top-1 [%]", "SD over seeds [points]", "Values")
    return page.table(headers, rows)


def transfer_row(name: str, target: str, shots: int, size: int | None, values: pd.Series) -> list[page.Cell]:
    """One line of the transfer table."""
    spread = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return [
        (name, name),
        (str(target), target),
        (str(shots), shots),
        ("" if size is None else f"{size:,}", size),
        (f"{values.mean():.2f}", float(values.mean())),
        ("" if spread != spread else f"{spread:.2f}", spread),
        (str(len(values)), len(values)),
    ]


RUN_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("subset_samples", "Images", "{:,.0f}".format),
    ("seed", "Seed", "{:.0f}".format),
    ("best_val_top1", "Val top-1 [%]", lambda value: f"{100 * value:.2f}"),
    ("test_top1", "Test [%]", lambda value: f"{100 * value:.2f}"),
    ("train_top1_at_best", "Train at best [%]", lambda value: f"{100 * value:.2f}"),
    ("samples_seen_at_best", "Samples at best", "{:,.0f}".format),
    ("parameters", "Parameters", "{:,.0f}".format),
    ("training_flops_per_image", "Training FLOPs/image", "{:,.0f}".format),
    ("exaflops_spent", "exaFLOPs", "{:.3g}".format),
    ("device_seconds_train", "Device s", "{:,.0f}".format),
    ("images_per_second", "Images/s", "{:,.0f}".format),
)


def runs_table(tables: Tables) -> str:
    """Every finished run, linked to its folder."""
    rows, links = [], []
    for row in tables.finished.to_dict("records"):
        cells: list[page.Cell] = [(str(row["run_id"]), row["run_id"]), (str(row["family"]), row["family"])]
        for name, _, form in RUN_COLUMNS:
            value = row[name]
            cells.append(("", None) if pd.isna(value) else (form(float(value)), float(value)))
        rows.append(cells)
        links.append(f"../{quote(str(row['run_id']))}/")
    return page.table(("Run", "Family", *[header for _, header, _ in RUN_COLUMNS]), rows, links)


def unfinished_table(runs: pd.DataFrame) -> str:
    """Runs without a result and why."""
    rows: list[list[page.Cell]] = [
        [
            (str(value), value) if not pd.isna(value) else ("", None)
            for value in (row["run_id"], row["state"], row["reason"])
        ]
        for row in runs.to_dict("records")
    ]
    return page.table(("Run", "State", "Reason"), rows)


def facts(tables: Tables) -> list[tuple[str, str]]:
    """Compute spent against planned, and what it ran on."""
    runs, study = tables.finished, tables.study
    planned = study.get("planned") or {}
    spent = float(runs["exaflops_spent"].fillna(0).sum())
    seconds = float(runs["device_seconds_train"].fillna(0).sum())
    items = [
        ("Compute", f"{spent:.3g} exaFLOPs spent of {float(planned.get('exaflops', spent)):.3g} planned"),
        (
            "Device time",
            f"{seconds / 60:.1f} min in training steps; planned {float(planned.get('device_days', 0)) * 1440:.1f} min",
        ),
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


def markdown(tables: Tables, verdicts: list[Verdict], charts: dict[str, Chart]) -> str:
    """The report for a terminal, an issue or a README."""
    study = tables.study
    lines = [f"# {study.get('title') or 'Results'}", "", subtitle(tables), ""]
    lines += ([f"> {SMOKE}", ""] if study.get("smoke") else []) + [f"- {text}" for text in warnings(tables)]
    for verdict in verdicts:
        lines += ["", f"**{verdict.sentence}**", ""]
        if verdict.would_decide:
            lines += [f"What would decide it: {verdict.would_decide}", ""]
        comparison = verdict.comparison
        lines += [
            f"| images | {comparison.first} | {comparison.second} | gap | pairs | used |",
            "|--:|--:|--:|--:|--:|---|",
        ]
        lines += [
            f"| {gap.size:,} | {100 * gap.first_mean:.2f} % | {100 * gap.second_mean:.2f} % | {points(gap.gap)} | "
            f"{gap.pairs} | {'yes' if gap.used else 'no'} |"
            for gap in comparison.gaps
        ]
    lines += ["", *[f"![{chart.title}]({name}.png)" for name, chart in charts.items()]]
    lines += ["", *[f"- {name}: {value}" for name, value in facts(tables)], ""]
    return "\n".join(lines)
