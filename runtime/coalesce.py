"""Fewer, larger deltas for a reader that is behind: the one lever that makes it catch up.

A merged delta has the sequence of its last part, so with the reader's previous one it still says exactly which range it
covers. A reader that keeps up never sees one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from runtime.events import EventType, RuntimeEvent

BEHIND = 32
"""A reader with more than this many events waiting is behind."""
MERGE_EVENTS = 16
MERGE_CHARS = 64 * 1024

_DELTAS = frozenset({EventType.DELTA, EventType.REASONING_DELTA})


def coalesce(events: Sequence[RuntimeEvent]) -> list[RuntimeEvent]:
    """*events* with adjacent deltas of one message merged, at most 16 events and 64 Ki characters into one."""
    merged: list[RuntimeEvent] = []
    pending: list[RuntimeEvent] = []
    size = 0
    for event in events:
        fits = len(pending) < MERGE_EVENTS and size + len(event.delta) <= MERGE_CHARS
        if pending and not (fits and _continues(pending[-1], event)):
            merged.append(_merge(pending))
            pending, size = [], 0
        pending.append(event)
        size += len(event.delta)
    if pending:
        merged.append(_merge(pending))
    return merged


def _continues(before: RuntimeEvent, event: RuntimeEvent) -> bool:
    """Numbers with a gap between them are not merged: the gap is to be seen."""
    follows = event.sequence == before.sequence + 1 and event.type is before.type
    return follows and event.type in _DELTAS and event.metadata == before.metadata


def _merge(parts: Sequence[RuntimeEvent]) -> RuntimeEvent:
    if len(parts) == 1:
        return parts[0]
    return msgspec.structs.replace(parts[-1], delta="".join(part.delta for part in parts))
