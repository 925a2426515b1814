"""Errors whose message is for the user: they name the file or field at fault and what to do about it.

The command line prints such an error as one paragraph, without a traceback, and exits with code 2
(1 when runs of a study failed). Anything else that escapes is a bug in harness and shows its traceback.
"""

import difflib
from collections.abc import Iterable


class HarnessError(Exception):
    """A user's mistake or the state of the machine; the message says what, where and how to fix it."""


class ConfigError(HarnessError):
    """A configuration key or value that cannot be used."""


class DatasetError(HarnessError):
    """A data set that is missing, damaged or not what its manifest says."""


def near_matches(word: str, known: Iterable[str], count: int = 3) -> str:
    """' Did you mean a, b?' for the names in `known` close to `word`, else all of them (at most 30)."""
    known = sorted(set(known))
    close = difflib.get_close_matches(word, known, n=count, cutoff=0.5)
    if close:
        return f" Did you mean {', '.join(close)}?"
    return f" Known: {', '.join(known[:30])}{', …' if len(known) > 30 else ''}." if known else ""
