"""Ending runs on request: one terminal that agrees with the answer, and a process tree that is gone."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from node.client import NodeClient, NodeError
from node.wire_views import CancelReceipt
from runtime.types import RunRequest
from tests.support.commands import iop
from tests.support.nodes import Node, fake, shell
from tests.support.runs import BOUND_S, begun, ending, follow, run, words

CANCELLED = CancelReceipt(accepted=True, state="cancelled")


async def cancelled(
    client: NodeClient, target: str, prompt: str = "", **fields: Any
) -> tuple[CancelReceipt, list[str]]:
    """Cancel a run that has begun: the receipt, and the types of what came after the start."""
    async with asyncio.timeout(BOUND_S), begun(client, target, prompt, **fields) as (run_id, events):
        receipt = await client.cancel(run_id, reason="the test asks")
        return receipt, words(await follow(events))


@pytest.mark.req("RT-19", "RT-21", "E-5", "NB-16")
@pytest.mark.parametrize(
    ("target", "prompt"),
    [
        ("demo-agent", "[[demo:slow]]"),
        ("demo-agent", "[[demo:silent]]"),
        ("demo-agent", "[[demo:stubborn]]"),
        ("demo-agent", "[[demo:tool cmd=sleep%20600]]"),
        ("shim", ""),
        ("ignores-signals", ""),
        ("shell", "sleep 600 & setsid sleep 600 & (setsid sh -c 'trap \"\" TERM; sleep 600; sleep 600' &) ; wait"),
        ("shell", "trap '' TERM INT HUP; while :; do sleep 600; done"),
        ("shell", "env -i setsid sh -c 'sleep 600 & wait' & sleep 600"),
        ("shell", "kill -STOP $$"),
    ],
)
async def test_a_cancelled_run_leaves_no_process(node: Node, client: NodeClient, target: str, prompt: str) -> None:
    receipt, types = await cancelled(client, target, prompt)

    assert receipt == CANCELLED
    assert types[-1] == "cancelled" and set(types[:-1]) <= {"delta"}
    node.assert_no_agents()
    details = await client.get(await _newest(client))
    assert details.run.state == "cancelled"


@pytest.mark.req("RT-21")
async def test_a_tree_that_ignores_signals_ends_within_the_grace_and_a_little(node: Node, client: NodeClient) -> None:
    async with begun(client, "ignores-signals") as (run_id, events):
        await anext(events)
        began = asyncio.get_running_loop().time()
        await client.cancel(run_id)
        rest = await follow(events)
        took = asyncio.get_running_loop().time() - began
    details = (await client.get(run_id)).details

    assert rest[-1].type == "cancelled"
    assert 0.9 < took < 30, "the grace is 1 s, and the kill a moment"
    assert (details["killed"], details["stopped"]) == ("True", "cancelled")


async def test_a_child_that_honours_the_signal_is_gone_at_once(new_node: Callable[..., Node]) -> None:
    node = new_node(agents={"shell": shell()}, times={"cancel_grace_s": 60.0}).start()
    async with (
        NodeClient(node.address) as client,
        begun(client, "shell", "echo ready; exec sleep 600") as (run_id, events),
    ):
        await anext(events)
        began = asyncio.get_running_loop().time()
        receipt = await client.cancel(run_id)
        took = asyncio.get_running_loop().time() - began
        await follow(events)

    assert receipt == CANCELLED
    assert took < 30, "the grace is not waited for"


@pytest.mark.req("RT-20", "NB-15")
async def test_a_cancel_of_a_finished_run_is_answered_with_how_it_ended(client: NodeClient) -> None:
    run_id = (await run(client, "shell", "echo hi"))[0].run_id
    failed = (await run(client, "shell", "exit 3"))[0].run_id

    answers = [await client.cancel(one) for one in (run_id, run_id, failed)]

    assert [(a.accepted, a.state) for a in answers] == [(False, "complete"), (False, "complete"), (False, "error")]


async def test_a_late_cancel_does_not_hit_the_next_run_of_the_session(client: NodeClient) -> None:
    named = {"session_id": "late-cancel", "session_mode": "create_if_missing"}
    first = (await run(client, "shell", "echo one", **named))[0].run_id
    async with begun(client, "shell", "sleep 0.4; echo two", **named) as (_, events):
        answers = [await client.cancel(first), await client.cancel(first)]
        rest = await follow(events)

    assert answers == [CancelReceipt(accepted=False, state="complete")] * 2
    assert ending(rest[-1]) == ("complete", "two\n")


@pytest.mark.req("RT-20")
async def test_an_agent_that_hangs_after_its_result_stays_complete_when_cancelled(client: NodeClient) -> None:
    events = await run(client, "hangs-after-result")
    receipt = await client.cancel(events[0].run_id)

    assert ending(events[-1]) == ("complete", "done")
    assert receipt == CancelReceipt(accepted=False, state="complete")
    assert (await client.get(events[0].run_id)).run.state == "complete"


@pytest.mark.req("RT-20", "RT-15", "BAN-18")
async def test_cancel_and_completion_in_the_same_instant_agree(node: Node, client: NodeClient) -> None:
    """60 runs that end after 0 to 60 ms, each cancelled in the same window."""
    chance = random.Random(13)

    async def one() -> tuple[str, str, str]:
        async with begun(client, "ends-by-itself") as (run_id, events):
            await asyncio.sleep(chance.random() * 0.06)
            receipt = await client.cancel(run_id)
            rest = await follow(events)
            assert [e.is_terminal for e in rest].count(True) == 1
            state = (await client.get(run_id)).run.state
            assert receipt.accepted == (rest[-1].type == "cancelled")
            return receipt.state, rest[-1].type.value, state

    async with asyncio.timeout(BOUND_S):
        found = [await asyncio.gather(*(one() for _ in range(10))) for _ in range(6)]

    every = [outcome for batch in found for outcome in batch]
    assert [len(set(outcome)) for outcome in every] == [1] * 60
    assert {outcome[0] for outcome in every} <= {"complete", "cancelled"}


@pytest.mark.req("RT-20", "E-19")
async def test_a_cancel_right_after_acceptance_ends_the_run(node: Node, client: NodeClient, tmp_path: Path) -> None:
    """Wherever it arrives between acceptance, spawn and start event, the run ends cancelled, once."""
    chance = random.Random(4)

    async def one(number: int) -> list[str]:
        run_id = f"early-{number}"
        asked = RunRequest(run_id=run_id, target="shell", input="sleep 600")
        stream = asyncio.create_task(follow(client.run(asked)))
        await asyncio.sleep(chance.random() * 0.01)
        while True:
            try:
                receipt = await client.cancel(run_id)
                break
            except NodeError as error:
                assert error.code == "not_found"
        assert receipt == CANCELLED
        return words(await stream)

    async with asyncio.timeout(BOUND_S):
        found = await asyncio.gather(*(one(number) for number in range(20)))

    assert found == [["start", "cancelled"]] * 20


@pytest.mark.req("RT-20")
async def test_a_turn_that_waits_for_the_one_before_is_never_started_when_cancelled(
    new_node: Callable[..., Node], tmp_path: Path
) -> None:
    node = new_node(agents={"lingers": fake("lingers.sh")}, times={"cancel_grace_s": 4.0}).start()
    named = {"session_id": "s", "session_mode": "create_if_missing"}
    started = tmp_path / "agent-started"

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        await run(client, "lingers", "linger", **named)
        second = asyncio.create_task(run(client, "lingers", str(started), run_id="second", **named))
        while len(node.run_directories()) < 2:
            await asyncio.sleep(0.001)
        receipt = await client.cancel("second")
        events = await second

    assert (receipt, words(events)) == (CANCELLED, ["start", "cancelled"])
    assert not started.exists()


@pytest.mark.req("RT-19", "E-5")
@pytest.mark.parametrize("times", [1, 3])
async def test_the_grace_is_given_whole_however_often_one_cancels(
    new_node: Callable[..., Node], tmp_path: Path, times: int
) -> None:
    """An agent that needs its time to clean up gets it; further cancels neither shorten nor restart the grace."""
    node = new_node(agents={"needs-time": fake("needs_time.py")}, times={"cancel_grace_s": 15.0}).start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        async with begun(client, "needs-time", workspace=str(tmp_path)) as (run_id, events):
            await anext(events)
            cancels = []
            for _ in range(times):
                cancels.append(asyncio.create_task(client.cancel(run_id)))
                await asyncio.sleep(0.1)
            rest = await follow(events)
            receipts = await asyncio.gather(*cancels)
        details = (await client.get(run_id)).details

    assert (tmp_path / "clean.txt").read_text() == "clean\n"
    assert words(rest)[-1] == "cancelled"
    assert receipts == [CANCELLED] * times
    assert (details["exit_code"], details.get("killed")) == ("0", None)


@pytest.mark.req("E-5", "RT-19")
async def test_a_cancelled_run_leaves_its_session_usable(client: NodeClient) -> None:
    named = {"session_id": "goes-on", "session_mode": "create_if_missing"}
    _, types = await cancelled(client, "demo-agent", "[[demo:slow]]", **named)
    again = await run(client, "demo-agent", "[[demo text=hi]]", session_id="goes-on", session_mode="require_existing")

    assert types[-1] == "cancelled"
    assert again[-1].type == "complete"


@pytest.mark.req("RT-19", "NB-19")
async def test_a_flood_can_be_cancelled_at_once(node: Node, client: NodeClient) -> None:
    """The agent writes faster than anybody can read."""
    async with asyncio.timeout(BOUND_S), begun(client, "shell", "while :; do echo y; done") as (run_id, events):
        await anext(events)
        began = asyncio.get_running_loop().time()
        receipt = await client.cancel(run_id)
        took = asyncio.get_running_loop().time() - began
        node.assert_no_agents()
        assert receipt == CANCELLED
        assert took < 30
        del events


async def test_every_reader_of_a_cancelled_run_sees_the_same_end(client: NodeClient) -> None:
    async with begun(client, "demo-agent", "[[demo:slow]]") as (run_id, events):
        others = [asyncio.create_task(follow(client.attach(run_id))) for _ in range(5)]
        await anext(events)
        await client.cancel(run_id)
        rest = await follow(events)
        seen = await asyncio.gather(*others)

    assert rest[-1].type == "cancelled"
    assert seen == [seen[0]] * 5
    assert seen[0][-1] == rest[-1]


async def test_the_command_line_cancels_a_run(node: Node, client: NodeClient) -> None:
    async with begun(client, "demo-agent", "[[demo:slow]]") as (run_id, events):
        done = await iop(node, "cancel", run_id, "--reason", "enough")
        again = await iop(node, "cancel", run_id)
        missing = await iop(node, "cancel", "no-such-run")
        rest = await follow(events)

    assert (done.code, done.err) == (0, f"cancelled {run_id}\n")
    assert (again.code, again.err) == (0, f"{run_id} had ended before: cancelled\n")
    assert (missing.code, "not known here" in missing.err) == (2, True)
    assert ending(rest[-1]) == ("cancelled", "enough")


async def _newest(client: NodeClient) -> str:
    async with aclosing(client.list(page_size=1)) as runs:
        return (await anext(runs)).run_id
