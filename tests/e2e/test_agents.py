"""Readiness, health per profile, commands and ids over the wire, on a node with scripted agents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from node.client import NodeClient, NodeError
from node.pb import node_pb2, node_pb2_grpc
from runtime.events import RuntimeEvent
from runtime.status import Availability
from tests.support.catalogs import many, script, text
from tests.support.nodes import START_S, Node, files_holding, running, wait_until
from tests.support.runs import begun, follow, refusal, run, words

LIMITS = '{"id":3,"result":{"rateLimits":{"primary":{"usedPercent":0,"windowDurationMins":300,"resetsAt":1796072138}}}}'
LOUD = "echo canary@example.com; echo Authorization: Bearer canary-0123456789; echo sk-canary0123456789 >&2"
BEHAVIOUR = {
    "good": ("echo 1.4.2", "echo Logged in as canary@example.com", f"echo '{LIMITS}'"),
    "logged-out": ("echo 1.4.2", "echo Not logged in", "exit 1"),
    "broken": (f"{LOUD}; exit 3", "echo Logged in", f"{LOUD}; exit 3"),
    "hanging": ("echo 1.0", "echo Logged in", "sleep 60 & sleep 60"),
}
STATUS = {"format": "codex_rate_limits", "args": ["status"], "timeout_s": 20}
LABELS = {"provider_id": "good", "model_id": "good", "profile_id": "good"}


def prepare(root: Path) -> dict[str, str]:
    """Scripts, a catalog that names them by path, and the settings of a node with it."""
    root.mkdir(exist_ok=True)
    made = many(**{name: {"status": STATUS} for name in BEHAVIOUR}, fallback={}, absent={"status": STATUS})
    for name, (version, auth, status) in {
        **BEHAVIOUR,
        "fallback": ("echo 2.0", "echo Not logged in", "exit 1"),
    }.items():
        body = f'case "$1" in --version) {version} ;; auth) {auth} ;; status) {status} ;; run) exec /bin/sh -s ;; esac'
        script(root, f"{name}-cli", body)
    for provider, profile in zip(made["providers"], made["profiles"], strict=True):
        provider["command"] = [str(root / f"{provider['id']}-cli")]
        profile["args"] = profile["resume_args"] = ["run"]
    (root / "catalog.yaml").write_bytes(text(made))
    return {"catalog": "catalog.yaml"}


@pytest.fixture(scope="module")
def agents_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    root = tmp_path_factory.mktemp("agents")
    settings = prepare(root)
    with running(root, limits={"max_concurrent_runs": 1}, **settings) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def client(agents_node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(agents_node.address) as connected:
        yield connected


async def health(node: Node, profile: str) -> str:
    async with grpc.aio.insecure_channel(node.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=f"provider.{profile}"))
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def probes(node: Node) -> list[Path]:
    """The directories of probes that are under way."""
    return list((node.data_dir / "probes").iterdir()) if (node.data_dir / "probes").is_dir() else []


# --- readiness


@pytest.mark.req("CAT-28", "CAT-29", "CAT-40", "CAT-41", "E-16")
async def test_readiness_is_unknown_then_asked_then_remembered(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "n")
    with running(tmp_path / "n", **settings) as node:
        async with NodeClient(node.address) as client:
            before = await client.readiness()
            health_before = await health(node, "good")
            probed = await client.probe_readiness()
            after = await client.readiness()
            young = await client.probe_readiness(["good"], max_age=timedelta(minutes=1))

        assert {one.readiness for one in before} == {"unspecified"}
        assert health_before == "NOT_SERVING"
        assert {one.profile_id: one.readiness for one in probed} == {
            "absent": "missing_binary",
            "broken": "probe_error",
            "fallback": "unauthenticated",
            "good": "ready",
            "hanging": "ready",
            "logged-out": "unauthenticated",
        }
        assert after == probed
        assert [one.taken_at for one in young] == [one.taken_at for one in probed if one.profile_id == "good"]
        assert (await health(node, "good"), await health(node, "logged-out")) == ("SERVING", "NOT_SERVING")
        assert "canary" not in f"{probed}{node.logged()}"
        assert probes(node) == []


@pytest.mark.req("CAT-32")
async def test_nothing_of_what_a_cli_printed_is_kept_in_the_data_directory(
    agents_node: Node, client: NodeClient
) -> None:
    await client.probe_readiness()
    await client.command("broken")

    assert [path for path in files_holding(agents_node.data_dir, "canary") if "runs" not in path.parts] == []
    assert "canary" not in agents_node.logged()


@pytest.mark.req("BAN-12")
async def test_an_unknown_profile_is_not_found(client: NodeClient) -> None:
    with pytest.raises(NodeError, match="profile 'goo' is not in the agent catalog") as refused:
        await client.probe_readiness(["goo"])

    assert refused.value.code == "not_found"


async def test_health_knows_no_other_profile(agents_node: Node) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await health(agents_node, "goo")

    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.req("NB-20", "GRD-33", "E-13")
async def test_a_run_over_the_wire_needs_no_readiness_and_claims_none(client: NodeClient) -> None:
    """Before acceptance there is readiness, after it there are failure codes; neither speaks for the other."""
    (before,) = await client.probe_readiness(["logged-out"])

    events = await run(client, "logged-out", "echo all the same")
    broken = await run(client, "absent", "echo never")

    assert words(events)[-1] == "complete"
    assert broken[-1].failure is not None
    assert broken[-1].failure.code == "process_failed"
    assert next(one for one in await client.readiness() if one.profile_id == "logged-out") == before


@pytest.mark.req("CAT-32", "CAT-29")
async def test_doctor_asks_a_node_when_it_is_told_to(agents_node: Node) -> None:
    async def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("iop-node"))
        command = [program, "doctor", "--node", agents_node.address, *arguments]
        return await asyncio.to_thread(lambda: subprocess.run(command, capture_output=True, text=True, check=False))

    shown = await doctor("good", "logged-out")
    as_json = await doctor("--json")
    unknown = await doctor("nobody")

    assert [line.split()[:2] for line in shown.stdout.splitlines()] == [
        ["PROFILE", "READINESS"],
        ["good", "ready"],
        ["logged-out", "unauthenticated"],
    ]
    assert {json.loads(line)["profile_id"] for line in as_json.stdout.splitlines()} == {
        *BEHAVIOUR,
        "fallback",
        "absent",
    }
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert "canary" not in shown.stdout + as_json.stdout + unknown.stderr


@pytest.mark.req("CAT-34", "CAT-41", "BAN-15")
async def test_a_reload_forgets_the_readiness_of_another_catalog_and_keeps_it_over_a_broken_one(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "n")
    catalog = tmp_path / "n" / "catalog.yaml"
    with running(tmp_path / "n", **settings) as node:
        async with NodeClient(node.address) as client:
            (ready,) = await client.probe_readiness(["good"])
            before = catalog.read_text()
            catalog.write_text(before + "stray: 1\n")
            with pytest.raises(NodeError, match="stray: is not known here"):
                await client.reload()
            kept = next(one for one in await client.readiness() if one.profile_id == "good")
            notes = (await client.status()).notes
            catalog.write_text(before.replace("id: fallback", "id: another").replace(": fallback", ": another"))
            await client.reload()
            after = await client.readiness()

        assert kept == ready
        assert any("stray: is not known here" in note for note in notes)
        assert {one.profile_id for one in after} == {*BEHAVIOUR, "another", "absent"}
        assert {one.readiness for one in after} == {"unspecified"}
        assert await health(node, "good") == "NOT_SERVING"
        assert await health(node, "fallback") == "SERVICE_UNKNOWN"


# --- ids


def labels(event: RuntimeEvent) -> dict[str, str]:
    return {key: event.metadata[key] for key in LABELS if key in event.metadata}


@pytest.mark.req("CAT-37")
async def test_start_and_terminal_carry_the_ids_whatever_the_caller_writes(client: NodeClient) -> None:
    forged = {"profile_id": "forged", "provider_id": "forged"}

    first = await run(client, "good", "echo hi", session_id="ids", session_mode="create_if_missing", metadata=forged)
    resumed = await run(client, "good", "exit 3", session_id="ids", session_mode="require_existing", metadata=forged)

    for events, end in ((first, "complete"), (resumed, "error")):
        assert (words(events)[0], words(events)[-1]) == ("start", end)
        assert labels(events[0]) == labels(events[-1]) == LABELS


@pytest.mark.req("CAT-37")
async def test_a_cancelled_run_carries_the_ids(client: NodeClient) -> None:
    async with begun(client, "good", "sleep 60") as (run_id, events):
        await client.cancel(run_id)
        last = [event async for event in events][-1]

    assert (last.type.value, labels(last)) == ("cancelled", LABELS)


# --- commands


@pytest.mark.req("NB-18", "RT-26", "RT-27", "RT-25", "RT-28", "CAT-38")
async def test_a_status_is_told_while_every_slot_is_taken_and_no_run_hears_of_it(
    client: NodeClient, tmp_path: Path
) -> None:
    holds = f"echo 1; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo 2; echo 3"
    async with begun(client, "good", holds) as (run_id, events):
        with pytest.raises(NodeError, match=r"slot|capacity|runs"):
            await run(client, "good", "echo another")
        answers = [await client.command("good") for _ in range(5)]
        (tmp_path / "go").touch()
        rest = [event async for event in events]

    held = await follow(client.attach(run_id, include_activity=True))
    for answer in answers:
        assert answer.failure is None
        assert answer.status is not None
        assert [window.used_percent for window in answer.status.windows] == [0.0]
        assert {key: answer.status.metadata[key] for key in LABELS} == LABELS
    assert rest[-1].type == "complete"
    assert [event.sequence for event in held] == list(range(1, len(held) + 1))
    assert set(words(held)) <= {"start", "delta", "complete"}
    assert rest[-1].message.split() == ["1", "2", "3"]


@pytest.mark.req("CAT-39", "CAT-40")
async def test_a_fallback_is_labelled_and_no_better_than_the_readiness(client: NodeClient) -> None:
    await client.probe_readiness(["fallback"])

    answer = await client.command("fallback")

    assert answer.status is not None
    assert (answer.status.availability, answer.status.windows) == (Availability.UNAVAILABLE, ())
    assert answer.status.metadata["status_probe"] == "readiness_fallback"
    assert answer.status.metadata["readiness"] == "unauthenticated"


@pytest.mark.req("NB-18", "RT-25")
@pytest.mark.parametrize(
    ("target", "name", "code"),
    [("good", "reboot", "unsupported"), ("broken", "status", "process_failed"), ("absent", "status", "process_failed")],
)
async def test_what_a_command_cannot_do_is_a_failure_in_its_answer(
    client: NodeClient, target: str, name: str, code: str
) -> None:
    answer = await client.command(target, name)

    assert answer.status is None
    assert answer.failure is not None
    assert answer.failure.code == code
    assert "canary" not in answer.failure.message


@pytest.mark.req("NB-18", "RT-31", "BAN-13")
async def test_a_command_to_nobody_is_refused(agents_node: Node) -> None:
    async with grpc.aio.insecure_channel(agents_node.address) as channel:
        stub = node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated
        unknown = await refusal(stub.Command(node_pb2.CommandRequest(target="goo", name="status")))
        nameless = await refusal(stub.Command(node_pb2.CommandRequest(target="good")))

    assert unknown[:2] == (grpc.StatusCode.NOT_FOUND, "target_not_found")
    assert nameless[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


@pytest.mark.req("NB-18", "RT-27", "E-15")
async def test_the_callers_deadline_ends_the_probe(agents_node: Node, client: NodeClient) -> None:
    began = time.monotonic()

    with pytest.raises(NodeError) as late:
        await client.command("hanging", within_s=0.7)

    assert late.value.status is grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - began < 30, "the CLI hangs for a minute"
    await asyncio.to_thread(wait_until, lambda: probes(agents_node) == [])


@pytest.mark.req("BAN-11", "CAT-27")
async def test_a_node_that_stops_leaves_no_probe(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "n")
    with running(tmp_path / "n", **settings) as node:
        async with NodeClient(node.address) as client:
            asking = asyncio.create_task(client.command("hanging"))
            await asyncio.to_thread(wait_until, lambda: probes(node) != [])
            assert await asyncio.to_thread(node.stop) == 0
            with pytest.raises(NodeError):
                await asking
        assert probes(node) == []
        node.start()


# --- the catalog at start


@pytest.mark.req("CAT-17", "CAT-19", "E-16")
def test_a_node_does_not_start_with_a_broken_catalog(tmp_path: Path) -> None:
    settings = prepare(tmp_path / "n")
    with open(tmp_path / "n" / "catalog.yaml", "a") as file:
        file.write("stray: 1\n")
    node = Node(tmp_path / "n", agents=None, catalog=settings["catalog"])
    process = node.launch()

    try:
        assert process.wait(START_S) == 1
    finally:
        process.kill()
        assert process.stdout is not None
        process.stdout.close()
        node.close()
    assert "stray: is not known here" in node.logged()
