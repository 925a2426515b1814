"""TAB completion: commands, options, studies; and for overrides Hydra's own engine, with the user's files too.

`eval "$(harness completion bash)"`; Hydra's `harness train -sc install=bash` prints the same script.
"""

import argparse
from collections.abc import Iterable

from harness.errors import ConfigError, HarnessError

BASH = """\
_harness() {
    COMPREPLY=($(COMP_LINE="$COMP_LINE" COMP_POINT="$COMP_POINT" harness completion --query 2> /dev/null))
}
COMP_WORDBREAKS=${COMP_WORDBREAKS//=}
complete -o nospace -o default -F _harness harness"""
ZSH = "autoload -Uz bashcompinit && bashcompinit\n" + BASH
FISH = "complete -c harness -f -a '(COMP_LINE=(commandline -cp) harness completion --query 2> /dev/null)'"
STUDY_COMMANDS = ("plan", "run", "status", "results", "report", "calibrate", "transfer")


def script(shell: str) -> str:
    """What a shell evaluates once. Raises ConfigError for a shell that we do not know."""
    scripts = {"bash": BASH, "zsh": ZSH, "fish": FISH}
    if shell not in scripts:
        raise ConfigError(f"{shell}: completion is for {', '.join(scripts)}")
    return scripts[shell]


def query(line: str, point: str | None, parser: argparse.ArgumentParser) -> list[str]:
    """Words that the last word of the line may become."""
    text = line[: int(point)] if point and point.isdigit() else line
    words = text.split()[1:]
    current = "" if not words or text.endswith(" ") else words.pop()
    return sorted(word for word in candidates(words, current, parser) if word.startswith(current))


def candidates(words: list[str], current: str, parser: argparse.ArgumentParser) -> Iterable[str]:
    """Everything that may stand where `current` begins, after `words`."""
    command = parser
    rest = list(words)
    while rest and rest[0] in subcommands(command):
        command = subcommands(command)[rest.pop(0)]
    if subcommands(command):
        return subcommands(command)
    if current.startswith("-"):
        return [option for action in command._actions for option in action.option_strings]
    name = words[0] if words else ""
    positional = [word for word in rest if not word.startswith("-") and "=" not in word]
    if name in STUDY_COMMANDS and not positional and "=" not in current:
        from harness.study.spec import names

        return names()
    return overrides(current) if name in ("train", "data", *STUDY_COMMANDS) else []


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Commands below a parser, by name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def overrides(current: str) -> list[str]:
    """Groups, options and keys that Hydra would complete."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.plugins.completion_plugin import DefaultCompletionPlugin

    from harness.compose import initialized, search_path

    try:
        with initialized():
            hydra = GlobalHydra.instance().hydra
            assert hydra is not None
            return DefaultCompletionPlugin(hydra.config_loader)._query(
                config_name="train", line=" ".join([*search_path(), current])
            )
    except HarnessError:
        return []
