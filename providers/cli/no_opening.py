"""The opening of an agent that takes its first turn at once."""

from __future__ import annotations

from providers.cli.dialect import Line, State
from runtime.failure import Failure


class NoOpening:
    """Nothing is said, and it is over."""

    first = b""
    is_over = True
    failure: Failure | None = None
    state: State = {}  # noqa: RUF012  # never changed: a mapping without members

    def hear(self, line: Line) -> bytes:
        return b""
