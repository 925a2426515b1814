"""`harness transfer`: more targets and protocols for finished runs, or for a checkpoint from elsewhere; no retraining.

    harness transfer pocket transfer=openclipart,mnist               every finished run of a study
    harness transfer RUN_FOLDER transfer=elpv transfer.protocol=finetune
    harness transfer model=vit_b16 checkpoint=ViT-B_16.npz transfer=pets

One file a target and protocol in the run's folder; what is there already is shown, not computed again.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryFile
from typing import Any

import torch
from safetensors import safe_open
from timm.models import get_pretrained_cfg

from harness.cell import resolve, transfer_id
from harness.compose import compose
from harness.config import ModelConfig, TrainConfig, TransferConfig
from harness.data.manifest import Dataset, dataset_folder, open_dataset
from harness.data.on_demand import open_or_pack
from harness.errors import ConfigError, DatasetError, HarnessError
from harness.experiment import RESTORE, device_of, prepare_torch, run_transfer, subject_of
from harness.models.build import build_model
from harness.models.checkpoints import Imported, import_checkpoint
from harness.models.compute import count
from harness.models.precision import attention_path
from harness.models.precision import resolve as resolve_precision
from harness.paths import conf_dir, data_root, has_option, runs_root
from harness.run_folder import read_json, read_result, write_json
from harness.run_lock import lock
from harness.stored_transfer import damage, why_again
from harness.study import plan as planning
from harness.submission import EXIT_REQUEUE, load_frozen, transfer_file
from harness.train import checkpoint
from harness.train.distributed import ALONE, Ranks, joined
from harness.train.loop import StoppedError, best_path
from harness.transfer.check import check_transfer
from harness.transfer.evaluate import in_turn
from harness.transfer.metrics import average_5
from harness.transfer.subject import Subject


def transfer_command(what: str | None, overrides: list[str]) -> int:
    """Evaluate, print, and return 1 where a run could not be evaluated."""
    targets, options, others = split_overrides(overrides)
    configs = [target_config(name, options) for name in targets]
    for config in configs:
        check_transfer(config)
    check_packed(configs)
    files = [word.partition("=")[2] for word in others if word.startswith("checkpoint=")]
    if files:
        if what is not None:
            raise ConfigError(f"harness transfer {what} checkpoint=…: either runs, or one checkpoint with its model=")
        if not files[-1]:
            raise ConfigError("checkpoint=: which file?")
        words = [word for word in others if not word.startswith("checkpoint=")]
        if not any(word.startswith("model=") for word in words):
            raise ConfigError("harness transfer checkpoint=…: of which network? model=NAME")
        return transfer_imported(Path(files[-1]), words, configs)
    if what is None:
        raise ConfigError("harness transfer: name a study or a run folder, or give model=… checkpoint=FILE")
    return transfer_runs(run_folders(what, others), configs)


def check_packed(configs: list[TransferConfig]) -> None:
    """Raise DatasetError naming every target that is not packed, before any is evaluated."""
    problems = []
    for config in configs:
        try:
            open_or_pack(config.data)
        except DatasetError as error:
            problems.append(str(error))
    if problems:
        raise DatasetError("\n".join(problems))


def split_overrides(overrides: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Targets of `transfer=a,b,@list`; the options `transfer.KEY=…`; everything else."""
    targets: list[str] = []
    for word in overrides:
        if word.startswith("transfer="):
            for name in filter(None, word.partition("=")[2].strip("[]").split(",")):
                targets += listed(name[1:]) if name.startswith("@") else [name]
    options = [word for word in overrides if word.lstrip("+").startswith("transfer.")]  # + adds a key: image_sizes.NAME
    others = [word for word in overrides if not word.startswith("transfer=") and word not in options]
    if not targets:
        raise ConfigError("harness transfer: which target? transfer=NAME, several with commas, @vtab1k for a list")
    return targets, options, others


def listed(name: str) -> list[str]:
    """Names in conf/transfer/lists/NAME.txt, or in a file of the user's; one a line."""
    path = conf_dir() / "transfer" / "lists" / f"{name}.txt"
    path = path if path.is_file() else Path(name)
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except OSError as error:
        raise ConfigError(f"transfer=@{name}: neither a list in conf/transfer/lists nor a file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"transfer=@{name}: not a text file in UTF-8") from error
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))


def target_config(name: str, options: list[str]) -> TransferConfig:
    """conf/transfer/NAME.yaml with the options; a name without a file is a packed set of the user's."""
    own = [] if has_option("transfer", name) else packed_target(name)
    try:
        return compose([*(own or [f"transfer={name}"]), *options]).transfer
    except ConfigError as error:
        if "is not a ListConfig" in str(error):
            raise ConfigError(f"{error} A list is written in brackets: KEY=[A,B]") from error
        raise


def packed_target(name: str) -> list[str]:
    """Overrides for a set below the data root; none where there is no such set, so that the error names near ones."""
    if not (data_root() / name / "manifest.json").is_file() and not name.startswith("vtab_"):
        return []
    return ["transfer=folder", f"transfer.name={name}"]


def run_folders(what: str, others: list[str]) -> list[Path]:
    """A run's folder, or those of the finished and unfinished runs of a study that the overrides narrow."""
    folder = Path(what)
    for path in (folder, runs_root() / what):
        if (path / "config.yaml").is_file():
            if others:
                raise ConfigError(
                    f"{others[0]}: a run is what it is; only transfer=… and transfer.KEY=… go with {what}"
                )
            return [path]
    if "/" in what and not what.endswith(".yaml"):
        raise ConfigError(f"harness transfer {what}: no run's folder (it holds no config.yaml), and no study's name")
    plan = planning.make(what, others)
    return [plan.folder / cell.run_id for cell in plan.selected]


def transfer_runs(folders: list[Path], configs: list[TransferConfig]) -> int:
    """Each target for each run, a failure in one leaving the others alone."""
    failed = 0
    timeout = load_frozen(folders[0]).config.loop.rank_timeout_seconds if is_run(folders[0]) else 600.0
    kind = load_frozen(folders[0]).config.device.kind if is_run(folders[0]) else "cpu"
    with joined(timeout, kind) as ranks:
        for folder in folders:
            try:
                problem = transfer_run(folder, configs, ranks)
            except StoppedError as stop:
                print(f"{folder.name}: {stop}; the same command goes on", file=sys.stderr)
                return EXIT_REQUEUE
            except HarnessError as error:
                problem = str(error)
            if problem and ranks.first:
                print(f"{folder.name}: {problem}", file=sys.stderr)
            failed += problem is not None
            if ranks.first:
                show(folder, configs)
    return 1 if failed else 0


def is_run(folder: Path) -> bool:
    """Whether a run was submitted here."""
    return (folder / "config.yaml").is_file()


def transfer_run(folder: Path, configs: list[TransferConfig], ranks: Ranks) -> str | None:
    """Every target for one run; None, or why it cannot be done."""
    if not is_run(folder):
        return "not started"
    frozen = load_frozen(folder)
    if read_result(folder, frozen.config_hash) is None:
        return "not finished; `harness run` goes on with it"
    files = [transfer_file(folder, transfer_id(config)) for config in configs]
    todo = [f"{path.name} is {reason}" for path in files if (reason := why_again(path))]
    if not todo:
        return None
    if not best_path(folder).exists():
        return f"{best_path(folder)} is not here: transfer needs the checkpoint ({todo[0]}); {RESTORE}"
    config = frozen.config
    dataset = open_dataset(dataset_folder(config.data, data_root()), allow_shell=config.data.allow_shell)
    cell = resolve(config, dataset)
    if cell.config_hash != frozen.config_hash:
        return f"the data set {dataset.name} or harness changed since this run was submitted"
    device = device_of(config.device.kind, ranks)

    def evaluate() -> str | None:
        with attention_path(cell.attention):
            subject = subject_of(folder, cell, dataset, device, ranks)
            return each_target(folder, configs, subject, dataset)

    return locked(folder, config, ranks, evaluate)


def each_target(folder: Path, configs: list[TransferConfig], subject: Subject, dataset: Dataset | None) -> str | None:
    """Evaluate every target, one that cannot be leaving the others alone; None, or what is wrong with those."""
    problems = []
    try:
        in_turn(subject.ranks, lambda: check_writable(transfer_file(folder, "").parent))
    except HarnessError as error:
        return str(error)
    for target in configs:
        try:
            run_transfer(folder, target, transfer_id(target), subject, dataset)
        except StoppedError:
            raise
        except HarnessError as error:
            problems.append(str(error))
    return "\n".join(problems) or None


def check_writable(folder: Path) -> None:
    """Raise HarnessError, before anything is computed, where results could not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise HarnessError(f"{folder}: results cannot be written there ({error.strerror})") from error


def locked(folder: Path, config: TrainConfig, ranks: Ranks, evaluate: Callable[[], str | None]) -> str | None:
    """What `evaluate()` returns, called by all ranks while the first holds the folder's lock."""
    prepare_torch(config.launcher.threads)
    busy = "another process works on it"
    if not ranks.first:
        return busy if ranks.any(False) else evaluate()
    with lock(folder) as mine:
        return busy if ranks.any(not mine) else evaluate()


def transfer_imported(path: Path, words: list[str], configs: list[TransferConfig]) -> int:
    """Targets for a network from a file; pre-training images are not known.

    The folder is named by a digest of everything that changes a result: the file, the network, the seed of its
    untrained twin, precision and attention path.
    """
    config = compose(words)
    found = import_checkpoint(path, config.model)
    check_ours(path)
    cost = count(found.config, max(1, found.num_classes), found.channels, config.convention)
    precision, attention = resolve_precision(
        config.device, cost, precision=config.precision, attention=config.attention
    )
    warn_of_other_pixels(found.config)
    about = {"file_sha256": found.sha256, "model": asdict(found.config), "untrained_seed": config.seed}
    about |= {"precision": precision, "attention": attention}
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    folder = runs_root() / "imported" / f"{found.config.name}-{name}"
    write_json(folder / "checkpoint.json", {"file": path.name, **about})

    def evaluate() -> str | None:
        with attention_path(attention):
            return each_target(folder, configs, imported_subject(found, config, precision, attention), None)

    problem = locked(folder, config, ALONE, evaluate)
    show(folder, configs)
    if problem:
        raise HarnessError(f"{folder}: {problem}")
    return 0


def warn_of_other_pixels(model: ModelConfig) -> None:
    """Say on stderr when timm's own weights of this model saw other pixel values than harness gives."""
    known = get_pretrained_cfg(model.name) if model.timm else None
    if known is not None and {*known.mean, *known.std} != {0.5}:
        print(
            f"warning: timm's weights of {model.name} were trained on images with mean {known.mean} and deviation "
            f"{known.std}; harness gives pixels in [-1, 1], so such weights score lower here than they can",
            file=sys.stderr,
        )


def check_ours(path: Path) -> None:
    """Raise HarnessError for a checkpoint of harness whose content is not what its own digest says."""
    if path.suffix != ".safetensors":
        return
    with safe_open(path, framework="pt") as file:
        has_digest = "head" in (file.metadata() or {})
    if has_digest:
        checkpoint.load(path)


def imported_subject(found: Imported, config: TrainConfig, precision: str, attention: str) -> Subject:
    """The network of a file; its untrained twin has random weights of config.seed."""

    def untrained() -> dict[str, torch.Tensor]:
        torch.manual_seed(config.seed)
        return build_model(found.config, found.num_classes, found.channels).state_dict()

    return Subject(
        config=found.config,
        num_classes=found.num_classes,
        channels=found.channels,
        trained=lambda: found.tensors,
        untrained=untrained,
        precision=precision,
        attention=attention,
        device=device_of(config.device.kind, ALONE),
        loop=config.loop,
    )


def show(folder: Path, configs: list[TransferConfig]) -> None:
    """One line a target, features, shots and metric: mean, deviation over seeds; and the average of Table 6.

    A file that is damaged still was not evaluated again, which has been said.
    """
    averages: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for path in (transfer_file(folder, transfer_id(config)) for config in configs):
        content = read_json(path)
        if content is None or damage(content, path.stem):
            continue
        lines, values = shown(folder.name, content)
        print("\n".join(lines))
        for (protocol, shots, target, metric), value in values.items():
            averages.setdefault((protocol, shots), {})[target, metric] = value
    for (protocol, shots), by_metric in averages.items():
        average = average_5(by_metric)
        if average is not None:
            print(f"{folder.name}  average-5        {protocol} {shots or ''}  {100 * average:.2f}")


def shown(run: str, content: dict[str, Any]) -> tuple[list[str], dict[tuple[str, int, str, str], float]]:
    """Lines of one transfer file, and of the pre-trained network values by (protocol, shots, target, metric)."""
    lines, own = [], {}
    for (target, protocol, features, shots, metric), values in grouped(content["rows"]):
        spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
        kind = f"{shots}-shot" if shots else protocol
        lines.append(f"{run}  {target:16s} {kind:13s} {features:11s} {metric:14s} {100 * mean(values):6.2f}{spread}")
        if features == "pretrained":
            own[protocol, shots, target, metric] = mean(values)
    target = content.get("target") or {}  # files of the first days have none
    names = target.get("shared_class_names")
    if names:
        some = ", ".join(names[:10]) + (" …" if len(names) > 10 else "")
        lines.append(f"  {target['name']}: {len(names)} class names are among those of pre-training: {some}")
    return lines, own


def grouped(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[Any, ...], list[float]]]:
    """Values over seeds, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("target", "protocol", "features", "shots", "metric"))
        groups.setdefault(key, []).append(row["value"])
    yield from groups.items()
