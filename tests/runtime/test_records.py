from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime import records
from runtime.events import EventType
from runtime.failure import Failure, FailureCode
from runtime.index import NAME, connect
from runtime.records import RunRecord, RunState, decode_spec, encode_spec
from runtime.types import ExecutionSpec, SessionMode

SPEC = ExecutionSpec(
    run_id="r1", adapter="cli", target="agent", session_id="s1", session_mode=SessionMode.REQUIRE_EXISTING, background=True,
    workspace="/w", policy={"deep": [{"a": (1, None, "ü")}]}, input="hi", timeout=timedelta(seconds=1, microseconds=5),
    metadata={"k": "v"},
)  # fmt: skip


def record(ulid: str = "01A", **given: Any) -> RunRecord:
    fields: dict[str, Any] = {
        "ulid": ulid, "principal": "local", "run_id": f"run-{ulid}", "digest": "d", "spec": SPEC, "session_id": "s1",
        "accepted_ns": 5, "boot_id": "b1", "deadline_boot_s": 7.5, "shared_with": ("r8", "r9"),
    }  # fmt: skip
    return RunRecord(**(fields | given))


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    opened = connect(tmp_path / NAME)
    yield opened
    opened.close()


def stored(connection: sqlite3.Connection, *given: RunRecord) -> None:
    for each in given:
        records.insert(each)(connection)


@pytest.mark.req("RT-07", "RT-34")
@pytest.mark.parametrize("spec", [SPEC, ExecutionSpec(run_id="r1", adapter="a", target="t")])
def test_a_spec_is_stored_whole(spec: ExecutionSpec) -> None:
    assert decode_spec(encode_spec(spec)) == spec


def test_a_run_is_found_as_it_was_accepted(connection: sqlite3.Connection) -> None:
    stored(connection, record())

    assert records.find("local", "run-01A")(connection) == record()


@pytest.mark.parametrize(("principal", "run_id"), [("other", "run-01A"), ("local", "run-01a"), ("local", "' OR 1=1")])
def test_a_run_is_found_by_exactly_its_key(connection: sqlite3.Connection, principal: str, run_id: str) -> None:
    stored(connection, record())

    assert records.find(principal, run_id)(connection) is None


@pytest.mark.req("E-12")
def test_one_id_is_accepted_once_per_principal(connection: sqlite3.Connection) -> None:
    stored(connection, record("01A", run_id="r"), record("01B", run_id="r", principal="other"))

    with pytest.raises(sqlite3.IntegrityError):
        stored(connection, record("01C", run_id="r"))


@pytest.mark.req("RT-15", "BAN-18")
def test_the_first_outcome_stays(connection: sqlite3.Connection) -> None:
    stored(connection, record())
    failure = Failure(code=FailureCode.LOST, message="m", metadata={"k": "v"})

    records.finish("01A", state=RunState.ERROR, ended_ns=9, failure=failure, recovered=True)(connection)
    records.finish("01A", state=RunState.COMPLETE, ended_ns=10, failure=None, recovered=False)(connection)

    found = records.find("local", "run-01A")(connection)
    assert found == record(state=RunState.ERROR, ended_ns=9, failure=failure, recovered=True)


def test_unended_runs_come_in_the_order_of_acceptance(connection: sqlite3.Connection) -> None:
    """Keys made in one millisecond do not sort by acceptance."""
    stored(connection, record("01C", accepted_ns=1), record("01A", accepted_ns=3), record("01B", accepted_ns=2))
    records.finish("01B", state=RunState.ERROR, ended_ns=9, failure=None, recovered=False)(connection)

    assert [found.ulid for found in records.unended(connection)] == ["01C", "01A"]


def test_pages_are_newest_first_without_gap_or_repeat(connection: sqlite3.Connection) -> None:
    stored(connection, *(record(f"01{n}") for n in range(5)), record("01Z", principal="other"))
    seen, before = [], ""

    while page := records.page("local", before=before, limit=2, active_only=False)(connection):
        seen.append([found.ulid for found in page])
        before = page[-1].ulid

    assert seen == [["014", "013"], ["012", "011"], ["010"]]


def test_a_page_of_the_active_leaves_out_the_ended_and_any_page_the_buried(connection: sqlite3.Connection) -> None:
    stored(connection, record("01A"), record("01B"), record("01C"))
    for ulid in ("01B", "01C"):
        records.finish(ulid, state=RunState.COMPLETE, ended_ns=9, failure=None, recovered=False)(connection)
    records.bury("01C", 20)(connection)

    pages = [records.page("local", before="", limit=9, active_only=active)(connection) for active in (True, False)]

    assert [[found.ulid for found in page] for page in pages] == [["01A"], ["01B", "01A"]]


@pytest.mark.req("E-12")
def test_a_tombstone_keeps_identity_digest_and_outcome_alone(connection: sqlite3.Connection) -> None:
    stored(connection, record())
    records.finish("01A", state=RunState.CANCELLED, ended_ns=9, failure=None, recovered=False)(connection)

    records.bury("01A", 20)(connection)

    found = records.find("local", "run-01A")(connection)
    assert found == record(spec=None, state=RunState.CANCELLED, ended_ns=9)


def test_tombstones_go_after_their_time(connection: sqlite3.Connection) -> None:
    stored(connection, record("01A"), record("01B"), record("01C"))
    records.bury("01A", 10)(connection)
    records.bury("01B", 20)(connection)

    assert records.forget_tombstones(20)(connection) == 1
    assert [records.find("local", f"run-{u}")(connection) is None for u in ("01A", "01B", "01C")] == [
        True,
        False,
        False,
    ]


def test_what_ended_and_is_not_buried_comes_last_ended_first(connection: sqlite3.Connection) -> None:
    stored(connection, *(record(f"01{n}") for n in range(4)))
    for n in range(3):
        records.finish(
            f"01{n}", state=RunState.ERROR, ended_ns=10 + n, failure=None, recovered=False, size_bytes=100 * n
        )(connection)
    records.bury("010", 50)(connection)

    assert [(found.ulid, found.ended_ns, found.size_bytes) for found in records.ended(connection)] == [
        ("012", 12, 200), ("011", 11, 100),
    ]  # fmt: skip


def test_the_boot_under_which_a_run_goes_on_is_noted(connection: sqlite3.Connection) -> None:
    stored(connection, record())

    records.renew_boot("01A", "b2")(connection)

    assert records.find("local", "run-01A")(connection) == record(boot_id="b2")


@pytest.mark.req("E-1")
@pytest.mark.parametrize("state", RunState)
def test_three_states_are_an_end(state: RunState) -> None:
    assert state.is_terminal is (state.value in {"complete", "error", "cancelled"})
    assert state.is_terminal is (state.value in {kind.value for kind in EventType})
