"""The command line: one short function a command; heavy imports inside, so that --help answers at once."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import __version__
from harness.data_cli import add_data
from harness.errors import ConfigError, HarnessError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

DESCRIPTION = """\
Data-scaling experiments for vision backbones: real images to a conclusion.

  harness data pack glyphs      images become one shuffled sequence on disk
  harness run pocket            every run of the study; the same command resumes
  harness report pocket         figures, a page, the verdict

Roots: $HARNESS_DATA (default ./data) and $HARNESS_RUNS (default ./runs). `--config-dir DIR` (or $HARNESS_CONFIG_DIR),
with any command, puts models, data, recipes and studies (DIR/model/… DIR/sweeps/…) of yours beside ours.
"""
INSTANCE_HELP = "data=NAME: another instance of the study than on its own data"
OVERRIDES_HELP = "key=value in Hydra's grammar: model=vit_pocket,resnet_pocket subset=1k narrow, data=NAME switches"


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `harness`. User's mistakes are one paragraph and exit code 2."""
    words = take_config_dir(list(sys.argv[1:] if arguments is None else arguments))
    if is_completion_query(words):
        return completion(words)
    if words[:1] == ["train"]:  # a Hydra application of its own: its flags are not ours to parse
        return guarded(lambda: train(words[1:]))
    options = parse(words)
    if not hasattr(options, "action"):
        parser().print_help()
        return 2
    return guarded(lambda: options.action(options))


def take_config_dir(words: list[str]) -> list[str]:
    """`--config-dir DIR`, wherever it stands: kept for this process and its runs; returns the other words."""
    rest: list[str] = []
    reader = iter(words)
    for word in reader:
        name, equals, value = word.partition("=")
        if name not in ("--config-dir", "-cd"):
            rest.append(word)
            continue
        folder = value if equals else next(reader, "")
        os.environ["HARNESS_CONFIG_DIR"] = str(Path(folder).resolve()) if folder else "--config-dir needs a folder"
    return rest


def is_completion_query(words: list[str]) -> bool:
    """What shells ask on TAB, in our form and in Hydra's (`-sc query=bash`)."""
    return words == ["completion", "--query"] or (len(words) > 1 and words[-2] in ("-sc", "--shell-completion"))


def parse(words: list[str]) -> argparse.Namespace:
    """Overrides may stand before and after options, which argparse alone does not allow."""
    root = parser()
    options, extra = root.parse_known_args(words)
    unknown = [word for word in extra if word.startswith("-") or "=" not in word]
    if unknown or (extra and not hasattr(options, "overrides")):
        root.error(f"unrecognized arguments: {' '.join(unknown or extra)}")
    if extra:
        options.overrides = [*options.overrides, *extra]
    return options


def guarded(action: Callable[[], int]) -> int:
    """Run a command; print a HarnessError as text."""
    try:
        return action()
    except HarnessError as error:
        print(f"harness: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def parser() -> argparse.ArgumentParser:
    """Every command with its help."""
    root = argparse.ArgumentParser(
        prog="harness", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    root.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND")
    add_data(commands)
    commands.add_parser("train", help="one run: harness train model=vit_pocket subset=10k seed=3 (a Hydra app)")
    add_study_commands(commands)
    add_results_commands(commands)
    add_flops(commands)
    completion = commands.add_parser("completion", help='TAB completion: eval "$(harness completion bash)"')
    completion.add_argument("shell", nargs="?", choices=("bash", "zsh", "fish"), default="bash")
    completion.set_defaults(action=completion_script)
    return root


def add_study_commands(commands: "Commands") -> None:
    """harness plan|run|calibrate|status"""
    plan = commands.add_parser("plan", help="what a study will cost; nothing is started")
    add_study_arguments(plan)
    plan.add_argument("--csv", action="store_true")
    plan.add_argument("--json", action="store_true")
    plan.set_defaults(action=study_plan)

    run = commands.add_parser("run", help="start what is not finished; the same command resumes")
    add_study_arguments(run)
    run.add_argument("--dry-run", action="store_true", help="say what would be done with each run; start nothing")
    run.add_argument("--only", choices=("failed",), help="failed runs alone, also those that are not tried any more")
    run.add_argument("--rerun", action="store_true", help="from scratch; finished folders are set aside, not deleted")
    run.add_argument("--max-failures", type=int, metavar="N", help="start no more runs once N have failed")
    run.add_argument("--detach", action="store_true", help="go on in the background; output in launcher.log")
    run.set_defaults(action=study_run)

    calibrate = commands.add_parser("calibrate", help="time a few real steps of each model on this machine, for plan")
    add_study_arguments(calibrate)
    calibrate.set_defaults(action=study_calibrate)

    status = commands.add_parser("status", help="finished, running, waiting, failed")
    add_study_arguments(status, INSTANCE_HELP)
    status.add_argument("--watch", action="store_true", help="again and again until nothing is running or waiting")
    status.set_defaults(action=study_status)


def add_results_commands(commands: "Commands") -> None:
    """harness results|transfer|report|analyze|sync"""
    results = commands.add_parser("results", help="tidy tables: runs, transfer, curves")
    add_study_arguments(results, INSTANCE_HELP)
    results.add_argument("--out", type=Path, required=True, help="folder to write to")
    results.add_argument("--format", choices=("csv", "parquet"), default="csv")
    results.set_defaults(action=study_results)

    transfer = commands.add_parser("transfer", help="more targets and protocols for runs, or for a checkpoint")
    transfer.add_argument("what", nargs="?", help="a study, or a run's folder; none with model=NAME checkpoint=FILE")
    transfer.add_argument("overrides", nargs="*", help="transfer=NAME,NAME transfer.protocol=finetune subset=10k …")
    transfer.set_defaults(action=run_transfer)

    report = commands.add_parser("report", help="figures, a self-contained page and the verdict")
    add_study_arguments(report, INSTANCE_HELP)
    report.set_defaults(action=study_report)

    sync = commands.add_parser("sync", help="metrics of runs to Weights & Biases, under each run's id")
    sync.add_argument("runs", nargs="+", metavar="RUN", help="a run's folder, or a folder of runs")
    sync.set_defaults(action=sync_runs)

    analyze = commands.add_parser("analyze", help="the same analysis on any results table, or on the paper's numbers")
    analyze.add_argument("table", nargs="?", type=Path, help="folder of tables, a runs table, or a study's run folder")
    analyze.add_argument("--paper", action="store_true", help="the paper's Tables 5 and 6 and Figure 4, digitised")
    analyze.add_argument(
        "--pairs", action="append", help="MODEL:MODEL,… in place of the study's own, ViT-B/32:ResNet50x1"
    )
    analyze.add_argument("--x", choices=("images", "exaflops", "device_days"), help="of the fits (default: images)")
    analyze.add_argument("--metric", help="a column of runs, or transfer:TARGET:SHOTS (default: the study's)")
    analyze.add_argument("--json", action="store_true")
    analyze.set_defaults(action=results_analyze)


def add_flops(commands: "Commands") -> None:
    """harness flops"""
    flops = commands.add_parser("flops", help="parameters, forward MACs and training FLOPs per image of models")
    flops.add_argument("models", nargs="*", help="names in conf/model, or timm/NAME; none = all of conf/model")
    flops.add_argument("--images", type=float, help="images of one epoch; with --epochs gives exaFLOPs: 303e6")
    flops.add_argument("--epochs", type=float, default=1.0)
    flops.add_argument(
        "--convention", choices=("executed", "paper"), default="executed", help="paper: padding is not counted"
    )
    flops.add_argument("--image-size", type=int, help="pixels, in place of each model's own")
    flops.add_argument("--classes", type=int, default=1000, help="width of the head; 0 = none")
    flops.add_argument("--channels", type=int, default=3)
    flops.add_argument("--table6", action="store_true", help="check against the paper's Tables 6 and 1")
    flops.add_argument("--csv", action="store_true")
    flops.add_argument("--json", action="store_true")
    flops.set_defaults(action=models_flops)


def add_study_arguments(command: argparse.ArgumentParser, overrides: str = OVERRIDES_HELP) -> None:
    """STUDY and overrides."""
    command.add_argument("study", help="a name in sweeps/, or a path to a study file (.yaml)")
    command.add_argument("overrides", nargs="*", help=overrides)


def completion_script(options: argparse.Namespace) -> int:
    from harness.completion import script

    print(script(options.shell))
    return 0


def completion(words: list[str]) -> int:
    """Answer TAB, or print the script for Hydra's own `harness train -sc install=bash`."""
    from harness.completion import query, script

    action, _, shell = words[-1].partition("=")
    if action == "install":
        print(script(shell))
    elif action != "uninstall":
        print("\n".join(query(os.environ.get("COMP_LINE", ""), os.environ.get("COMP_POINT"), parser())))
    return 0


def train(overrides: list[str]) -> int:
    from harness.train_command import train_command

    return train_command(overrides)


def models_flops(options: argparse.Namespace) -> int:
    from harness.models.commands import flops_command

    return flops_command(
        options.models,
        images=options.images,
        epochs=options.epochs,
        convention=options.convention,
        table6=options.table6,
        csv=options.csv,
        json=options.json,
        image_size=options.image_size,
        classes=options.classes,
        channels=options.channels,
    )


def study_plan(options: argparse.Namespace) -> int:
    from harness.study.commands import plan_command

    return plan_command(options.study, options.overrides, options.csv, options.json)


def study_run(options: argparse.Namespace) -> int:
    from harness.study.run_command import RunOptions, run_command

    flags = RunOptions(options.dry_run, options.only, options.rerun, options.max_failures, options.detach)
    return run_command(options.study, options.overrides, flags)


def study_calibrate(options: argparse.Namespace) -> int:
    from harness.study.commands import calibrate_command

    return calibrate_command(options.study, options.overrides)


def study_status(options: argparse.Namespace) -> int:
    from harness.study.status_command import status_command

    return status_command(options.study, options.overrides, options.watch)


def study_results(options: argparse.Namespace) -> int:
    from harness.study.commands import results_command

    return results_command(options.study, options.overrides, options.out, options.format)


def run_transfer(options: argparse.Namespace) -> int:
    from harness.transfer_command import transfer_command

    if options.what is not None and "=" in options.what:
        return transfer_command(None, [options.what, *options.overrides])
    return transfer_command(options.what, options.overrides)


def study_report(options: argparse.Namespace) -> int:
    from harness.study.commands import report_command

    return report_command(options.study, options.overrides)


def sync_runs(options: argparse.Namespace) -> int:
    from harness.sync_command import sync_command

    return sync_command(options.runs)


def results_analyze(options: argparse.Namespace) -> int:
    from harness.study.commands import analyze_command

    if options.paper == (options.table is not None):
        raise ConfigError("harness analyze: name a table, or --paper, and not both")
    given = [name for name in ("pairs", "x", "metric") if getattr(options, name) is not None]
    if options.paper and given:
        raise ConfigError(
            f"harness analyze --paper: --{given[0]} is for a table of yours; leave it out: the paper's numbers are "
            "compared as the paper compares them"
        )
    pairs = None if options.pairs is None else ",".join(options.pairs)
    return analyze_command(options.table, pairs, options.x or "images", options.metric, options.json)


if __name__ == "__main__":
    sys.exit(main())
