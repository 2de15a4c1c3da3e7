from __future__ import annotations

import asyncio
import inspect

import pytest

from runtime.provider import NoSession, Position, Provider, RunContext, Stop, StopReason
from tests.support.hosts import PATIENCE_S, Agent, says

CANCEL, DEADLINE = Stop(reason=StopReason.CANCELLED), Stop(reason=StopReason.DEADLINE)


@pytest.mark.req("RT-24", "RT-20")
def test_the_first_request_to_stop_counts() -> None:
    ctx = RunContext()

    assert [ctx.request_stop(CANCEL), ctx.request_stop(DEADLINE), ctx.request_stop(CANCEL)] == [True, False, False]
    assert ctx.stop is CANCEL


@pytest.mark.req("RT-19")
def test_every_listener_is_told_once_and_a_late_one_at_once() -> None:
    ctx, told = RunContext(), list[str]()
    ctx.on_stop(lambda: told.append("early"))

    ctx.request_stop(CANCEL)
    ctx.request_stop(DEADLINE)
    ctx.on_stop(lambda: told.append("late"))

    assert told == ["early", "late"]


@pytest.mark.req("RT-19")
async def test_waiting_for_a_stop_ends_with_it() -> None:
    ctx = RunContext()
    waiting = asyncio.create_task(ctx.stopped())
    await asyncio.sleep(0)
    assert not waiting.done()

    ctx.request_stop(CANCEL)

    async with asyncio.timeout(PATIENCE_S):
        assert await waiting is CANCEL
        assert await ctx.stopped() is CANCEL


def test_places_in_the_output_are_ordered_by_offset_then_index() -> None:
    places = [Position(10, 1), Position(), Position(10, 0), Position(9, 5)]

    assert sorted(places) == [Position(), Position(9, 5), Position(10, 0), Position(10, 1)]


async def test_a_host_without_sessions_remembers_in_memory() -> None:
    slot = NoSession()
    await slot.remember("native-1")

    assert slot.native_id == "native-1"


@pytest.mark.req("RT-03", "RT-05")
def test_a_scripted_provider_is_a_provider() -> None:
    provider: Provider = Agent(says("hi"))

    for name in ("capabilities", "execute", "close"):
        assert list(inspect.signature(getattr(Provider, name)).parameters)[1:] == list(
            inspect.signature(getattr(provider, name)).parameters
        )
