"""Logical sessions over the wire: a conversation goes on under the host's id, and the vendor's own id stays private."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from node.client import NodeClient
from node.pb import node_pb2, node_pb2_grpc
from tests.support.nodes import DEMO, Agent, Node
from tests.support.runs import ending, refusal, run

CREATE = "create_if_missing"


@pytest.mark.req("RT-08", "RT-11", "RT-36")
async def test_the_second_run_of_a_session_resumes_the_first(client: NodeClient) -> None:
    first = await run(client, "demo-agent", "[[demo text=hi]]", session_id="resumed", session_mode=CREATE)
    second = await run(client, "demo-agent", "[[demo text=hi]]", session_id="resumed", session_mode="require_existing")
    other = await run(client, "demo-agent", "[[demo text=hi]]", session_id="other", session_mode=CREATE)

    assert [ending(events[-1])[1] for events in (first, second, other)] == ["turn 1: hi", "turn 2: hi", "turn 1: hi"]
    assert {event.session_id for event in [*first, *second]} == {"resumed"}


@pytest.mark.req("RT-36", "RT-11", "BAN-17")
async def test_a_resume_gets_the_native_id_as_an_argument_and_shows_it_nowhere_else(
    node: Node, client: NodeClient
) -> None:
    named = {"session_id": "native", "session_mode": CREATE}
    first = await run(client, "turns", "0", **named)
    second = await run(client, "turns", "0", **named)

    assert [ending(events[-1]) for events in (first, second)] == [("complete", "none"), ("complete", "prov-1")]
    told = repr([*first, second[:-1], await client.get(first[0].run_id)])
    assert "prov-1" not in told, "the vendor's id is no key, no event field, no identity"
    journals = [path.read_text() for path in node.data_dir.rglob("events.jsonl") if '"native"' in path.read_text()]
    assert len(journals) == 2 and not any('"session_id":"prov-1"' in one for one in journals)


@pytest.mark.req("RT-08", "RT-34")
async def test_all_runs_of_a_session_share_one_private_workspace(client: NodeClient) -> None:
    named = {"session_id": "workspace", "session_mode": CREATE}
    await run(client, "shell", "echo kept > file", **named)
    second = await run(client, "shell", "pwd; cat file", **named)
    other = await run(client, "shell", "pwd; ls", session_id="another-workspace", session_mode=CREATE)
    anonymous = await run(client, "shell", "pwd; ls")

    places = [events[-1].message.splitlines()[0] for events in (second, other, anonymous)]
    assert [events[-1].message.splitlines()[1:] for events in (second, other, anonymous)] == [["kept"], [], []]
    assert len(set(places)) == 3


@pytest.mark.req("RT-36", "E-1")
@pytest.mark.parametrize("target", ["resume-missing", "resume-dead"])
async def test_a_vendor_that_forgot_the_session_is_no_success_and_no_new_session(
    client: NodeClient, target: str
) -> None:
    named = {"session_id": f"forgotten-{target}", "session_mode": CREATE}
    first = await run(client, target, "", **named)
    second = await run(client, target, "", **named)
    third = await run(client, target, "", **named)
    fresh = await run(client, target, "", session_id=f"fresh-{target}", session_mode=CREATE)

    assert ending(first[-1]) == ("complete", "ok")
    assert [ending(events[-1]) for events in (second, third)] == [("error", "lost")] * 2
    assert third[-1].error == second[-1].error, "the id it announced in between was not adopted"
    assert ending(fresh[-1]) == ("complete", "ok")


@pytest.mark.req("RT-09", "RT-11")
async def test_sessions_survive_a_restart_of_the_node(new_node: Callable[..., Node]) -> None:
    demo = Agent(command=DEMO, resume_args=["--resume", "{{session}}"])
    node = new_node(agents={"demo": demo}).start()
    async with NodeClient(node.address) as client:
        first = await run(client, "demo", "[[demo text=hi]]", session_id="kept", session_mode=CREATE)
    node.stop()
    node.start()
    async with NodeClient(node.address) as client:
        second = await run(client, "demo", "[[demo text=hi]]", session_id="kept", session_mode="require_existing")

    assert [ending(events[-1])[1] for events in (first, second)] == ["turn 1: hi", "turn 2: hi"]


@pytest.mark.req("RT-09")
async def test_a_required_session_is_unknown_to_a_node_with_an_empty_store(new_node: Callable[..., Node]) -> None:
    node = new_node().start()
    async with grpc.aio.insecure_channel(node.address) as channel:
        stub: Any = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        asked = node_pb2.RunRequest(
            target="demo-agent", session_id="kept", session_mode=node_pb2.SESSION_MODE_REQUIRE_EXISTING
        )
        refused = await refusal(stub.Run(asked))

    assert refused[1] == "session_not_found"
    assert node.run_directories() == [] and list((node.data_dir / "sessions").iterdir()) == []
