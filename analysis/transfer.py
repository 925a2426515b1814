"""Which rows of the transfer table belong together: those of one target, protocol, settings, shots and metric.

A run may have been evaluated twice on one target, by two protocols or by one with other settings; their rows are never
averaged. `transfer:TARGET:SHOTS` names an evaluation, with `:METRIC:TRANSFER_ID` where several answer to that, and
`:PROTOCOL` where these share it; `transfer:average:SHOTS` the mean over targets (the paper's Figure 5 and Table 6).
"""

import hashlib
import re
from typing import NamedTuple

import pandas as pd

from harness.results_schema import AVERAGE_5

AVERAGE = "average"
KEYS = ["target", "protocol", "shots", "metric", "transfer_id"]
LONGEST_SLUG = 100
KINDS = {"finetune": "fine-tuned", "linear_probe": "linear probe"}  # few-shot says its shots
METRIC_NAMES = {"top1": "top-1", "top5": "top-5", "mean_per_class": "mean per-class accuracy", "real": "ReaL accuracy"}


class NothingEvaluated(ValueError):
    """A metric that could be meant, of a table without an evaluation of any trained network."""

    def __init__(self, metric: str) -> None:
        super().__init__(f"metric {metric}: no transfer of a trained network is evaluated yet")


class Evaluation(NamedTuple):
    """One way of scoring the features of runs."""

    target: str
    protocol: str
    shots: int
    metric: str
    transfer_id: str
    settings: str  # the transfer_id where the table has several settings that agree in all else, otherwise ''
    shared: bool = False  # other protocols have this target, shots, metric and transfer_id too

    @property
    def name(self) -> str:
        """As `--metric` takes it; tables of others, without transfer_id, have the protocol in its place."""
        last = f"{self.transfer_id}:{self.protocol}" if self.transfer_id and self.shared else self.transfer_id
        return f"transfer:{self.target}:{self.shots}:{self.metric}:{last or self.protocol}"

    def answers_to(self, metric: str) -> bool:
        """Whether `metric` is its name, or the name's beginning up to shots or further; targets may hold colons."""
        return f"{self.name}:".startswith(f"{metric}:") and len(metric) >= len(f"transfer:{self.target}:{self.shots}")

    @property
    def kind(self) -> str:
        """`5-shot`, `fine-tuned`, `linear probe`; with the protocol's name where several have as many shots."""
        kind = KINDS.get(self.protocol, f"{self.shots}-shot" if self.shots else self.protocol)
        return f"{kind} {self.protocol}" if self.shared and self.protocol not in (*KINDS, kind) else kind

    @property
    def measure(self) -> str:
        """`top-1`, `mean per-class accuracy`."""
        return METRIC_NAMES.get(self.metric, self.metric)

    @property
    def title(self) -> str:
        """`digits, 5-shot`, with the metric unless it is top-1, and the settings' name where there are several."""
        measure = "" if self.metric == "top1" else f", {self.measure}"
        return f"{self.target}, {self.kind}{measure}" + (f" ({self.settings})" if self.settings else "")

    @property
    def slug(self) -> str:
        """For names of files: no other evaluation's, whatever characters and whatever length names from data have."""
        parts = [self.target, self.kind.replace("-shot", "shot").replace(" ", "_").replace("-", "_")]
        name = "_".join(parts + [self.metric] * (self.metric != "top1") + [self.settings] * bool(self.settings))
        safe = re.sub(r"[^A-Za-z0-9-]+", "_", name)[:LONGEST_SLUG].strip("_")
        return safe if safe == name else f"{safe}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def raw_pixels(self, transfer: pd.DataFrame) -> pd.Series:
        """Accuracies of its classifier on raw pixels, one a support set: the same whatever run they are written to."""
        rows = self.rows(transfer)
        return rows[rows["features"] == "raw_pixels"].drop_duplicates("support_seed")["value"].astype(float)

    def rows(self, transfer: pd.DataFrame) -> pd.DataFrame:
        """Its rows, baselines included."""
        wanted = (transfer[key] == value for key, value in zip(KEYS, self, strict=False))
        keep = pd.Series(True, index=transfer.index)
        for matches in wanted:
            keep &= matches.astype(bool)
        return transfer[keep]


def evaluations(transfer: pd.DataFrame) -> list[Evaluation]:
    """Every evaluation of trained networks, in the table's order."""
    pretrained = transfer[transfer["features"] == "pretrained"]
    found = [
        (str(target), str(protocol), int(shots), str(metric), str(transfer_id))
        for target, protocol, shots, metric, transfer_id in pretrained[KEYS].drop_duplicates().itertuples(index=False)
    ]
    apart = [row[:-1] for row in found]
    alike = [(row[0], *row[2:]) for row in found]
    return [
        Evaluation(*row, row[-1] if apart.count(row[:-1]) > 1 else "", alike.count((row[0], *row[2:])) > 1)
        for row in found
    ]


def title_of(found: list[Evaluation]) -> str:
    """`digits, 5-shot`, `average of 5 targets, fine-tuned (mean per-class accuracy on pets, flowers)`."""
    if len(found) == 1:
        return found[0].title
    others = dict.fromkeys(item.measure for item in found if item.metric != "top1")
    by = [f"{measure} on {', '.join(item.target for item in found if item.measure == measure)}" for measure in others]
    return average_title(found) + (f" ({'; '.join(by)})" if by else "")


def average_title(found: list[Evaluation]) -> str:
    """`average of 5 targets, 5-shot`."""
    return f"average of {len(found)} targets, {found[0].kind}"


def axis_of(found: list[Evaluation]) -> str:
    """`Top-1 [%], digits, 5-shot`; `Accuracy [%], …` of an average over targets that differ in metric."""
    measures = {item.measure for item in found}
    measure = measures.pop() if len(measures) == 1 else "accuracy"
    name = found[0]._replace(metric="top1").title if len(found) == 1 else average_title(found)
    return f"{measure[0].upper()}{measure[1:]} [%], {name}"


def choose(transfer: pd.DataFrame, metric: str, own: list[str]) -> Evaluation:
    """The evaluation that `transfer:TARGET:SHOTS[:METRIC[:TRANSFER_ID[:PROTOCOL]]]` names.

    Of several, top-1 before other metrics, then the study's own (`own`: transfer_ids) before later ones.
    Raises ValueError that says what there is, when none or still several answer; NothingEvaluated where none could.
    """
    everything = evaluations(transfer)
    found = [item for item in everything if item.answers_to(metric)]
    if not found and not re.fullmatch(r"transfer:.+:\d+(:[^:]*){0,3}", metric):
        raise ValueError(f"metric {metric}: write transfer:TARGET:SHOTS, such as transfer:digits:5")
    if not everything:
        raise NothingEvaluated(metric)
    found = [item for item in found if item.metric == "top1"] or found
    found = [item for item in found if item.transfer_id in own] or found
    if len(found) == 1:
        return found[0]
    names = ", ".join(item.name for item in found or everything)
    problem = "transfer has several such evaluations" if found else "transfer has no such rows"
    raise ValueError(f"metric {metric}: {problem}; there are: {names}")


def average_of(transfer: pd.DataFrame, shots: str, own: list[str]) -> list[Evaluation]:
    """The evaluations that `transfer:average:SHOTS` is the mean of: one a target, all by one protocol.

    Pets and Flowers-102 by mean per-class accuracy where that was measured, as in the paper; others by top-1.

    Raises ValueError with fewer than two targets, where a target has several, or where protocols differ;
    NothingEvaluated where there is none at all.
    """
    everything = evaluations(transfer)
    if not everything and shots.isdecimal():
        raise NothingEvaluated(f"transfer:{AVERAGE}:{shots}")
    everything = [item for item in everything if str(item.shots) == shots]
    targets = dict.fromkeys(item.target for item in everything)
    if len(targets) < 2:
        raise ValueError(f"metric transfer:average:{shots}: {len(targets)} target(s) at {shots} shots; two are needed")
    papers = {item.target: f":{item.metric}" for item in everything if AVERAGE_5.get(item.target) == item.metric}
    found = [choose(transfer, f"transfer:{target}:{shots}{papers.get(target, '')}", own) for target in targets]
    different = [item for item in found if item.protocol != found[0].protocol]
    if different:
        raise ValueError(
            f"metric transfer:average:{shots}: an average is over one protocol; there are {found[0].name} and "
            f"{different[0].name}"
        )
    return found
