"""Where shards may lie: files, and URLs that fsspec reads. None starts a shell unless the user says so.

Patterns are WebDataset's: `imagenet-train-{000000..000146}.tar`. A path that is there as it is written is taken so.
"""

import os
import re
from pathlib import Path

import braceexpand

from harness.errors import ConfigError

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
SHELL_SCHEMES = frozenset({"pipe", "sh", "bash", "shell", "cmd", "exec"})
SECRETS = re.compile(r"(?i)^[a-z0-9+.-]+://[^/?#]*:[^/?#]*@|[?&](x-(amz|goog)-)?(sig|signature|token|key|password)=")
MOST_SHARDS = 200_000  # of one pattern


def scheme_of(text: str) -> str | None:
    """'https' of 'https://…', 'pipe' of 'pipe:…'; None of a path."""
    match = SCHEME.match(text)
    if match is None:
        return None
    scheme = match.group(1).lower()
    return scheme if scheme in SHELL_SCHEMES or text[match.end() :].startswith("//") else None


def check_url(text: str, allow_shell: bool) -> None:
    """Raises ConfigError for a URL whose reading would run a command, unless that is allowed, and for one with secrets
    in it.
    """
    if text.lstrip().startswith(("|", "!")) or (scheme_of(text.lstrip()) in SHELL_SCHEMES):
        if allow_shell:
            return
        raise ConfigError(
            f"{text}: reading it would run a shell command. Give an https://, s3://, gs://, … URL or a path, or, if "
            "you trust that command, data.allow_shell=true"
        )
    if SECRETS.search(text) and scheme_of(text) is not None:
        raise ConfigError(
            "a URL with a password, token or signature in it would be written to the manifest: give it without, and "
            "put credentials where fsspec looks for them (the environment, ~/.config/fsspec)"
        )
    if "::" in text and scheme_of(text) is not None:
        raise ConfigError(f"{text}: chained URLs (::) are not read; name the shards themselves")


def expand(pattern: str, allow_shell: bool = False) -> list[str]:
    """URLs or absolute paths of a brace pattern, in its order.

    Raises ConfigError for a pattern that is no list of shards: broken braces, nothing in it, a shard named twice, a
    folder, a wildcard, or a shell command that is not allowed.
    """
    check_url(pattern, allow_shell)
    if scheme_of(pattern) is None and Path(pattern).is_file():
        return [os.path.abspath(pattern)]  # noqa: PTH100 (a link stays the link that the user named)
    try:
        names = []
        for name in braceexpand.braceexpand(pattern):
            names.append(name)
            if len(names) > MOST_SHARDS:
                raise ConfigError(f"{pattern}: more than {MOST_SHARDS:,} shards")
    except ValueError as error:
        raise ConfigError(f"{pattern}: {error or 'unbalanced braces'}") from error
    if len(set(names)) < len(names):
        raise ConfigError(f"{pattern}: names a shard twice")
    for name in names:
        check_url(name, allow_shell)
        if scheme_of(name) is None and any(sign in name for sign in "*?["):
            raise ConfigError(f"{name}: wildcards are not expanded; a brace pattern says which shards there are")
    return [name if scheme_of(name) is not None else os.path.abspath(name) for name in names]  # noqa: PTH100
