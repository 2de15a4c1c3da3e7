from __future__ import annotations

import asyncio

import pytest

from runtime.cancellation import first_of, to_the_end

PATIENCE_S = 30.0


class Work:
    """Something that must be finished; the test says when."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.begun, self.let_on = asyncio.Event(), asyncio.Event()
        self.is_finished = False
        self._problem = problem

    async def run(self) -> str:
        self.begun.set()
        await self.let_on.wait()
        self.is_finished = True
        if self._problem is not None:
            raise self._problem
        return "result"


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_without_a_cancel_it_is_a_plain_await() -> None:
    work = Work()
    work.let_on.set()

    assert await to_the_end(work.run()) == "result"


async def test_an_error_of_the_work_is_raised() -> None:
    work = Work(ValueError("bad"))
    work.let_on.set()

    with pytest.raises(ValueError, match="bad"):
        await to_the_end(work.run())


@pytest.mark.parametrize("cancels", [1, 2, 5])
async def test_however_often_it_is_cancelled_the_work_is_finished_first(cancels: int) -> None:
    work = Work()
    waiter = asyncio.create_task(to_the_end(work.run()))
    await asyncio.wait_for(work.begun.wait(), PATIENCE_S)

    for _ in range(cancels):
        waiter.cancel()
        await settle()
        assert not waiter.done()
    work.let_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiter, PATIENCE_S)
    assert work.is_finished


async def test_a_cancel_wins_over_the_error_and_keeps_it_as_the_cause() -> None:
    problem = ValueError("bad")
    work = Work(problem)
    seen: list[BaseException | None] = []

    async def caller() -> None:
        try:
            await to_the_end(work.run())
        except asyncio.CancelledError as cancel:
            seen.append(cancel.__cause__)
            raise

    waiter = asyncio.create_task(caller())
    await asyncio.wait_for(work.begun.wait(), PATIENCE_S)
    waiter.cancel()
    await settle()
    work.let_on.set()

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiter, PATIENCE_S)
    assert seen == [problem]


async def test_work_that_cancels_itself_ends_the_wait() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(to_the_end(give_up()), PATIENCE_S)


async def test_a_time_out_does_not_leave_the_work_behind() -> None:
    work = Work()

    async def bounded() -> None:
        async with asyncio.timeout(0):
            await to_the_end(work.run())

    waiter = asyncio.create_task(bounded())
    await asyncio.wait_for(work.begun.wait(), PATIENCE_S)
    await settle()
    assert not waiter.done()
    work.let_on.set()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(waiter, PATIENCE_S)
    assert work.is_finished


async def test_the_first_of_several_waits_ends_the_others() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("forever")

    await first_of(forever(), asyncio.sleep(0))
    await asyncio.sleep(0)

    assert ended == ["forever"]


async def test_a_cancelled_wait_for_the_first_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(first_of(asyncio.Event().wait(), asyncio.Event().wait()))
    await asyncio.sleep(0)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == before
