"""The dialects, one module each, found by file name: adding one edits nothing else."""

from __future__ import annotations

import importlib
import pkgutil
from typing import cast

from providers.cli.dialect import Dialect
from runtime.failure import FailureCode, FailureError


class DialectNotFound(FailureError):
    """No module of that name in this folder; the message lists those that are there."""

    code = FailureCode.TARGET_NOT_FOUND


def known_dialects() -> list[str]:
    """The names of all dialects, in order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load_dialect(name: str) -> Dialect:
    """The dialect *name*; its module is imported on first use.

    Raises:
        DialectNotFound: there is none of that name; nothing is substituted.
    """
    if name not in known_dialects():
        raise DialectNotFound(f"dialect {name!r} is unknown; known: {', '.join(known_dialects())}", dialect=name)
    return cast(Dialect, importlib.import_module(f"{__name__}.{name}"))


def has_conversations(name: str) -> bool:
    """Whether the dialect *name* is one of processes that serve a whole session."""
    return hasattr(load_dialect(name), "opening")
