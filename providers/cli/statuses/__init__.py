"""The formats in which CLIs tell usage and quota, one module each, found by file name.

A module offers ``parse(text, *, captured_at)``, which makes one :class:`~runtime.status.AgentUsageStatus` of what the CLI
printed, ANSI sequences removed. Its docstring names the source and version of the format.
"""

from __future__ import annotations

import importlib
import pkgutil
from datetime import datetime
from typing import Protocol, cast

from runtime.failure import FailureCode, FailureError
from runtime.status import AgentUsageStatus


class StatusUnreadable(FailureError):
    """What the CLI printed is no status that this build can read; no figure is guessed from it."""

    code = FailureCode.OUTPUT_INVALID


class StatusFormat(Protocol):
    """A format module, seen as a value."""

    def parse(self, text: str, *, captured_at: datetime) -> AgentUsageStatus:
        """The status in *text*; unavailable with a reason when the CLI said so.

        Raises:
            StatusUnreadable: truncated, empty, or of another shape.
        """


def known_statuses() -> list[str]:
    """The names of all formats, in order."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name != "json_answers")


def load_status(name: str) -> StatusFormat:
    """The format *name*, which the catalog's schema has checked."""
    return cast(StatusFormat, importlib.import_module(f"{__name__}.{name}"))
