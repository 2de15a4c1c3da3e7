from __future__ import annotations

from pathlib import Path

import pytest

from runtime.coalesce import BEHIND
from runtime.events import EventType, RuntimeEvent
from runtime.failure import CursorOutOfRange, FailureCode, InvalidRequest
from runtime.feed import Cursor, Feed
from runtime.journal import Journal
from runtime.readers import Reader, check_cursor, read_ended
from runtime.records import RunRecord, RunState
from runtime.types import ExecutionSpec
from tests.support.hosts import read_all, read_one


def event(sequence: int, kind: EventType = EventType.DELTA) -> RuntimeEvent:
    text = "x" if kind is EventType.DELTA else ""
    return RuntimeEvent(run_id="r1", type=kind, sequence=sequence, time_ns=1, delta=text)


def record(*, is_trimmed: bool = False) -> RunRecord:
    spec = None if is_trimmed else ExecutionSpec(run_id="r1", adapter="a", target="t")
    return RunRecord(
        ulid="u", principal="local", run_id="r1", digest="d", spec=spec, session_id="s", accepted_ns=1, boot_id="b",
        state=RunState.ERROR, ended_ns=5,
    )  # fmt: skip


def ended(folder: Path, first: int, last: int) -> list[RuntimeEvent]:
    events = [*(event(n) for n in range(first, last)), event(last, EventType.ERROR)]
    journal = Journal(folder)
    journal.append(events)
    journal.close()
    return events


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (-1, ("invalid_request", "after_sequence is -1; use 0", {"field": "after_sequence"})),
        (-(2**63), ("invalid_request", "use 0 for the beginning", {"field": "after_sequence"})),
        (50, ("cursor_out_of_range", "held from event 401 on; 50 is too early", {"first": "401", "last": "500"})),
        (399, ("cursor_out_of_range", "399 is too early", {"first": "401", "last": "500"})),
        (501, ("cursor_out_of_range", "up to 500; after_sequence 501 is beyond", {"first": "401", "last": "500"})),
        (10000, ("cursor_out_of_range", "after_sequence 10000 is beyond", {"first": "401", "last": "500"})),
    ],
)
@pytest.mark.req("E-4")
def test_a_cursor_from_which_not_everything_can_be_given_is_refused(
    after: int, said: tuple[str, str, dict[str, str]]
) -> None:
    with pytest.raises((InvalidRequest, CursorOutOfRange)) as refusal:
        check_cursor("r1", after, first=401, last=500)

    failure = refusal.value.failure
    assert (failure.code.value, dict(failure.metadata)) == (said[0], said[2])
    assert said[1] in failure.message


@pytest.mark.parametrize("after", [400, 450, 500])
def test_a_cursor_within_what_is_held_is_taken(after: int) -> None:
    check_cursor("r1", after, first=401, last=500)


@pytest.mark.parametrize("after", [0, 3, 19, 20])
async def test_the_exact_tail_of_an_ended_run(tmp_path: Path, after: int) -> None:
    events = ended(tmp_path, 1, 20)

    assert await read_all(read_ended(record(), tmp_path, after)) == events[after:]


@pytest.mark.parametrize("is_trimmed", [True, False])
def test_of_a_run_whose_events_are_gone_the_outcome_is_told(tmp_path: Path, is_trimmed: bool) -> None:
    with pytest.raises(CursorOutOfRange, match="no longer held; it ended as error") as refusal:
        read_ended(record(is_trimmed=is_trimmed), tmp_path, 0)

    assert refusal.value.failure.code is FailureCode.CURSOR_OUT_OF_RANGE
    assert dict(refusal.value.failure.metadata) == {"run_id": "r1", "outcome": "error"}


@pytest.mark.parametrize(("waiting", "count"), [(BEHIND, BEHIND), (BEHIND + 1, 3)])
async def test_only_a_reader_that_is_behind_gets_deltas_merged(tmp_path: Path, waiting: int, count: int) -> None:
    feed = Feed()
    feed.publish([event(n) for n in range(1, waiting + 1)])
    reader = Reader("r1", Cursor(tmp_path, after=0, feed=feed, last=0))

    events = await read_one(reader)

    assert (len(events), events[-1].sequence) == (count, waiting)
    assert "".join(e.delta for e in events) == "x" * waiting


def test_a_reader_leaves_once(tmp_path: Path) -> None:
    left: list[int] = []
    reader = Reader("r1", Cursor(tmp_path, after=0, feed=Feed(), last=0), lambda: left.append(1))

    with reader:
        pass
    reader.close()

    assert left == [1]
