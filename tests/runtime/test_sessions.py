from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from runtime.failure import Conflict, FailureCode, SessionBusy, SessionNotFound
from runtime.index import Index, open_index
from runtime.sessions import Session, Sessions, save
from runtime.turns import Turn
from runtime.types import SessionMode

TURNS: dict[str, Turn] = {}
"""By run, what was claimed last under its key."""
CREATE, REQUIRE = SessionMode.CREATE_IF_MISSING, SessionMode.REQUIRE_EXISTING


@pytest.fixture
async def index(tmp_path: Path) -> AsyncIterator[Index]:
    async with open_index(tmp_path) as opened:
        yield opened


def claim(sessions: Sessions, session_id: str = "s1", run: str = "run-1", **given: Any) -> Session:
    fields: dict[str, Any] = {
        "principal": "local", "mode": CREATE, "adapter": "cli", "target": "agent", "now_ns": 10,
    }  # fmt: skip
    session, TURNS[run] = sessions.claim(session_id=session_id, run=run, **(fields | given))
    return session


async def accept(index: Index, sessions: Sessions, session: Session) -> None:
    await index.run(save(session))
    sessions.admit(session)


async def existing(index: Index, session_id: str = "s1", **given: Any) -> tuple[Sessions, Session]:
    """Sessions in which one run has been and gone."""
    sessions = Sessions(index)
    session = claim(sessions, session_id, run="run-0", **given)
    await accept(index, sessions, session)
    TURNS["run-0"].release()
    return sessions, session


@pytest.mark.req("RT-08", "RT-11")
async def test_a_missing_session_is_created_and_the_next_run_resumes_it(index: Index) -> None:
    sessions, first = await existing(index)

    second = claim(sessions, now_ns=20)

    assert (second.key, second.created_ns, second.used_ns) == (first.key, 10, 20)
    assert (second.session_id, second.anonymous) == ("s1", False)


@pytest.mark.req("RT-08")
async def test_without_an_id_each_run_has_a_session_of_its_own_that_is_reported(index: Index) -> None:
    sessions = Sessions(index)

    one, other = claim(sessions, "", run="run-1"), claim(sessions, "", run="run-2")

    assert one.session_id.startswith("anon-")
    assert one.session_id != other.session_id
    assert one.anonymous and other.anonymous


@pytest.mark.req("RT-09")
async def test_a_required_session_that_does_not_exist_leaves_nothing_behind(index: Index) -> None:
    sessions = Sessions(index)

    with pytest.raises(SessionNotFound, match="'s1' does not exist; use create_if_missing") as refusal:
        claim(sessions, mode=REQUIRE)

    assert refusal.value.failure.code is FailureCode.SESSION_NOT_FOUND
    assert await index.run(lambda c: c.execute("SELECT count(*) FROM sessions").fetchone()[0]) == 0
    assert claim(sessions).session_id == "s1"  # and it is not taken


@pytest.mark.req("RT-09")
async def test_a_session_of_another_target_does_not_exist_for_who_requires_it(index: Index) -> None:
    sessions, _ = await existing(index)

    with pytest.raises(SessionNotFound, match="belongs to target 'agent', not 'other'"):
        claim(sessions, mode=REQUIRE, target="other")
    with pytest.raises(SessionNotFound):
        claim(sessions, mode=REQUIRE, adapter="acp")


@pytest.mark.req("RT-08")
async def test_a_session_of_another_target_is_not_taken_over(index: Index) -> None:
    sessions, _ = await existing(index)

    with pytest.raises(Conflict, match="use another session_id"):
        claim(sessions, mode=CREATE, target="other")


@pytest.mark.req("RT-11")
async def test_the_same_id_of_another_principal_is_another_session(index: Index) -> None:
    sessions, mine = await existing(index)

    theirs = claim(sessions, principal="other", run="run-2")

    assert theirs.key != mine.key
    with pytest.raises(SessionNotFound):
        claim(sessions, principal="third", mode=REQUIRE)


@pytest.mark.req("RT-12")
async def test_one_run_at_a_time_has_the_session(index: Index) -> None:
    sessions = Sessions(index)
    claim(sessions, run="run-1")

    with pytest.raises(SessionBusy, match="'s1' has an active run") as refusal:
        claim(sessions, run="run-2")
    TURNS["run-1"].release()
    TURNS["run-1"].release()

    assert refusal.value.failure.retryable
    assert claim(sessions, run="run-2").session_id == "s1"


@pytest.mark.req("RT-12")
async def test_a_late_release_does_not_free_the_next_runs_session(index: Index) -> None:
    sessions = Sessions(index)
    claim(sessions, run="run-1")
    TURNS["run-1"].release()
    claim(sessions, run="run-2")

    TURNS["run-1"].release()

    with pytest.raises(SessionBusy):
        claim(sessions, run="run-3")


@pytest.mark.req("RT-09", "RT-11")
async def test_a_session_and_its_native_id_survive_the_host(index: Index) -> None:
    sessions, session = await existing(index)
    await sessions.remember(session, "native-1")

    again = await Sessions.load(index)

    found = claim(again, mode=REQUIRE)
    assert (found.key, again.native_id(found)) == (session.key, "native-1")


@pytest.mark.req("RT-11")
async def test_a_native_id_can_change_and_the_identity_stays(index: Index) -> None:
    sessions, session = await existing(index)

    await sessions.remember(session, "native-1")
    await sessions.remember(session, "native-2")

    assert sessions.native_id(session) == "native-2"
    assert claim(sessions, mode=REQUIRE).key == session.key


@pytest.mark.req("RT-11", "BAN-17")
async def test_a_native_id_is_in_one_column_and_in_no_other_attribute(index: Index) -> None:
    sessions, session = await existing(index)
    await sessions.remember(session, "native-1")

    rows = await index.run(lambda c: [dict(row) for row in c.execute("SELECT * FROM sessions")])

    assert [name for row in rows for name, value in row.items() if "native-1" in str(value)] == ["native_id"]
    loaded = claim(await Sessions.load(index), mode=REQUIRE)
    public = [n for n in dir(loaded) if not n.startswith("_") and "native-1" in str(getattr(loaded, n))]
    assert public == []


@pytest.mark.req("RT-11")
async def test_two_sessions_do_not_share_a_native_id_by_accident(index: Index) -> None:
    sessions, one = await existing(index, "s1")
    other = claim(sessions, "s2")
    await accept(index, sessions, other)

    await sessions.remember(one, "native-1")

    assert sessions.native_id(other) is None


async def test_what_is_forgotten_meanwhile_is_not_brought_back(index: Index) -> None:
    sessions = Sessions(index)
    session = claim(sessions, "", run="run-1")
    await accept(index, sessions, session)
    TURNS["run-1"].release()
    assert await sessions.expire(anonymous_before_ns=11, terminated_before_ns=0) == [session]

    await sessions.remember(session, "native-1")

    assert await index.run(lambda c: c.execute("SELECT count(*) FROM sessions").fetchone()[0]) == 0


async def test_only_idle_sessions_that_nobody_named_expire(index: Index) -> None:
    sessions, _ = await existing(index, "named")
    active, idle, fresh = (claim(sessions, "", run=f"run-{n}", now_ns=10 * n) for n in (1, 2, 5))
    for session in (active, idle, fresh):
        await accept(index, sessions, session)
    for run in ("run-2", "run-5"):
        TURNS[run].release()

    gone = await sessions.expire(anonymous_before_ns=30, terminated_before_ns=0)

    assert gone == [idle]
    left = await index.run(lambda c: {row[0] for row in c.execute("SELECT session_id FROM sessions")})
    assert left == {"named", active.session_id, fresh.session_id}


@pytest.mark.req("RT-12")
async def test_a_run_that_a_restart_found_has_its_session_again(index: Index) -> None:
    _, session = await existing(index)
    again = await Sessions.load(index)

    found, turn = again.reclaim("local", "s1", "run-1", has_begun=True)
    assert found == session
    with pytest.raises(SessionBusy):
        claim(again, run="run-2")
    turn.release()
    assert claim(again, run="run-2").key == session.key


@pytest.mark.req("RT-09", "RT-22", "E-5")
async def test_a_terminated_session_does_not_exist_for_who_requires_it_and_begins_anew_for_who_does_not(
    index: Index,
) -> None:
    sessions, session = await existing(index)
    await sessions.remember(session, "native-1")

    await sessions.terminate(session, 50)

    for found in (sessions, await Sessions.load(index)):
        with pytest.raises(SessionNotFound):
            claim(found, mode=REQUIRE)
    anew = claim(sessions)
    await accept(index, sessions, anew)
    assert anew.key != session.key
    assert (sessions.native_id(anew), anew.terminated_ns) == (None, None)


async def test_a_terminated_session_is_forgotten_after_its_time(index: Index) -> None:
    sessions, session = await existing(index)
    await sessions.terminate(session, 50)

    assert await sessions.expire(anonymous_before_ns=99, terminated_before_ns=50) == []
    assert [gone.session_id for gone in await sessions.expire(anonymous_before_ns=99, terminated_before_ns=51)] == [
        "s1"
    ]
    with pytest.raises(SessionNotFound):
        sessions.get("local", "s1")


@pytest.mark.req("RT-36")
async def test_what_the_run_before_learned_after_the_claim_is_kept(index: Index) -> None:
    sessions, session = await existing(index)
    claimed = claim(sessions, run="run-1")
    await sessions.remember(session, "native-1")
    sessions.note_history(session)

    await accept(index, sessions, claimed)

    assert sessions.native_id(claimed) == "native-1"
    assert sessions.has_history(claimed)


@pytest.mark.req("RT-36")
async def test_that_there_is_a_conversation_is_known_at_once_and_survives_the_host(index: Index) -> None:
    sessions, session = await existing(index)

    sessions.note_history(session)
    at_once, reloaded = sessions.has_history(session), (await Sessions.load(index)).has_history(session)
    await sessions.store_history("local", "s1")

    assert (at_once, reloaded) == (True, False)
    assert (await Sessions.load(index)).get("local", "s1").has_history


@pytest.mark.req("RT-36")
async def test_a_late_end_says_nothing_of_a_new_session_under_the_id(index: Index) -> None:
    sessions, old = await existing(index)
    await sessions.terminate(old, 50)
    new = claim(sessions, run="run-1")
    await accept(index, sessions, new)

    sessions.note_history(old)

    assert not sessions.has_history(new)
