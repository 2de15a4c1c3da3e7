"""Ending a session: never beside a run, and never beside another end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from providers.scripted import Script
from runtime.conversations import terminate_session
from runtime.events import start
from runtime.failure import SessionBusy
from runtime.provider import SessionSlot
from runtime.resolve import Unsupported
from runtime.types import RunRequest
from tests.support.hosts import Agent, Gate, Host, open_host, read_all, read_one, says, until_settled, within, words


class Talker(Agent):
    """A provider that ends sessions, as slowly as the test wants."""

    def __init__(self, script: Script | None = None) -> None:
        super().__init__(script or says("hi"))
        self.ending, self.let_on = asyncio.Event(), asyncio.Event()
        self.ended = 0

    async def terminate_session(self, session: SessionSlot) -> None:
        self.ending.set()
        await self.let_on.wait()
        self.ended += 1


def turn(run_id: str) -> RunRequest:
    return RunRequest(
        target="agent", input="hi", run_id=run_id, session_id="tea", session_mode="create_if_missing", background=True
    )


async def said(host: Host, run_id: str) -> str:
    return words(await read_all(await host.runs.dispatch(turn(run_id))))


@pytest.mark.req("RT-22", "RT-11")
async def test_no_run_begins_on_a_session_that_is_ending(tmp_path: Path) -> None:
    talker = Talker()
    async with open_host(tmp_path, talker) as host:
        await said(host, "r1")
        await until_settled(host)
        ending = asyncio.create_task(terminate_session(host.runs, "tea"))
        await within(talker.ending.wait())

        with pytest.raises(SessionBusy):
            await host.runs.dispatch(turn("r2"))
        with pytest.raises(SessionBusy):
            await terminate_session(host.runs, "tea")
        talker.let_on.set()

        assert (await ending).terminated_ns is not None
        assert await said(host, "r3") == "sdC", "the id may begin a new session"
    assert talker.ended == 1


@pytest.mark.req("RT-22", "NB-13")
async def test_the_provider_stays_open_while_it_ends_a_session(tmp_path: Path) -> None:
    talker = Talker()
    async with open_host(tmp_path, talker) as host:
        await said(host, "r1")
        ending = asyncio.create_task(terminate_session(host.runs, "tea"))
        await within(talker.ending.wait())

        await host.registry.replace([("scripted", Agent(says("new")))])
        await asyncio.sleep(0)
        closed_meanwhile = talker.closed
        talker.let_on.set()
        await ending

    assert (closed_meanwhile, talker.closed) == (0, 1)


@pytest.mark.req("RT-22")
async def test_a_session_with_an_active_run_is_refused_or_its_run_cancelled_first(tmp_path: Path) -> None:
    talker = Talker(Gate(start()))
    talker.let_on.set()
    async with open_host(tmp_path, talker) as host:
        reader = await host.runs.dispatch(turn("r1"))
        await read_one(reader)

        with pytest.raises(SessionBusy, match="has the active run 'r1'"):
            await terminate_session(host.runs, "tea")
        ended = await within(terminate_session(host.runs, "tea", cancel_active=True))

        assert ended.terminated_ns is not None
        assert words(await read_all(reader)) == "X"


@pytest.mark.req("RT-22")
async def test_a_provider_that_cannot_end_sessions_says_so(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(says("hi"))) as host:
        await said(host, "r1")

        with pytest.raises(Unsupported, match="target 'agent' cannot end sessions"):
            await terminate_session(host.runs, "tea")
