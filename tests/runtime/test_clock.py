from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from runtime.clock import Alarm, boot_id, boot_time_s
from tests.support.hosts import PATIENCE_S


@pytest.mark.req("RT-24")
@pytest.mark.parametrize("ahead_s", [-5.0, 0.0, 0.02])
async def test_an_alarm_rings_once_when_its_time_has_come(ahead_s: float) -> None:
    rung: list[float] = []
    done = asyncio.Event()

    def ring() -> None:
        rung.append(boot_time_s())
        done.set()

    at = boot_time_s() + ahead_s
    Alarm(at, ring)
    assert rung == []  # never from within the constructor
    async with asyncio.timeout(PATIENCE_S):
        await done.wait()

    assert len(rung) == 1
    assert rung[0] >= at


async def test_a_cancelled_alarm_stays_silent() -> None:
    rung: list[int] = []
    alarm = Alarm(boot_time_s() - 1, lambda: rung.append(1))

    alarm.cancel()
    alarm.cancel()
    for _ in range(3):
        await asyncio.sleep(0)

    assert rung == []


def test_a_boot_has_an_id() -> None:
    assert str(UUID(boot_id())) == boot_id()
