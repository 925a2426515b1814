"""`harness data`: its part of the command line; heavy imports inside the actions."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import ConfigError

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_data(commands: "Commands") -> None:
    """harness data fetch|pack|index|check|show|keys"""
    data = commands.add_parser("data", help="pack images into shuffled shards; verify, describe, list them")
    actions = data.add_subparsers(title="actions", metavar="ACTION", required=True)

    fetch = actions.add_parser("fetch", help="raw files of a named set, by the npm, apt or pip client or torchvision")
    fetch.add_argument("name", help="a name in conf/data that says where it comes from, such as icons, mnist")
    fetch.add_argument("overrides", nargs="*", help="data.name=NAME …")
    fetch.set_defaults(action=data_fetch)

    pack = actions.add_parser("pack", help="raw images to shards + manifest + index, shuffled once")
    pack.add_argument("name", help="a name in conf/data, such as glyphs, fashion_mnist, folder")
    pack.add_argument("overrides", nargs="*", help="data.samples=1M data.fonts=DIR data.path=DIR data.name=mine …")
    pack.add_argument("--workers", type=int, default=None, help="processes (default: one a core)")
    pack.add_argument("--force", action="store_true", help="replace a data set of another configuration")
    pack.set_defaults(action=data_pack)

    index = actions.add_parser("index", help="adopt shards that someone else packed, where they lie")
    index.add_argument("pattern", help="of the training shards: 'DIR/train-{0000..0146}.tar', 'https://…/{00..31}.tar'")
    index.add_argument("overrides", nargs="*", help="data.name=NAME (needed) data.val_samples=2%% …")
    index.add_argument("--val", help="pattern of the validation shards (default: data.val_samples of the first)")
    index.add_argument("--test", help="pattern of the test shards (default: data.test_samples of the first)")
    index.add_argument("--label", help="extension or .json field that holds the class (default: cls, label); none")
    index.add_argument("--classes", type=Path, help="file of class names, one a line, in the order of their numbers")
    index.add_argument("--no-decode", action="store_true", help="do not try every image")
    index.add_argument("--workers", type=int, default=None, help="processes (default: one a core)")
    index.add_argument("--force", action="store_true", help="replace an adopted set of this name")
    index.set_defaults(action=data_index)

    check = actions.add_parser("check", help="read everything again and name each shard and key at fault")
    add_dataset_arguments(check)
    check.set_defaults(action=data_check)

    show = actions.add_parser("show", help="sizes, classes, balance, a contact sheet")
    add_dataset_arguments(show)
    show.add_argument("--subset", help="class counts of a subset: 1k, 10%%")
    show.add_argument("--draw", type=int, default=0)
    show.add_argument("--sheet", type=Path, help="write a contact sheet (PNG)")
    show.set_defaults(action=data_show)

    keys = actions.add_parser("keys", help="sample keys in packed order, or in the order an epoch visits them")
    add_dataset_arguments(keys)
    keys.add_argument("--split", default="train")
    keys.add_argument("--subset", default="100%", help="size of the subset: 1k, 10%% (default: all)")
    keys.add_argument("--draw", type=int, default=0)
    keys.add_argument("--seed", type=int, help="with --epoch: training order instead of packed order")
    keys.add_argument("--epoch", type=int)
    keys.add_argument("--order", default="global", help="with --seed and --epoch: global (default) or block")
    keys.set_defaults(action=data_keys)


def add_dataset_arguments(command: argparse.ArgumentParser) -> None:
    """DATASET, and whether its shards may be behind shell commands."""
    command.add_argument("dataset", help="a name below the data root, or a folder")
    words = "data.allow_shell=true lets `pipe:` URLs run their commands"
    command.add_argument("overrides", nargs="*", type=shell_override, help=words)


def data_fetch(options: argparse.Namespace) -> int:
    from harness.compose import compose
    from harness.data.fetch import fetch

    folder = fetch(compose([f"data={options.name}", *options.overrides]).data)
    print(f"{folder}: fetched; go on with: harness data pack {options.name}")
    return 0


def data_pack(options: argparse.Namespace) -> int:
    from harness.compose import compose
    from harness.data.commands import pack_command

    return pack_command(compose([f"data={options.name}", *options.overrides]).data, options.workers, options.force)


def data_index(options: argparse.Namespace) -> int:
    from harness.compose import compose
    from harness.data.adopt import Adoption, adopted_patterns, read_classes
    from harness.data.commands import index_command

    what = Adoption(
        adopted_patterns(options.pattern, options.val, options.test),
        options.label,
        read_classes(options.classes) if options.classes else None,
        not options.no_decode,
        options.workers or os.cpu_count() or 1,
        options.force,
    )
    return index_command(compose(["data=foreign", *options.overrides]).data, what)


def data_check(options: argparse.Namespace) -> int:
    from harness.data.commands import check_command

    return check_command(dataset_path(options.dataset), allow_shell(options.overrides))


def data_show(options: argparse.Namespace) -> int:
    from harness.data.commands import show_command

    return show_command(
        dataset_path(options.dataset), options.subset, options.draw, options.sheet, allow_shell(options.overrides)
    )


def data_keys(options: argparse.Namespace) -> int:
    from harness.data.commands import KeyQuery, keys_command

    query = KeyQuery(options.split, options.subset, options.draw, options.seed, options.epoch, options.order)
    return keys_command(dataset_path(options.dataset), query, allow_shell(options.overrides))


def shell_override(text: str) -> str:
    """The only field that reading a set depends on; the rest is in its manifest. Any other is a usage error."""
    if text not in ("data.allow_shell=true", "data.allow_shell=false"):
        raise argparse.ArgumentTypeError(f"{text!r} (known here: data.allow_shell=true)")
    return text


def allow_shell(overrides: list[str]) -> bool:
    """Whether `pipe:` URLs may run their commands."""
    try:
        return [shell_override(text) for text in overrides][-1:] == ["data.allow_shell=true"]
    except argparse.ArgumentTypeError as error:  # where it stood behind an option
        raise ConfigError(str(error)) from error


def dataset_path(text: str) -> Path:
    """A folder as given, or a name below the data root."""
    from harness.paths import data_root

    return Path(text) if (Path(text) / "manifest.json").is_file() else data_root() / text
