"""The one table that relates the vocabularies of requirements E-1; every conversion between them goes through here.

Rooms that do not exist yet (tasks, jobs, worker sessions) keep their words as text; an unmapped value is an error.
"""

from __future__ import annotations

from runtime.events import EventType
from runtime.records import RunState

_RUN_OUTCOMES = {
    EventType.COMPLETE: RunState.COMPLETE,
    EventType.ERROR: RunState.ERROR,
    EventType.CANCELLED: RunState.CANCELLED,
}


def outcome_of(terminal: EventType) -> RunState:
    """The state of a run that ended with this terminal event."""
    return _RUN_OUTCOMES[terminal]


def is_success(state: RunState) -> bool:
    """Only ``complete`` may ever map to a success: an exit code, a metric, a report."""
    return state is RunState.COMPLETE
