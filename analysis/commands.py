"""What `harness report` and `harness analyze` print."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from analysis import paper
from analysis.report import build
from analysis.results import TableError, Tables, load, pairs_of
from analysis.summary import analyse, lines


def report_command(folder: Path, out: Path) -> int:
    """Build the report of the tables in `folder`; print each verdict and where the page is. 2 for unusable tables."""
    try:
        verdicts = build(folder, out)
    except TableError as error:
        print(f"harness: {error}")
        return 2
    except OSError as error:
        print(f"harness: {error.filename or out}: the report cannot be written there: {error.strerror}")
        return 2
    for verdict in verdicts:
        print(verdict.sentence)
        if verdict.would_decide:
            print(f"What would decide it: {verdict.would_decide}")
    print(out / "index.html")
    return 0


def analyze_command(table: Path, pairs: str | None, x: str, metric: str | None, as_json: bool) -> int:
    """Crossover, verdict, compute ratio, overfitting and fits of any results table. 2 for unusable tables."""
    try:
        tables = load(table)
        if pairs is not None:
            tables = dataclasses.replace(tables, study=tables.study | {"pairs": parse_pairs(pairs)})
            check_pairs(tables)
        results = {"table": analyse(tables, x, metric)}
    except TableError as error:
        print(f"harness: {error}")
        return 2
    show(results, as_json)
    if not as_json and not tables.study.get("pairs"):
        print("No pair is named, so no crossover: --pairs MODEL:MODEL,… compares models")
    return 0


def paper_command(as_json: bool) -> int:
    """The same on the paper's own numbers, target by target."""
    table6 = paper.table6()
    metrics = {"average of five": None} | {target: f"transfer:{target}:0" for target in paper.TARGETS}
    results = {
        "figure 4 (digitised)": analyse(paper.figure4()),
        "figure 3 (Table 5)": analyse(paper.figure3()),
    } | {f"table 6, {name}": analyse(table6, "exaflops", metric) for name, metric in metrics.items()}
    show(results, as_json)
    if not as_json:
        print("\nThe paper's own words: ViT uses approximately 2-4 x less compute (arXiv 2010.11929v2, section 4.4).")
    return 0


def show(results: dict[str, Any], as_json: bool) -> None:
    """JSON, or a sentence a finding."""
    if as_json:
        print(json.dumps(results["table"] if list(results) == ["table"] else results, indent=1, allow_nan=False))
        return
    for name, result in results.items():
        if name != "table":
            print(f"\n== {name}")
        print("\n".join(lines(result)))


def check_pairs(tables: Tables) -> None:
    """Raise TableError for a pair of which a model has no finished run (a study under way may have such pairs)."""
    models = set(map(str, tables.finished["model"]))
    for name in (model for pair in pairs_of(tables) for model in pair):
        if name not in models:
            raise TableError(f"--pairs: no finished run of {name}; models: {', '.join(sorted(models))}")


def parse_pairs(text: str) -> list[list[str]]:
    """'ViT-B/32:ResNet50x1,…' as pairs. Raises TableError for anything else."""
    pairs = [[name.strip() for name in part.split(":")] for part in text.split(",")]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise TableError(f"--pairs {text}: {':'.join(pair) or 'nothing'!r} is not MODEL:MODEL")
        if pair[0] == pair[1]:
            raise TableError(f"--pairs {text}: {pair[0]} twice; two models are compared")
    return pairs
