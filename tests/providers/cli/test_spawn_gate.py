from __future__ import annotations

import asyncio
import time
from pathlib import Path

from providers.cli.spawn_gate import SpawnGate

LOGIN = (".agent/login.json",)


async def test_starts_with_one_login_file_are_spaced_in_order(tmp_path: Path) -> None:
    (tmp_path / ".agent").mkdir()
    (tmp_path / LOGIN[0]).write_text("{}")
    gate, order = SpawnGate(gap_s=0.05), list[int]()
    began = time.monotonic()

    async def start(number: int) -> None:
        await gate.pass_through(str(tmp_path), LOGIN)
        order.append(number)

    await asyncio.gather(*(start(number) for number in range(4)))

    assert order == [0, 1, 2, 3]
    assert time.monotonic() - began >= 0.15


async def test_without_a_login_file_nobody_waits(tmp_path: Path) -> None:
    gate = SpawnGate(gap_s=3600)

    async with asyncio.timeout(5):
        for _ in range(100):
            await gate.pass_through(str(tmp_path), LOGIN)
