from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.coalesce import MERGE_CHARS, MERGE_EVENTS, coalesce
from runtime.events import EventType, RuntimeEvent


def event(sequence: int, kind: EventType = EventType.DELTA, text: str = "x", message_id: str = "m") -> RuntimeEvent:
    fields: dict[str, Any] = {"delta": text, "metadata": {"message_id": message_id}}
    return RuntimeEvent(run_id="r", type=kind, sequence=sequence, time_ns=sequence, **fields)


KINDS = st.tuples(st.sampled_from(EventType), st.text(max_size=3), st.sampled_from("mn"))


@pytest.mark.req("NB-19", "RT-13")
@given(st.lists(KINDS, max_size=60))
def test_merging_loses_no_text_no_kind_and_no_order(given_: list[tuple[EventType, str, str]]) -> None:
    events = [event(n, *each) for n, each in enumerate(given_, 1)]

    merged = coalesce(events)

    def told(events: list[RuntimeEvent]) -> list[tuple[str, str, str]]:
        """Text by kind and message, neighbours joined."""
        runs: list[tuple[str, str, str]] = []
        for each in events:
            key = (each.type.value, each.metadata["message_id"])
            is_delta = each.type in (EventType.DELTA, EventType.REASONING_DELTA)
            if is_delta and runs and runs[-1][:2] == key:
                runs[-1] = (*key, runs[-1][2] + each.delta)
            else:
                runs.append((*key, each.delta))
        return runs

    assert told(merged) == told(events)
    assert [each.sequence for each in merged] == sorted({each.sequence for each in merged})
    assert not events or merged[-1].sequence == events[-1].sequence


def test_a_merged_delta_has_the_number_of_its_last_part() -> None:
    assert coalesce([event(1), event(2), event(3)]) == [event(3, text="xxx")]


def test_other_messages_and_other_kinds_are_not_merged() -> None:
    events = [
        event(1), event(2, message_id="n"), event(3, EventType.REASONING_DELTA, message_id="n"), event(4, EventType.ACTIVITY),
        event(5, EventType.ACTIVITY), event(6, EventType.COMPLETE),
    ]  # fmt: skip

    assert coalesce(events) == events


def test_a_gap_in_the_numbers_is_not_merged_away() -> None:
    events = [event(1), event(2), event(1 << 20), event((1 << 20) + 1)]

    assert coalesce(events) == [event(2, text="xx"), event((1 << 20) + 1, text="xx")]


def test_a_merged_delta_is_bounded() -> None:
    many = coalesce([event(n) for n in range(1, 3 * MERGE_EVENTS)])
    large = coalesce([event(n, text="x" * (MERGE_CHARS // 2 + 1)) for n in (1, 2, 3)])

    assert [len(each.delta) for each in many] == [MERGE_EVENTS, MERGE_EVENTS, MERGE_EVENTS - 1]
    assert [each.sequence for each in large] == [1, 2, 3]
