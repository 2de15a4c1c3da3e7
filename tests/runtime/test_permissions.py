"""Questions of a running agent: one answer each, stored first, *deny* when nobody speaks."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from runtime import permissions
from runtime.events import Draft, PermissionRequest
from runtime.failure import Conflict, InvalidRequest, NotFound
from runtime.permissions import ANSWERS, PermissionDesk, read_answers
from runtime.provider import Answer, Decision
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
    await asyncio.wait_for(shown.sign.wait(), 30)
    assert desk.open_requests == ("q1",)
    assert shown[0].expires_at_ns > 0

    await desk.respond("q1", "allow", message="go on")
    stored = read_answers(tmp_path / ANSWERS)
    answer = await asyncio.wait_for(asked, 30)

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
    await asyncio.wait_for(shown.sign.wait(), 30)
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
    async with asyncio.timeout(30):
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


async def test_an_answer_whose_giver_leaves_meanwhile_still_reaches_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, go_on = threading.Event(), threading.Event()
    append = permissions._append

    def slow(path: Path, answer: Answer) -> None:
        writing.set()
        assert go_on.wait(30)
        append(path, answer)

    monkeypatch.setattr(permissions, "_append", slow)
    desk = PermissionDesk(tmp_path, PermissionRules())
    asking = asyncio.create_task(desk.ask(question("q1"), Shown()))
    await asyncio.sleep(0)

    giving = asyncio.create_task(desk.respond("q1", "allow"))
    await asyncio.to_thread(writing.wait, 30)
    giving.cancel()
    await asyncio.sleep(0)
    go_on.set()

    async with asyncio.timeout(30):
        assert (await asking).decision is Decision.ALLOW
    with pytest.raises(asyncio.CancelledError):
        await giving


async def test_an_answer_that_the_disk_did_not_take_can_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, answer: Answer) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    desk = PermissionDesk(tmp_path, PermissionRules())
    asking = asyncio.create_task(desk.ask(question("q1"), Shown()))
    await asyncio.sleep(0)
    with monkeypatch.context() as patched:
        patched.setattr(permissions, "_append", full)
        with pytest.raises(OSError, match="No space"):
            await desk.respond("q1", "allow")

    await desk.respond("q1", "deny")

    assert (await asking).decision is Decision.DENY


def test_what_is_no_answer_is_passed_over(tmp_path: Path) -> None:
    good = b'{"request_id": "q1", "decision": "deny", "by": "rule", "message": ""}\n'
    (tmp_path / ANSWERS).write_bytes(b'\xff\xfe\n{"decision": "allow"}\n[1]\n' + good + b'{"request_id": "q2"')

    assert [answer.request_id for answer in read_answers(tmp_path / ANSWERS)] == ["q1"]
