"""One process for a whole session: the next turn goes into it, and nobody notices when it is not there any more."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import signal
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient, NodeError
from providers.demo_agent import WORDS as WORDS_SAID
from runtime.events import PermissionRequest, RuntimeEvent
from runtime.provider import InputOutcome
from tests.support.nodes import DEMO, Agent, Node, wait_until
from tests.support.runs import BOUND_S, begun, ending, follow, run, text, words

NewNode = Callable[..., Node]

CRASHING = (sys.executable, str(Path(__file__).parents[2] / "tests/support/crashing_node.py"))
WORDS = "[[demo words=3 delay_ms=1]]"
TALK = Agent(
    command=DEMO, dialect="claude_session", mode="session", cancel=["interrupt", "term"], verbs=["interrupt"],
    args=["--input-format", "stream-json"], resume_args=["--input-format", "stream-json", "--resume", "{{session}}"],
)  # fmt: skip
ANSWER = " ".join(WORDS_SAID[:3])


@asynccontextmanager
async def talking(node: Node) -> AsyncIterator[NodeClient]:
    """A client of the started *node*; every wait in the block is bounded."""
    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        yield client


@pytest.fixture
def warm_node(new_node: NewNode) -> Callable[..., Node]:
    """Makes and starts a node whose one target, ``talk``, is a session profile."""

    def make(**settings: Any) -> Node:
        times = {"cancel_grace_s": 8.0, **settings.pop("times", {})}
        return new_node(agents={"talk": TALK}, times=times, **settings).start()

    return make


async def say(client: NodeClient, prompt: str = WORDS, session: str = "s", **more: Any) -> list[RuntimeEvent]:
    """One turn of *session*."""
    return await run(client, "talk", prompt, session_id=session, **{"session_mode": "create_if_missing", **more})


def speaking(client: NodeClient, prompt: str, session: str = "s", **more: Any) -> Any:
    """As :func:`say`, while it goes on."""
    return begun(client, "talk", prompt, session_id=session, session_mode="create_if_missing", **more)


async def pid_of(client: NodeClient, events: list[RuntimeEvent]) -> int:
    """The process that took the turn."""
    return int((await client.get(events[0].run_id)).details["pid"])


def agents(node: Node) -> list[int]:
    return sorted(node.agent_processes())


@pytest.mark.req("RT-36", "RT-11", "BAN-17")
async def test_the_second_turn_goes_into_the_same_process(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        first, second = await say(client), await say(client)
        pids = [await pid_of(client, events) for events in (first, second)]
        raw = b"".join([piece async for piece in client.artifact(second[0].run_id, "raw")])

    assert [ending(events[-1]) for events in (first, second)] == [
        ("complete", f"turn 1: {ANSWER}"),
        ("complete", f"turn 2: {ANSWER}"),
    ]
    assert [words(events)[0] for events in (first, second)] == ["start", "start"]
    assert text(second) == f"turn 2: {ANSWER}"
    assert pids[0] == pids[1]
    assert raw.count(b'"type":"result"') == 1 and b"turn 1" not in raw
    assert agents(node) == [pids[0]]
    assert node.stop() == 0
    assert (agents(node), node.warm_directories()) == ([], [])


async def test_a_run_without_a_session_leaves_no_process(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        events = await run(client, "talk", WORDS)

        assert ending(events[-1]) == ("complete", f"turn 1: {ANSWER}")
        node.assert_no_agents()
        wait_until(lambda: node.warm_directories() == [])


@pytest.mark.req("RT-36")
async def test_an_idle_process_is_closed_and_the_session_goes_on(warm_node: Callable[..., Node]) -> None:
    node = warm_node(times={"warm_idle_s": 0.3})

    async with talking(node) as client:
        first = await say(client)
        before = await pid_of(client, first)
        wait_until(lambda: not agents(node) and not node.warm_directories())
        second = await say(client)

        assert ending(second[-1]) == ("complete", f"turn 2: {ANSWER}")
        assert await pid_of(client, second) != before


@pytest.mark.req("RT-36")
@pytest.mark.parametrize("window", ["", "between_part_and_turn"], ids=["one node", "the next node"])
async def test_a_turn_of_an_agent_that_cannot_resume_says_that_it_begins_anew(new_node: NewNode, window: str) -> None:
    """Also when the node that started the process died before it could say so."""
    prefix = (*CRASHING, window) if window else ()
    node = new_node(agents={"talk": replace(TALK, resume_args=())}, prefix=prefix).start()

    async with talking(node) as client:
        first, second = await say(client), await say(client, session_mode="require_existing")
        os.kill(await pid_of(client, second), signal.SIGKILL)
        wait_until(lambda: not node.warm_directories())
        required = await say(client, session_mode="require_existing")
        assert node.warm_directories() == [], "nothing was started"
        (node.root / "armed").touch()
        if window:
            dispatched = asyncio.create_task(say(client, background=True, run_id="anew"))
            await asyncio.to_thread(wait_until, (node.root / "crashed").exists)
            node.kill()
            dispatched.cancel()
            node.start()
    async with talking(node) as client:
        anew = await (follow(client.attach("anew")) if window else say(client))

    assert [events[0].metadata.get("session_history") for events in (first, second, anew)] == [
        None,
        None,
        "not_resumed",
    ]
    assert ending(required[-1]) == ("error", "session_not_found")
    assert [events[-1].message.partition(":")[0] for events in (first, second, anew)] == ["turn 1", "turn 2", "turn 1"]


@pytest.mark.req("RT-36")
async def test_the_longest_unused_process_makes_room(warm_node: Callable[..., Node]) -> None:
    node = warm_node(limits={"max_warm_processes": 2})

    async with talking(node) as client:
        pids = {name: await pid_of(client, await say(client, session=name)) for name in ("a", "b", "c")}
        wait_until(lambda: agents(node) == sorted([pids["b"], pids["c"]]))
        again = {name: await say(client, session=name) for name in ("b", "a")}

        assert [ending(again[name][-1]) for name in ("b", "a")] == [("complete", f"turn 2: {ANSWER}")] * 2
        assert await pid_of(client, again["b"]) == pids["b"]
        wait_until(lambda: len(agents(node)) == 2)


@pytest.mark.parametrize("victim", ["agent", "warden"])
async def test_a_crash_between_turns_is_not_noticed(warm_node: Callable[..., Node], victim: str) -> None:
    node = warm_node()

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        killed = pid if victim == "agent" else _parent(pid)
        os.kill(killed, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{killed}/fd/0").exists())  # a dying process still reads
        second = await say(client)

        assert ending(second[-1]) == ("complete", f"turn 2: {ANSWER}")
        assert await pid_of(client, second) != pid
        wait_until(lambda: len(agents(node)) == 1)


async def test_a_crash_in_the_turn_is_its_failure_and_the_session_goes_on(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        async with speaking(client, "[[demo:slow]]") as (run_id, events):
            await anext(events)
            os.kill(agents(node)[0], signal.SIGKILL)
            rest = await follow(events)
        second = await say(client)

        assert ending(rest[-1]) == ("error", "process_failed")
        assert (await client.get(run_id)).details["signal"] == "9"
        assert ending(second[-1]) == ("complete", f"turn 2: {ANSWER}")


async def test_a_process_that_dies_while_the_turn_is_sent_takes_none_of_it(warm_node: Callable[..., Node]) -> None:
    """It was stopped and read nothing, so a fresh one answers, once."""
    node = warm_node()

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _states(pid) == {"T"})  # a thread that is not stopped yet may still read
        async with speaking(client, WORDS) as (_, events):
            os.kill(pid, signal.SIGKILL)
            rest = await follow(events)

        assert ending(rest[-1]) == ("complete", f"turn 2: {ANSWER}")
        assert words(rest).count("start") == 0 and sum(event.is_terminal for event in rest) == 1


@pytest.mark.req("RT-23", "E-5", "RT-19")
async def test_a_confirmed_interrupt_keeps_the_process(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        async with speaking(client, "[[demo:tool cmd=sleep%20600]]") as (run_id, events):
            wait_until(lambda: len(agents(node)) > 1)
            receipt = await client.cancel(run_id)
            rest = await follow(events)
        third = await say(client)

        assert (receipt.accepted, receipt.state, rest[-1].type.value) == (True, "cancelled", "cancelled")
        assert ending(third[-1]) == ("complete", f"turn 3: {ANSWER}")
        assert await pid_of(client, third) == pid
        assert agents(node) == [pid], "the tool is gone"


@pytest.mark.req("RT-21", "RT-23", "E-5")
@pytest.mark.parametrize(
    ("prompt", "starts"),
    [("[[demo:stubborn]]", "sleep 600.0"), ("[[demo:tool cmd=setsid%20sleep%20601%20%26%20sleep%20600]]", "sleep 601")],
    ids=["not confirmed", "a tool is left"],
)
async def test_a_cancel_that_is_not_clean_ends_the_process(
    warm_node: Callable[..., Node], prompt: str, starts: str
) -> None:
    node = warm_node(times={"cancel_grace_s": 1.0})

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        async with speaking(client, prompt) as (run_id, events):
            wait_until(lambda: starts in node.agent_processes().values())
            receipt = await client.cancel(run_id)
            rest = await follow(events)
            node.assert_no_agents()
        third = await say(client)

        assert (receipt.accepted, rest[-1].type.value) == (True, "cancelled")
        assert ending(third[-1]) == ("complete", f"turn 3: {ANSWER}")
        assert await pid_of(client, third) != pid


@pytest.mark.req("RT-20", "E-6")
async def test_a_late_cancel_does_not_hit_the_next_turn(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        first = await say(client)
        async with speaking(client, "[[demo words=20 delay_ms=20]]") as (_, events):
            receipts = [await client.cancel(first[0].run_id) for _ in range(3)]
            rest = await follow(events)

        assert [(receipt.accepted, receipt.state) for receipt in receipts] == [(False, "complete")] * 3
        assert rest[-1].type == "complete"


@pytest.mark.req("RT-20", "E-6")
async def test_cancels_around_the_end_of_turns_never_disturb_the_next(warm_node: Callable[..., Node]) -> None:
    """Each turn is cancelled about when it ends; whatever the receipt says, the turn after it is whole."""
    node = warm_node()

    async with talking(node) as client:
        await say(client)  # a session whose first turn was never begun has no history
        said = [1]
        for number in range(12):
            async with speaking(client, "[[demo words=8 delay_ms=5]]") as (run_id, events):
                await asyncio.sleep(0.02 + 0.006 * number)
                receipt = await client.cancel(run_id)
                rest = await follow(events)
            after = await say(client, WORDS)

            assert receipt.accepted == (rest[-1].type == "cancelled")
            turn, _, answer = after[-1].message.partition(": ")
            said.append(int(turn.removeprefix("turn ")))
            assert (after[-1].type.value, answer) == ("complete", ANSWER)
        assert said == sorted(set(said)), "no turn was said twice"


# --- verbs


@pytest.mark.req("E-5", "BAN-19")
async def test_an_interrupt_that_the_agent_confirms_cancels_the_run(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        async with speaking(client, "[[demo:slow]]") as (run_id, events):
            await anext(events)
            receipt = await client.send_input(run_id, "interrupt")
            rest = await follow(events)
        third = await say(client)

        assert receipt.outcome is InputOutcome.CONFIRMED
        assert ending(rest[-1]) == ("cancelled", "interrupted on request")
        assert (await client.get(run_id)).run.state == "cancelled"
        assert ending(third[-1]) == ("complete", f"turn 3: {ANSWER}")
        assert await pid_of(client, third) == pid


@pytest.mark.req("E-5")
async def test_an_interrupt_never_signals(warm_node: Callable[..., Node]) -> None:
    """An agent that does not listen goes on, and the receipt says so."""
    node = warm_node(times={"cancel_grace_s": 0.5})

    async with talking(node) as client, speaking(client, "[[demo:stubborn seconds=4]]") as (run_id, events):
        await anext(events)
        receipt = await client.send_input(run_id, "interrupt")
        rest = await follow(events)

        assert receipt.outcome is InputOutcome.NOT_CONFIRMED
        assert ending(rest[-1]) == ("complete", "I was not stopped")


async def test_an_interrupt_after_the_end_is_too_late_and_hits_nothing(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        first = await say(client)
        async with speaking(client, "[[demo words=20 delay_ms=10]]") as (_, events):
            receipt = await client.send_input(first[0].run_id, "interrupt")
            rest = await follow(events)

        assert receipt.outcome is InputOutcome.TOO_LATE
        assert rest[-1].type == "complete"


@pytest.mark.parametrize("verb", ["steer", "queue"])
async def test_a_verb_that_is_not_declared_is_refused(warm_node: Callable[..., Node], verb: str) -> None:
    node = warm_node()

    async with talking(node) as client, speaking(client, "[[demo words=60 delay_ms=20]]") as (run_id, events):
        with pytest.raises(NodeError) as refused:
            await client.send_input(run_id, verb, "more")
        rest = await follow(events)

        assert refused.value.code == "unsupported"
        assert rest[-1].type == "complete"


async def test_an_interrupt_that_the_node_did_not_live_to_see_confirmed_cancels(
    warm_node: Callable[..., Node],
) -> None:
    node = warm_node(times={"cancel_grace_s": 5.0})
    async with talking(node) as client, speaking(client, "[[demo:slow]]", background=True) as (run_id, events):
        await anext(events)
        os.kill(pid := agents(node)[0], signal.SIGSTOP)
        await asyncio.to_thread(wait_until, lambda: _states(pid) == {"T"})
        asked = asyncio.create_task(client.send_input(run_id, "interrupt"))
        await asyncio.to_thread(wait_until, (node.run_directories()[-1] / "interrupt").exists)
        await asyncio.to_thread(wait_until, lambda: _unread_bytes(pid) > 0)
        node.kill()
        os.kill(pid, signal.SIGCONT)
        asked.cancel()

    node.start()

    async with talking(node) as client:
        whole = await follow(client.attach(run_id))
        assert ending(whole[-1]) == ("cancelled", "interrupted on request")


@pytest.mark.req("RT-22", "NB-17", "BAN-19")
async def test_a_terminated_session_has_no_process(warm_node: Callable[..., Node]) -> None:
    node = warm_node()

    async with talking(node) as client:
        await say(client)
        await client.terminate_session("s")

        assert agents(node) == []
        assert ending((await say(client))[-1]) == ("complete", f"turn 1: {ANSWER}")


async def test_a_turn_of_megabytes_arrives_whole(warm_node: Callable[..., Node]) -> None:
    node = warm_node()
    prompt = ("x" * 99 + " ") * 30_000

    async with talking(node) as client:
        first, second = await say(client, prompt), await say(client, prompt)

        assert all("(2999999 characters)" in events[-1].message for events in (first, second))


async def test_an_agent_that_cannot_be_spoken_to_is_a_failure_at_once(new_node: NewNode) -> None:
    deaf = Agent(command=["/bin/sh", "-c", "exec <&-; exec sleep 600"], dialect="claude_session", mode="session")
    node = new_node(agents={"talk": deaf}).start()

    async with talking(node) as client:
        events = await say(client, "x" * 200_000)

        assert ending(events[-1]) == ("error", "process_failed")
        node.assert_no_agents()


async def test_a_deadline_ends_the_process_and_not_the_session(warm_node: Callable[..., Node]) -> None:
    from datetime import timedelta

    node = warm_node()

    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
        late = await say(client, "[[demo:slow]]", timeout=timedelta(seconds=0.5))
        third = await say(client)

        assert ending(late[-1]) == ("error", "deadline_exceeded")
        assert ending(third[-1]) == ("complete", f"turn 3: {ANSWER}")
        assert await pid_of(client, third) != pid


# --- the node's end


@pytest.mark.parametrize("way", ["kill", "stop"])
async def test_a_turn_under_way_is_adopted_and_an_idle_process_is_closed(
    warm_node: Callable[..., Node], way: str
) -> None:
    node = warm_node(times={"foreground_grace_s": 30.0})
    async with talking(node) as client:
        idle = await pid_of(client, await say(client, session="idle"))
        await say(client, session="busy")
        async with speaking(client, "[[demo words=80 delay_ms=40]]", session="busy", background=True) as (
            run_id,
            events,
        ):
            before = [await anext(events) for _ in range(3)]
    busy = next(pid for pid in agents(node) if pid != idle) if way == "kill" else None
    getattr(node, way)()
    if way == "kill":
        assert idle in agents(node)
    else:
        wait_until(lambda: idle not in agents(node))

    node.start()

    async with talking(node) as client:
        whole = await follow(client.attach(run_id))
        wait_until(lambda: idle not in agents(node))
        again = await say(client, session="busy")
        resumed = await say(client, session="idle")

        assert text(whole) == "turn 2: " + " ".join(WORDS_SAID[number % len(WORDS_SAID)] for number in range(80))
        assert ending(whole[-1]) == ("complete", text(whole))
        assert _only_grows([event.sequence for event in whole])
        assert text(whole).startswith(text(before))
        assert ending(again[-1]) == ("complete", f"turn 3: {ANSWER}")
        assert busy is None or await pid_of(client, again) == busy
        assert ending(resumed[-1]) == ("complete", f"turn 2: {ANSWER}")


async def test_a_turn_that_ended_without_a_node_is_finished_once(warm_node: Callable[..., Node]) -> None:
    node = warm_node()
    prompt = "[[demo words=10 delay_ms=40]]"
    async with talking(node) as client, speaking(client, prompt, background=True) as (run_id, events):
        await anext(events)
    node.kill()
    output = node.warm_directories()[0] / "stdout"
    await asyncio.to_thread(wait_until, lambda: b'"type":"result"' in output.read_bytes())

    node.start()

    async with talking(node) as client:
        whole = await follow(client.attach(run_id))
        assert ending(whole[-1])[0] == "complete"
        assert text(whole) == whole[-1].message
        assert _only_grows([event.sequence for event in whole])
        assert ending((await say(client))[-1]) == ("complete", f"turn 2: {ANSWER}")


async def test_a_process_that_died_without_a_node_is_judged_by_what_it_said(warm_node: Callable[..., Node]) -> None:
    node = warm_node()
    async with talking(node) as client, speaking(client, "[[demo:slow]]", background=True) as (run_id, events):
        await anext(events)
    node.kill()
    os.kill(agents(node)[0], signal.SIGKILL)

    node.start()

    async with talking(node) as client:
        whole = await follow(client.attach(run_id))
        assert ending(whole[-1]) == ("error", "process_failed")
        assert ending((await say(client))[-1]) == ("complete", f"turn 2: {ANSWER}")
        wait_until(lambda: len(node.warm_directories()) == 1)


async def test_a_cancel_that_the_node_did_not_live_to_carry_out_is(warm_node: Callable[..., Node]) -> None:
    node = warm_node()
    async with talking(node) as client, speaking(client, "[[demo:slow]]", background=True) as (run_id, events):
        await anext(events)
    node.kill()
    (node.run_directories()[-1] / "cancel").write_text('{"reason": "before the crash"}')

    node.start()

    async with talking(node) as client:
        whole = await follow(client.attach(run_id))
        assert whole[-1].type == "cancelled"
        assert ending((await say(client))[-1]) == ("complete", f"turn 2: {ANSWER}")


async def test_what_an_earlier_node_left_idle_is_closed_even_when_its_warden_died(
    warm_node: Callable[..., Node],
) -> None:
    node = warm_node()
    async with talking(node) as client:
        pid = await pid_of(client, await say(client))
    node.kill()
    os.kill(_parent(pid), signal.SIGKILL)
    assert agents(node) == [pid]

    node.start()

    wait_until(lambda: agents(node) == [] and node.warm_directories() == [])


# --- questions


def _asking(new_node: NewNode, **permissions: Any) -> Node:
    profiles = {"talk": {"permissions": permissions}}
    return new_node(agents={"talk": TALK}, profiles=profiles, times={"foreground_grace_s": 30.0}).start()


@pytest.mark.parametrize(("rules", "said"), [({"allow": ["Bash"]}, "allow"), ({"deny": ["*"]}, "deny")])
async def test_a_rule_answers_the_agent(new_node: NewNode, rules: dict[str, Any], said: str) -> None:
    node = _asking(new_node, **rules)

    async with talking(node) as client:
        events = await say(client, "[[demo:ask]]")

    assert ending(events[-1]) == ("complete", f"turn 1: {said}")


async def test_nobodys_answer_is_a_denial(new_node: NewNode) -> None:
    node = _asking(new_node, patience_s=0.3)

    async with talking(node) as client:
        events = await say(client, "[[demo:ask]]")

    assert ending(events[-1]) == ("complete", "turn 1: deny")
    assert words(events).count("activity") == 1


@pytest.mark.parametrize(("allow", "said"), [(True, "allow"), (False, "deny")])
async def test_a_question_outlives_the_node(new_node: NewNode, allow: bool, said: str) -> None:
    node = _asking(new_node)
    async with talking(node) as client, speaking(client, "[[demo:ask]]", background=True) as (run_id, _):
        asked = await _question(client, run_id)
    node.kill()

    node.start()

    async with talking(node) as client:
        assert await _question(client, run_id) == asked
        await _until_open(client, run_id, asked, allow)
        whole = await follow(client.attach(run_id, include_activity=True))

        assert ending(whole[-1]) == ("complete", f"turn 1: {said}")
        assert words(whole).count("activity") == 1


async def _question(client: NodeClient, run_id: str) -> str:
    """The id of the first question of the run."""
    async with aclosing(client.attach(run_id, include_activity=True)) as events:
        async for event in events:
            if isinstance(event.activity, PermissionRequest):
                return event.activity.request_id
    raise AssertionError("nothing was asked")


async def _until_open(client: NodeClient, run_id: str, request_id: str, allow: bool) -> None:
    """Answer as soon as the node that took the run over has come to the question."""
    while True:
        try:
            return await client.respond(run_id, request_id, allow=allow)
        except NodeError as error:
            assert error.code == "not_found"
            await asyncio.sleep(0.02)


def _unread_bytes(pid: int) -> int:
    """What waits in the pipe that is the process's stdin."""
    count = array.array("i", [0])
    with open(f"/proc/{pid}/fd/0", "rb", buffering=0) as pipe:
        fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _states(pid: int) -> set[str]:
    """Those of the process's threads."""
    found = Path(f"/proc/{pid}/task").glob("*/stat")
    return {path.read_text().rpartition(")")[2].split()[0] for path in found}


def _only_grows(sequences: list[int]) -> bool:
    """A reader that is behind gets merged pieces, so numbers may be left out; none comes twice or too late."""
    return sequences == sorted(set(sequences))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
