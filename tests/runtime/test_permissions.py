"""Questions of a running agent: one answer each, stored first, *deny* when nobody speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime.events import Draft, PermissionRequest
from runtime.failure import Conflict, InvalidRequest, NotFound
from runtime.permissions import ANSWERS, PermissionDesk, read_answers
from runtime.provider import Decision
from runtime.types import PermissionRules


class Shown(list[PermissionRequest]):
    """What was shown, and a sign for each."""

    def __init__(self) -> None:
        super().__init__()
        self.sign = asyncio.Event()

    async def __call__(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            assert isinstance(draft.activity, PermissionRequest)
            self.append(draft.activity)
        self.sign.set()


def question(request_id: str = "q1", tool: str = "Bash") -> PermissionRequest:
    return PermissionRequest(request_id=request_id, tool=tool, input_json='{"command":"ls"}')


async def test_an_answer_reaches_the_agent_and_is_on_disk_before(tmp_path: Path) -> None:
    desk, shown = PermissionDesk(tmp_path, PermissionRules()), Shown()
    asked = asyncio.create_task(desk.ask(question(), shown))
    await asyncio.wait_for(shown.sign.wait(), 5)
    assert desk.open_requests == ("q1",)
    assert shown[0].expires_at_ns > 0

    await desk.respond("q1", "allow", message="go on")
    stored = read_answers(tmp_path / ANSWERS)
    answer = await asyncio.wait_for(asked, 5)

    assert [answer] == stored
    assert (answer.decision, answer.by, answer.message) == (Decision.ALLOW, "caller", "go on")
    assert not desk.open_requests


async def test_nobody_answering_in_time_means_deny(tmp_path: Path) -> None:
    desk = PermissionDesk(tmp_path, PermissionRules(patience_s=0.01))

    answer = await desk.ask(question(), Shown())

    assert (answer.decision, answer.by) == (Decision.DENY, "timeout")
    with pytest.raises(Conflict, match="answered deny"):
        await desk.respond("q1", "allow")


async def test_rules_decide_without_asking_and_deny_wins(tmp_path: Path) -> None:
    rules = PermissionRules(allow=("*",), deny=("Bash", "mcp__*"))
    desk, shown = PermissionDesk(tmp_path, rules), Shown()

    decisions = [
        (await desk.ask(question(f"q{n}", tool), shown)).decision for n, tool in enumerate(("Read", "Bash", "mcp__x"))
    ]

    assert decisions == [Decision.ALLOW, Decision.DENY, Decision.DENY]
    assert shown == []


async def test_a_restarted_host_gives_the_same_answer_without_asking_again(tmp_path: Path) -> None:
    before, shown = PermissionDesk(tmp_path, PermissionRules()), Shown()
    asked = asyncio.create_task(before.ask(question(), shown))
    await asyncio.wait_for(shown.sign.wait(), 5)
    await before.respond("q1", "deny")
    await asked
    with open(tmp_path / ANSWERS, "a", encoding="utf-8") as torn:
        torn.write('{"request_id": "q2", "deci')

    after, shown_after = PermissionDesk(tmp_path, PermissionRules()), Shown()

    assert (await after.ask(question(), shown_after)).decision is Decision.DENY
    assert shown_after == []


async def test_several_questions_are_open_at_once_and_answered_in_any_order(tmp_path: Path) -> None:
    desk, shown = PermissionDesk(tmp_path, PermissionRules()), Shown()
    asked = [asyncio.create_task(desk.ask(question(f"q{n}"), shown)) for n in range(3)]
    async with asyncio.timeout(5):
        while len(shown) < 3:
            shown.sign.clear()
            await shown.sign.wait()

    for n in (2, 0, 1):
        await desk.respond(f"q{n}", "allow" if n else "deny")

    answers = await asyncio.gather(*asked)
    assert [a.decision for a in answers] == [Decision.DENY, Decision.ALLOW, Decision.ALLOW]


async def test_an_answer_to_nothing_or_of_no_meaning_is_refused(tmp_path: Path) -> None:
    desk = PermissionDesk(tmp_path, PermissionRules())

    with pytest.raises(NotFound, match="q9"):
        await desk.respond("q9", "allow")
    with pytest.raises(InvalidRequest, match="perhaps"):
        await desk.respond("q9", "perhaps")
    assert not (tmp_path / ANSWERS).exists()
