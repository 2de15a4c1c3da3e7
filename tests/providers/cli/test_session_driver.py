"""What the start of a turn says of the conversation before it: a fresh process that begins without it never pretends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from providers.cli.launching import SESSION_HISTORY, Machinery
from providers.cli.provider import CliProvider
from runtime.failure import SessionNotFound
from runtime.provider import NoSession
from runtime.types import SessionMode
from tests.support.nodes import AGENTS
from tests.support.told import BOUND_S, Context, Make, Told, spec

NOT_RESUMED = {SESSION_HISTORY: "not_resumed"}
PROMPT = "[[demo words=2 delay_ms=1]]"
RESUME = ("--input-format", "stream-json", "--resume", "{{session}}")
ASKING = (sys.executable, "-I", "-S", str(AGENTS / "asks_between.py"))


@pytest.fixture
def talk(provider: Make, tmp_path: Path) -> Make:
    """A provider of the demo agent, or of one that speaks another language, in mode session."""

    def make(dialect: str = "claude_session", **changes: Any) -> CliProvider:
        demo: dict[str, Any] = {
            "command": (str(Path(sys.executable).parent / "iop-demo-agent"),), "args": RESUME[:2],
            "env": {"IOP_DEMO_HOME": str(tmp_path / "demo")},
        }  # fmt: skip
        other = {"command": (*ASKING, dialect.partition("_")[0])}
        return provider(dialect, mode="session", **{**(demo if dialect == "claude_session" else other), **changes})

    return make


def session(native_id: str | None = None, *, has_history: bool = True) -> NoSession:
    return NoSession(key="s", is_named=True, has_history=has_history, native_id=native_id)


async def say(made: CliProvider, ctx: Any, workspace: Path, mode: str = "create_if_missing") -> Told:
    told = Told()
    async with asyncio.timeout(BOUND_S):
        await made.execute(ctx, spec(PROMPT, workspace, session_id="s", session_mode=SessionMode(mode)), told)
    return told


@pytest.mark.req("RT-36")
@pytest.mark.parametrize("dialect", ["claude_session", "codex_app_server", "acp"])
async def test_a_fresh_process_without_the_conversation_says_so(
    talk: Make, context: Context, tmp_path: Path, dialect: str
) -> None:
    told = await say(talk(dialect, resume_args=RESUME), context(session=session()), tmp_path)

    assert told.drafts[0].metadata == NOT_RESUMED
    assert told.drafts[-1].type == "complete" and SESSION_HISTORY not in told.drafts[-1].metadata


@pytest.mark.req("RT-36")
async def test_a_profile_that_cannot_resume_says_so_though_the_id_is_known(
    talk: Make, context: Context, tmp_path: Path
) -> None:
    slot = session("an-id-of-before")

    told = await say(talk(), context(session=slot), tmp_path)

    assert (told.drafts[0].metadata, told.drafts[-1].text) == (NOT_RESUMED, "turn 1: alpha bravo")
    assert slot.native_id != "an-id-of-before", "the conversation that there is now is the one to go on with"


@pytest.mark.req("RT-36")
@pytest.mark.parametrize("dialect", ["claude_session", "codex_app_server", "acp"])
async def test_a_process_that_resumes_and_a_first_one_have_nothing_to_say(
    talk: Make, context: Context, machinery: Machinery, tmp_path: Path, dialect: str
) -> None:
    """Codex and the Agent Client Protocol name the conversation in their opening, without resume arguments."""
    made = talk(dialect, resume_args=RESUME if dialect == "claude_session" else ())
    slot = session(has_history=False)
    first = await say(made, context(session=slot), tmp_path)
    slot.has_history = True
    await made.terminate_session(slot)

    second = await say(made, context(session=slot), tmp_path, "require_existing")

    assert [told.drafts[0].metadata for told in (first, second)] == [{}, {}]
    assert second.drafts[-1].type == "complete"


@pytest.mark.req("RT-36")
@pytest.mark.parametrize(("native_id", "resume_args"), [(None, RESUME), ("known", ())], ids=["no id", "no way"])
async def test_a_required_conversation_that_cannot_be_gone_on_with_starts_nothing(
    talk: Make, context: Context, machinery: Machinery, tmp_path: Path, native_id: str | None, resume_args: Any
) -> None:
    ctx = context(session=session(native_id))

    with pytest.raises(SessionNotFound):
        await say(talk(resume_args=resume_args), ctx, tmp_path, "require_existing")

    assert list(machinery.warm.root.iterdir()) == [], "nothing was spawned"
    assert ctx.directory is not None and list(ctx.directory.iterdir()) == []


@pytest.mark.req("RT-36")
async def test_a_turn_into_the_living_process_is_no_fresh_start(talk: Make, context: Context, tmp_path: Path) -> None:
    made = talk()
    await say(made, context(session=session(has_history=False)), tmp_path)

    second = await say(made, context(session=session()), tmp_path, "require_existing")

    assert (second.drafts[0].metadata, second.drafts[-1].text) == ({}, "turn 2: alpha bravo")


@pytest.mark.req("RT-36")
async def test_an_adopted_turn_says_of_its_beginning_what_was_so(talk: Make, context: Context, tmp_path: Path) -> None:
    """By now the process has named its conversation, so what was so can only be known from the disk."""
    made, ctx, slot = talk(resume_args=RESUME), context(session=session()), session()
    first = Told()
    slow = spec("[[demo words=30 delay_ms=20]]", tmp_path, session_id="s")
    running = asyncio.create_task(made.execute(ctx, slow, first))
    await first.until(3)
    running.cancel()
    await asyncio.wait([running])
    slot.native_id = "known-by-now"
    again = Told()
    async with asyncio.timeout(BOUND_S):
        await made.execute(context(ctx.directory, adopting=True, session=slot), slow, again)

    assert first.drafts[0].metadata == again.drafts[0].metadata == NOT_RESUMED
    assert again.drafts[-1].type == "complete"


@pytest.mark.req("RT-36")
async def test_a_turn_that_begins_anew_in_a_fresh_process_says_it_with_its_end(
    talk: Make, context: Context, machinery: Machinery, tmp_path: Path
) -> None:
    """Its start was told when the living process was to take it; that one died and had read nothing."""
    made = talk()
    await say(made, context(session=session(has_history=False)), tmp_path)
    (process,) = machinery.warm.idle
    assert process.link.owner is not None
    os.kill(pid := process.link.owner.pid, signal.SIGSTOP)
    await _stopped(pid)
    told = Told()
    running = asyncio.create_task(
        made.execute(context(session=session()), spec(PROMPT, tmp_path, session_id="s"), told)
    )
    await told.until(1)
    os.kill(pid, signal.SIGKILL)
    await asyncio.wait_for(running, BOUND_S)

    assert [(draft.type.value, draft.metadata.get(SESSION_HISTORY)) for draft in (told.drafts[0], told.drafts[-1])] == [
        ("start", None), ("complete", "not_resumed"),
    ]  # fmt: skip
    assert [kind for kind, _ in told.said()].count("start") == 1


async def _stopped(pid: int) -> None:
    """Until all threads of *pid* are: one that is not may still read."""
    async with asyncio.timeout(BOUND_S):
        while any(
            path.read_text().rpartition(")")[2].split()[0] != "T" for path in Path(f"/proc/{pid}/task").glob("*/stat")
        ):
            await asyncio.sleep(0.01)
