"""Regular expressions that a catalog brings, checked when it is loaded and bounded when they are matched.

An expression can take for ever on a few characters, and nothing in this process can interrupt it. So a declared one is
matched by a child like any probe, with a deadline, on text of bounded length; see :func:`match_command`. Only one without
repetition and alternatives is matched right here: it cannot backtrack, so its time is its length times that of the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import msgspec

PATTERN_LIMIT = 300
TEXT_LIMIT = 16_384
"""Characters of output that are matched: a status line is far shorter."""
MATCH_TIMEOUT_S = 2.0

_MAY_BACKTRACK = re.compile(r"[*+?{|(]")
_MATCHER = """
import json, re, sys
order = json.load(sys.stdin)
found = [name for name, pattern in order["patterns"].items() if re.search(pattern, order["text"], re.MULTILINE)]
json.dump(found, sys.stdout)
"""


def check_pattern(pattern: str) -> str:
    """*pattern*, if it is one.

    Raises:
        ValueError: it does not compile, or is too long.
    """
    if len(pattern) > PATTERN_LIMIT:
        raise ValueError(f"has {len(pattern)} characters; a pattern has at most {PATTERN_LIMIT}")
    try:
        re.compile(pattern, re.MULTILINE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return pattern


def find_plain(patterns: Mapping[str, str], text: str) -> frozenset[str] | None:
    """The names of the *patterns* found in *text*, or None when one of them has to be matched by a child."""
    if any(_MAY_BACKTRACK.search(pattern) for pattern in patterns.values()):
        return None
    found = (name for name, pattern in patterns.items() if re.search(pattern, text[:TEXT_LIMIT], re.MULTILINE))
    return frozenset(found)


def match_command() -> tuple[str, ...]:
    """The program that matches; its input is :func:`match_input`, its output :func:`matched`'s."""
    return (sys.executable, "-I", "-S", "-c", _MATCHER)


def match_input(patterns: Mapping[str, str], text: str) -> bytes:
    """The order: named patterns, and the beginning of the text they are searched in."""
    return msgspec.json.encode({"patterns": dict(patterns), "text": text[:TEXT_LIMIT]})


def matched(output: bytes) -> frozenset[str]:
    """The names of the patterns that were found.

    Raises:
        msgspec.DecodeError: the matcher did not say.
    """
    return frozenset(msgspec.json.decode(output, type=list[str]))
