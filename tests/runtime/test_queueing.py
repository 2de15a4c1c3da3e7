"""Verb ``queue``: another run behind those of its session, with an id, a receipt and an end of its own."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime.conversations import terminate_session
from runtime.events import complete, error, start
from runtime.failure import (
    CapacityExhausted,
    Conflict,
    Failure,
    FailureCode,
    FailureError,
    InvalidRequest,
    NotFound,
    SessionBusy,
)
from runtime.provider import InputOutcome, InputReceipt, SessionSlot
from runtime.resolve import Unsupported
from runtime.types import RunRequest
from runtime.verbs import send_input
from tests.support.hosts import Agent, Gate, Host, open_host, plays, read_all, until_settled, within, words


class Talker(Agent):
    """A provider that can queue, and ends sessions."""

    def __init__(self, script: Any, **capabilities: Any) -> None:
        super().__init__(script, verbs=frozenset({"queue"}), **capabilities)

    async def terminate_session(self, session: SessionSlot) -> None:
        pass


def first(**fields: Any) -> RunRequest:
    given = {"run_id": "r0", "target": "agent", "input": "hi", "session_id": "tea", "session_mode": "create_if_missing"}
    return RunRequest(**given | fields)


async def queue(host: Host, text: str = "more", *, behind: str = "r0", new_run_id: str = "") -> InputReceipt:
    return await send_input(host.runs, behind, "queue", text, new_run_id=new_run_id)


async def ends(host: Host, run_id: str) -> str:
    return words(await read_all(await host.runs.attach(run_id)))


async def positions(host: Host, *run_ids: str) -> list[int]:
    return [host.runs.queue_position(await host.runs.get(run_id)) for run_id in run_ids]


@pytest.mark.req("RT-12", "E-6")
async def test_queued_runs_begin_one_after_the_other_in_their_order(tmp_path: Path) -> None:
    gate = Gate(start())
    agent = Talker(gate)
    async with open_host(tmp_path, agent) as host:
        await host.runs.dispatch(first())
        await within(gate.reached.wait())
        receipts = [await queue(host, new_run_id=name) for name in ("r1", "r2")]

        assert [(r.outcome, r.run_id) for r in receipts] == [
            (InputOutcome.CONFIRMED, "r1"),
            (InputOutcome.CONFIRMED, "r2"),
        ]
        assert await positions(host, "r0", "r1", "r2") == [0, 1, 2]
        assert (host.runs.queued, host.runs.capacity.in_use, agent.executed) == (2, 1, ["r0"])
        gate.open.set()
        assert [await ends(host, name) for name in ("r0", "r1", "r2")] == ["sC", "sC", "sC"]
        await until_settled(host)
        assert (host.runs.queued, host.runs.capacity.in_use) == (0, 0)
    assert agent.executed == ["r0", "r1", "r2"]


async def test_the_new_run_is_like_the_one_before_it_but_in_the_background(tmp_path: Path) -> None:
    gate = Gate(start())
    async with open_host(tmp_path, Talker(gate)) as host:
        asked = first(workspace=str(tmp_path), timeout=timedelta(seconds=60), metadata={"ticket": "7"})
        await host.runs.dispatch(asked)

        made = (await queue(host, "and now?")).run_id

        ahead, spec = (await host.runs.get("r0")).spec, (await host.runs.get(made)).spec
        assert ahead is not None and spec is not None
        assert (spec.input, spec.background, ahead.background) == ("and now?", True, False)
        for name in ("adapter", "target", "session_id", "workspace", "policy", "timeout", "metadata"):
            assert getattr(spec, name) == getattr(ahead, name)
        gate.open.set()
        assert await ends(host, made) == "sC"


@pytest.mark.req("RT-12", "E-6")
@pytest.mark.parametrize("ending", ["error", "cancelled"])
async def test_the_next_begins_however_the_one_before_ended(tmp_path: Path, ending: str) -> None:
    broken = error(Failure(code=FailureCode.PROCESS_FAILED, message="exit 3"))
    gate = Gate(start(), after=plays(broken) if ending == "error" else None)
    async with open_host(tmp_path, Talker(gate)) as host:
        await host.runs.dispatch(first())
        await within(gate.reached.wait())
        await queue(host, new_run_id="r1")
        if ending == "cancelled":
            await host.runs.cancel("r0")

        gate.open.set()

        assert await ends(host, "r0") == ("sE" if ending == "error" else "sX")
        assert await ends(host, "r1") == ("sE" if ending == "error" else "sC")


@pytest.mark.req("RT-20")
async def test_a_run_cancelled_while_it_waits_is_never_executed(tmp_path: Path) -> None:
    gate = Gate(start())
    agent = Talker(gate)
    async with open_host(tmp_path, agent) as host:
        await host.runs.dispatch(first())
        for name in ("r1", "r2"):
            await queue(host, new_run_id=name)

        await within(host.runs.cancel("r1"))

        assert await ends(host, "r1") == "sX"
        assert await positions(host, "r2") == [1]
        gate.open.set()
        assert await ends(host, "r2") == "sC"
    assert agent.executed == ["r0", "r2"]


async def test_what_waits_for_its_session_occupies_no_slot(tmp_path: Path) -> None:
    """And when its turn comes it waits for one, though no other run may: it was accepted."""
    tea, milk = Gate(start()), Gate(start())
    agent = Talker(lambda ctx, spec, sink: (milk if spec.session_id == "milk" else tea)(ctx, spec, sink))
    async with open_host(tmp_path, agent, max_concurrent_runs=2) as host:
        await host.runs.dispatch(first())
        await queue(host, new_run_id="r1")
        await host.runs.dispatch(first(run_id="m", session_id="milk"))
        await within(milk.reached.wait())
        host.runs.capacity.resize(1, queue_limit=0)

        tea.open.set()
        await ends(host, "r0")
        await within(_until(lambda: host.runs.capacity.waiting == 1))
        assert await positions(host, "r1") == [1]
        milk.open.set()

        assert await ends(host, "r1") == "sC"
    assert agent.executed == ["r0", "m", "r1"]


async def test_its_time_out_counts_from_its_beginning(tmp_path: Path) -> None:
    gate = Gate(start())
    async with open_host(tmp_path, Talker(gate)) as host:
        await host.runs.dispatch(first(timeout=timedelta(seconds=60)))
        await queue(host, new_run_id="r1")

        waiting = (await host.runs.get("r1")).deadline_boot_s
        gate.open.set()
        await within(_until(lambda: ("local", "r1") not in host.runs.live))

        assert waiting is None
        assert (await host.runs.get("r1")).deadline_boot_s is not None


# --- what is refused


async def test_too_many_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    gate = Gate(start())
    async with open_host(tmp_path, Talker(gate), max_queued_per_session=1) as host:
        await host.runs.dispatch(first())
        await queue(host, new_run_id="r1")

        with pytest.raises(CapacityExhausted, match="1 runs wait for session 'tea'"):
            await queue(host, new_run_id="r2")

        with pytest.raises(NotFound):
            await host.runs.get("r2")
        gate.open.set()
        assert await ends(host, "r1") == "sC"


@pytest.mark.req("E-19", "RT-12")
async def test_the_same_again_makes_no_second_run_and_another_text_is_a_conflict(tmp_path: Path) -> None:
    gate = Gate(start())
    agent = Talker(gate)
    async with open_host(tmp_path, agent) as host:
        await host.runs.dispatch(first())
        answers = await asyncio.gather(*(queue(host, new_run_id="r1") for _ in range(5)))
        with pytest.raises(Conflict):
            await queue(host, "something else", new_run_id="r1")
        gate.open.set()
        await ends(host, "r1")
        await until_settled(host)

        assert await queue(host, new_run_id="r1") == answers[0], "also when both have ended"
    assert agent.executed == ["r0", "r1"]
    assert {answer.run_id for answer in answers} == {"r1"}


async def test_behind_a_run_that_has_ended_it_is_too_late(tmp_path: Path) -> None:
    async with open_host(tmp_path, Talker(plays(start(), complete("done")))) as host:
        await read_all(await host.runs.dispatch(first()))

        receipt = await queue(host, new_run_id="r1")

        assert (receipt.outcome, receipt.run_id) == (InputOutcome.TOO_LATE, "")
        with pytest.raises(NotFound):
            await host.runs.get("r1")


@pytest.mark.parametrize(
    ("verb", "text", "new_run_id", "field"),
    [("queue", "", "", "input"), ("steer", "x", "r1", "new_run_id"), ("interrupt", "", "r1", "new_run_id")],
)
async def test_an_input_that_makes_no_sense_names_its_field(
    tmp_path: Path, verb: str, text: str, new_run_id: str, field: str
) -> None:
    async with open_host(tmp_path, Talker(Gate(start()))) as host:
        await host.runs.dispatch(first())

        with pytest.raises(InvalidRequest) as refusal:
            await send_input(host.runs, "r0", verb, text, new_run_id=new_run_id)

        assert refusal.value.failure.metadata["field"] == field


async def test_a_target_that_does_not_declare_it_refuses(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(Gate(start()))) as host:
        await host.runs.dispatch(first())

        with pytest.raises(Unsupported, match="cannot queue"):
            await queue(host)


@pytest.mark.req("RT-12")
async def test_a_dispatch_does_not_jump_the_line(tmp_path: Path) -> None:
    gate = Gate(start())
    async with open_host(tmp_path, Talker(gate)) as host:
        await host.runs.dispatch(first())
        await queue(host, new_run_id="r1")
        await host.runs.cancel("r0")

        with pytest.raises(SessionBusy):
            await host.runs.dispatch(first(run_id="r2"))

        gate.open.set()
        assert await ends(host, "r1") == "sC"


# --- the session's end


@pytest.mark.req("RT-22", "BAN-19")
async def test_a_session_ends_with_all_that_waits_for_it_or_not_at_all(tmp_path: Path) -> None:
    agent = Talker(Gate(start()))
    async with open_host(tmp_path, agent) as host:
        await host.runs.dispatch(first())
        for name in ("r1", "r2"):
            await queue(host, new_run_id=name)

        with pytest.raises(SessionBusy, match="'r0'"):
            await terminate_session(host.runs, "tea")
        ended = await within(terminate_session(host.runs, "tea", cancel_active=True))

        assert ended.terminated_ns is not None
        assert [await ends(host, name) for name in ("r0", "r1", "r2")] == ["sX", "sX", "sX"]
    assert agent.executed == ["r0"]


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


# --- a run that is not accepted yet


class Slow:
    """Acceptance that waits, and may find the disk full."""

    def __init__(self, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.refuses = asyncio.Event(), False

        async def admit(run: Any) -> None:
            await self.go_on.wait()
            if self.refuses:
                monkeypatch.setattr(host.storage, "make_run_directory", self._full)
            await original(run)

        original = host.runs.acceptance.admit
        monkeypatch.setattr(host.runs.acceptance, "admit", admit)

    def _full(self, ulid: str) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.req("RT-12", "E-6")
async def test_behind_a_run_that_is_being_accepted_one_waits_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory may not be there yet, and was then taken for a mistake of the caller's."""
    agent = Talker(plays(start(), complete("done")))
    async with open_host(tmp_path, agent) as host:
        slow = Slow(host, monkeypatch)
        dispatched = asyncio.create_task(host.runs.dispatch(first()))
        await within(_until(lambda: ("local", "r0") in host.runs.live))
        queued = asyncio.create_task(queue(host, new_run_id="r1"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not queued.done()
        slow.go_on.set()

        await dispatched
        receipt = await within(queued)

        assert receipt.outcome in (InputOutcome.CONFIRMED, InputOutcome.TOO_LATE)


@pytest.mark.parametrize("ask", ["queue", "get", "cancel"])
async def test_a_run_that_is_refused_in_the_end_was_never_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    async with open_host(tmp_path, Talker(Gate(start()))) as host:
        slow = Slow(host, monkeypatch)
        slow.refuses = True
        dispatched = asyncio.create_task(host.runs.dispatch(first()))
        await within(_until(lambda: ("local", "r0") in host.runs.live))
        asking = {"queue": queue(host), "get": host.runs.get("r0"), "cancel": host.runs.cancel("r0")}
        asked = asyncio.create_task(asking.pop(ask))
        for unused in asking.values():
            unused.close()
        await asyncio.sleep(0)
        slow.go_on.set()

        with pytest.raises(NotFound):
            await within(asked)
        with pytest.raises(FailureError, match="takes no run"):
            await dispatched
