"""Questions of a running agent: one answer each, stored first, *deny* when nobody speaks."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime import permissions
from runtime.events import Draft, PermissionRequest, RequestKind
from runtime.failure import Conflict, InvalidRequest, NotFound
from runtime.permissions import ANSWERS, CONTENT_BYTES, PermissionDesk, read_answers
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


# --- questions, whose answer has a content


def form(request_id: str = "q1") -> PermissionRequest:
    return PermissionRequest(
        request_id=request_id, kind=RequestKind.QUESTION.value, tool="Bash", input_json="{}", reason="Which colour?"
    )


async def put(desk: PermissionDesk, request: PermissionRequest) -> asyncio.Task[Answer]:
    """*request*, open on *desk*."""
    shown = Shown()
    asking = asyncio.create_task(desk.ask(request, shown))
    await asyncio.wait_for(shown.sign.wait(), 5)
    return asking


CONTENT: dict[str, Any] = {"colour": "blue", "sizes": ["s", "m"], "count": 2, "is_gift": False, "weight": 0.5}


@pytest.mark.req("RT-13")
async def test_a_question_is_answered_with_what_was_given_also_after_a_restart(tmp_path: Path) -> None:
    desk = PermissionDesk(tmp_path, PermissionRules())
    asking = await put(desk, form())

    given_answer = await desk.respond("q1", "allow", content=CONTENT)
    again = await PermissionDesk(tmp_path, PermissionRules()).ask(form(), Shown())

    assert await asking == given_answer == again
    assert again.content == {**CONTENT, "sizes": ("s", "m")}
    with pytest.raises(TypeError):
        again.content["colour"] = "red"  # type: ignore[index]  # it is read-only


@pytest.mark.req("RT-13")
@pytest.mark.parametrize("rules", [PermissionRules(allow=("*",)), PermissionRules(deny=("*",))])
async def test_a_rule_about_tools_answers_no_question(tmp_path: Path, rules: PermissionRules) -> None:
    desk = PermissionDesk(tmp_path, rules)
    asking = await put(desk, form())

    await desk.respond("q1", "allow", content={})

    assert (await asking).by == "caller"


async def test_nobody_answering_a_question_in_time_means_deny(tmp_path: Path) -> None:
    answer = await PermissionDesk(tmp_path, PermissionRules(patience_s=0.01)).ask(form(), Shown())

    assert (answer.decision, answer.by, answer.content) == (Decision.DENY, "timeout", None)


@pytest.mark.req("RT-13")
@pytest.mark.parametrize(
    ("request_", "decision", "content", "says"),
    [
        (form(), "allow", None, "allow it with an answer"),
        (form(), "deny", {}, "leave it out, or allow"),
        (question(), "allow", {}, "leave to use 'Bash'; leave the answer out"),
        (form(), "allow", {"a": {"b": 1}}, "answer.a is of type dict; use a text"),
        (form(), "allow", {"a": None}, "answer.a is of type NoneType"),
        (form(), "allow", {"a": ["b", 1]}, "answer.a is of type list"),
        (form(), "allow", {"a": float("nan")}, "cannot be told as JSON"),
        (form(), "allow", {"a": "\ud800"}, "cannot be told as JSON"),
        (form(), "allow", {"a": "é" * (CONTENT_BYTES // 2)}, f"use at most {CONTENT_BYTES}"),
    ],
)
async def test_what_is_no_answer_to_it_is_refused_and_it_stays_open(
    tmp_path: Path, request_: PermissionRequest, decision: str, content: dict[str, Any] | None, says: str
) -> None:
    desk = PermissionDesk(tmp_path, PermissionRules())
    asking = await put(desk, request_)

    with pytest.raises(InvalidRequest, match=says) as refused:
        await desk.respond("q1", decision, content=content)

    assert refused.value.failure.metadata["field"] == "answer"
    assert desk.open_requests == ("q1",) and not (tmp_path / ANSWERS).exists()
    await desk.respond("q1", "deny")
    assert (await asking).decision is Decision.DENY


async def test_an_answered_question_takes_no_other_answer(tmp_path: Path) -> None:
    desk = PermissionDesk(tmp_path, PermissionRules())
    asking = await put(desk, form())
    await desk.respond("q1", "allow", content={"colour": "blue"})

    with pytest.raises(Conflict, match="answered allow"):
        await desk.respond("q1", "allow", content={"colour": "red"})

    assert (await asking).content == {"colour": "blue"}


VALUES = (
    st.text() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.lists(st.text())
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=st.dictionaries(st.text(), VALUES, max_size=5))
def test_any_content_is_read_back_as_it_was_stored(tmp_path: Path, content: dict[str, Any]) -> None:
    (tmp_path / ANSWERS).unlink(missing_ok=True)
    answer = Answer(request_id="q1", decision=Decision.ALLOW, by="caller", content=content)

    permissions._append(tmp_path / ANSWERS, answer)

    assert read_answers(tmp_path / ANSWERS) == [answer]
