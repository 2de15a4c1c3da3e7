"""A node may end at any moment: what has told its end by then leaves no process behind, for nobody takes it up again."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from providers.cli.drivers.slice import Turn
from providers.cli.launching import Machinery
from providers.keeper.client import lock_is_held
from runtime.events import TERMINAL, Draft
from runtime.provider import NoSession
from tests.support.told import BOUND_S, Context, Make, Told, spec

DEMO = (str(Path(sys.executable).parent / "iop-demo-agent"),)
SPOKEN = ("--input-format", "stream-json")


class Ended(Told):
    """A sink that lets nobody go on after the terminal."""

    async def emit(self, drafts: Sequence[Draft], /) -> None:
        await super().emit(drafts)
        if drafts[-1].type in TERMINAL:
            await asyncio.sleep(BOUND_S)


async def until_told(told: Told) -> None:
    while not (told.drafts and told.drafts[-1].type in TERMINAL):
        told.was_told.clear()
        await told.was_told.wait()


async def leave(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.req("RT-21", "PKG-05")
@pytest.mark.parametrize("moment", ["while it tells", "afterwards"])
async def test_a_turn_that_has_told_its_end_leaves_no_warm_process(
    provider: Make, context: Context, machinery: Machinery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    told, let_on = Ended() if moment == "while it tells" else Told(), threading.Event()
    monkeypatch.setattr(Turn, "_leave_files", lambda *_: let_on.wait(BOUND_S))
    talk = provider("claude_session", mode="session", command=DEMO, args=SPOKEN, env={"IOP_DEMO_HOME": str(tmp_path)})
    ctx = context(session=NoSession(key="s", is_named=True))
    async with asyncio.timeout(BOUND_S):
        task = asyncio.create_task(
            talk.execute(ctx, spec("[[demo text=hi delay_ms=0]]", tmp_path, session_id="s"), told)
        )
        await until_told(told)
        assert len(list(machinery.warm.root.iterdir())) == 1

        await leave(task)
        let_on.set()
        await machinery.warm.close()

    assert list(machinery.warm.root.iterdir()) == [], "it goes when nothing of the process is left"


@pytest.mark.req("RT-21", "PKG-05")
async def test_a_run_that_has_told_its_end_leaves_no_process(provider: Make, context: Context, tmp_path: Path) -> None:
    told, ctx = Ended(), context()
    lingers = provider("claude_stream_json", command=DEMO, env={"IOP_DEMO_HOME": str(tmp_path)})
    async with asyncio.timeout(BOUND_S):
        task = asyncio.create_task(lingers.execute(ctx, spec("[[demo:linger words=1]]", tmp_path), told))
        await until_told(told)
        assert ctx.directory is not None and lock_is_held(ctx.directory)

        await leave(task)
        while lock_is_held(ctx.directory):
            await asyncio.sleep(0.02)
