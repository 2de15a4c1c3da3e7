"""Session mode ``fork``: a new session that begins with what was said in another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runtime.conversations import terminate_session
from runtime.events import complete, error, start
from runtime.failure import Conflict, Failure, FailureCode, FailureError, SessionBusy, SessionNotFound
from runtime.provider import EventSink, RunContext, SessionSlot
from runtime.resolve import Unsupported
from runtime.retention import sweep
from runtime.types import ExecutionSpec, RunRequest
from tests.support.hosts import Agent, Gate, Host, open_host, read_all, says, until_settled, within, words

DAY_NS = 86400 * 1_000_000_000
BROKEN = error(Failure(code=FailureCode.PROCESS_FAILED, message="exit 3"))


class Rememberer(Agent):
    """Keeps what each run was told of its session, and gives it a native id unless the prompt says that it fails."""

    def __init__(self, **capabilities: Any) -> None:
        super().__init__(self._script, **({"forks": True} | capabilities))
        self.told: dict[str, tuple[str | None, bool, str | None]] = {}
        self.workspaces: dict[str, str] = {}
        self.instead: Gate | None = None

    async def _script(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        if self.instead is not None:
            await self.instead(ctx, spec, sink)
            return
        self.told[spec.run_id] = (ctx.session.native_id, ctx.session.is_fork, ctx.session.source_id)
        self.workspaces[spec.run_id] = spec.workspace
        fails = spec.input == "fail"
        if not fails:
            await ctx.session.remember(f"native of {spec.session_id}")
        await sink.emit([start(), BROKEN if fails else complete("done")])

    async def terminate_session(self, session: SessionSlot) -> None:
        pass


def turn(session: str, run_id: str = "", mode: str = "create_if_missing", **fields: Any) -> RunRequest:
    return RunRequest(
        target="agent", session_id=session, run_id=run_id, session_mode=mode, **({"input": "hi"} | fields)
    )


def fork(session: str, source: str, run_id: str = "", **fields: Any) -> RunRequest:
    return turn(session, run_id, "fork", fork_from=source, **fields)


async def said(host: Host, request: RunRequest) -> str:
    events = words(await read_all(await host.runs.dispatch(request)))
    await until_settled(host)
    return events


@pytest.mark.req("RT-10", "RT-11", "RT-36")
async def test_a_fork_begins_with_the_conversation_of_its_source_and_then_has_its_own(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        assert [
            await said(host, each)
            for each in (turn("tea"), fork("milk", "tea", "r1"), turn("milk", "r2"), turn("tea", "r3"))
        ] == ["sC"] * 4

    assert agent.told["r1"] == (None, True, "native of tea")
    assert agent.told["r2"] == ("native of milk", True, "native of tea")
    assert agent.told["r3"] == ("native of tea", False, None)


@pytest.mark.req("RT-36")
async def test_a_fork_whose_first_run_failed_is_begun_by_the_next_and_also_over_a_restart(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea"))
        assert await said(host, fork("milk", "tea", input="fail")) == "sE"
        await said(host, turn("milk", "r1", input="fail"))
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("milk", "r2"))

    assert agent.told["r1"] == agent.told["r2"] == (None, True, "native of tea")


@pytest.mark.req("RT-34")
async def test_a_fork_works_where_its_source_does_and_so_does_a_fork_of_it(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        for request in (
            turn("tea", "r0"), fork("milk", "tea", "r1"), turn("milk", "r2"), fork("oat", "milk", "r3"), turn("other", "r4"),
            fork("away", "tea", "r5", workspace=str(tmp_path)),
        ):  # fmt: skip
            assert await said(host, request) == "sC"

    places = agent.workspaces
    assert places["r0"] == places["r1"] == places["r2"] == places["r3"] != places["r4"]
    assert places["r5"] == str(tmp_path)


async def test_the_source_is_a_fork_without_a_name_too(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea"))
        await said(host, fork("", "tea", "r1"))
        session_id = (await host.runs.get("r1")).session_id

        assert host.runs.sessions.get("local", session_id).anonymous
    assert agent.told["r1"] == (None, True, "native of tea")


# --- what is refused


@pytest.mark.req("RT-10", "RT-09")
@pytest.mark.parametrize(
    ("request_", "kind", "sentence"),
    [
        (fork("new", "never"), SessionNotFound, "session 'never' does not exist, so there is nothing to fork"),
        (fork("new", "silent"), SessionNotFound, "session 'silent' has no conversation yet"),
        (fork("tea", "other"), Conflict, "session 'tea' exists; a fork is a new session"),
        (turn("new", mode="fork"), FailureError, "session_mode fork needs fork_from"),
        (turn("tea", fork_from="other"), FailureError, "fork_from is given with session_mode create_if_missing"),
        (fork("tea", "tea"), FailureError, "session_id is fork_from itself"),
        (fork("new", "-rf"), FailureError, "fork_from '-rf' is not allowed"),
    ],
)
async def test_what_cannot_be_forked_is_named_and_leaves_nothing(
    tmp_path: Path, request_: RunRequest, kind: type[FailureError], sentence: str
) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        for each in (turn("tea"), turn("other"), turn("silent", input="fail")):
            await said(host, each)

        with pytest.raises(kind, match=sentence.replace("(", r"\(")):
            await host.runs.dispatch(request_)

        assert {session.session_id for session in host.runs.sessions.of("local")} == {"tea", "other", "silent"}
        assert await said(host, turn("tea")) == "sC"
    assert len(agent.executed) == 4


async def test_a_target_that_cannot_fork_begins_nothing_instead(tmp_path: Path) -> None:
    agent = Agent(says("hi"))
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea"))

        with pytest.raises(Unsupported, match="target 'agent' cannot fork a session"):
            await host.runs.dispatch(fork("milk", "tea"))
    assert len(agent.executed) == 1


@pytest.mark.req("RT-12")
async def test_a_source_with_an_active_run_is_busy(tmp_path: Path) -> None:
    gate, agent = Gate(start()), Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea"))
        agent.instead = gate
        reader = await host.runs.dispatch(turn("tea"))
        await within(gate.reached.wait())

        with pytest.raises(SessionBusy, match="'tea' has an active run; fork it when that has ended"):
            await host.runs.dispatch(fork("milk", "tea"))

        gate.open.set()
        await read_all(reader)


# --- what goes, and when


async def test_a_fork_of_a_session_that_has_ended_has_nothing_to_begin_with(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea"))
        await said(host, fork("milk", "tea", input="fail"))
        await terminate_session(host.runs, "tea")

        await said(host, turn("milk", "r1"))

    assert agent.told["r1"] == (None, True, None), "and its provider refuses"


async def test_a_private_workspace_stays_while_a_fork_works_in_it(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("", "r0", mode="create_if_missing"))
        source = (await host.runs.get("r0")).session_id
        await said(host, fork("milk", source, "r1"))
        now_ns = (await host.runs.get("r1")).accepted_ns

        swept = await sweep(host.runs, now_ns=now_ns + DAY_NS)
        kept = Path(agent.workspaces["r1"]).is_dir()
        await terminate_session(host.runs, "milk")
        await sweep(host.runs, now_ns=now_ns + 99 * DAY_NS)

        assert (swept.sessions, kept) == (1, True)
        assert list((tmp_path / "sessions").iterdir()) == []


async def test_the_workspace_of_an_id_that_was_used_again_goes_in_the_end(tmp_path: Path) -> None:
    agent = Rememberer()
    async with open_host(tmp_path, agent) as host:
        await said(host, turn("tea", "r0"))
        await terminate_session(host.runs, "tea")
        await said(host, turn("tea", "r1"))
        now_ns = (await host.runs.get("r1")).accepted_ns

        await sweep(host.runs, now_ns=now_ns + DAY_NS)
        assert Path(agent.workspaces["r0"]).is_dir()
        await sweep(host.runs, now_ns=now_ns + 31 * DAY_NS)

        assert not Path(agent.workspaces["r0"]).exists()
        assert Path(agent.workspaces["r1"]).is_dir()
