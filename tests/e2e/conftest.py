"""One node for the tests that need nothing special of it, and nodes of their own for the others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import pytest_asyncio

from node.client import NodeClient
from node.pb import node_pb2_grpc
from tests.support.nodes import DEMO, Agent, Node, fake, running, shell

NewNode = Callable[..., Node]

AGENTS = {
    "demo-agent": Agent(command=DEMO, args=["--model", "{{model}}"], resume_args=["--resume", "{{session}}"]),
    "shell": shell(),
    "shell-json": Agent(command=("/bin/sh", "-s")),
    "one-at-a-time": shell(max_concurrency=1),
    "shim": fake("shim.sh"),
    "counts-prompt": fake("counts_prompt.py"),
    "ignores-signals": fake("ignores_signals.py"),
    "needs-time": fake("needs_time.py"),
    "hangs-after-result": fake("hangs_after_result.sh"),
    "ends-by-itself": fake("ends_by_itself.sh"),
    "fatal-then-silent": fake("fatal_then_silent.sh"),
    "silent-then-burst": fake("silent_then_burst.py"),
    "giant-line": fake("giant_line.py"),
    "firehose": fake("firehose.py"),
    "floods-stderr": fake("floods_stderr.py"),
    "resume-missing": fake("resume_missing.sh", resume_args=["--resume", "{{session}}"]),
    "resume-dead": fake("resume_dead.sh", resume_args=["--resume", "{{session}}"]),
    "turns": fake("turns.py", resume_args=["--resume={{session}}"]),
    "no-binary": Agent(command=["iop-test-no-such-binary"]),
    "not-executable": Agent(command=[str(Path(__file__).resolve())]),
}

SETTINGS: dict[str, Any] = {
    "node_id": "node-of-the-tests",
    "limits": {"max_concurrent_runs": 256, "max_line_bytes": 4 << 20},
    "times": {"foreground_grace_s": 0.4, "cancel_grace_s": 1.0, "exit_grace_s": 0.3},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all: grpc.aio still wakes the loop that it was used on last when that one is closed already."""
    for item in items:
        if Path(__file__).parent in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("shared"), agents=AGENTS, **SETTINGS) as node:
        yield node


@pytest.fixture
def node(shared_node: Node) -> Iterator[Node]:
    """The shared node. Every test that uses it also proves that it leaves no agent behind."""
    before = len(shared_node.logged())
    yield shared_node
    shared_node.assert_no_agents()
    logged = shared_node.logged()[before:]
    assert "Traceback" not in logged, logged


@pytest_asyncio.fixture(loop_scope="session")
async def client(node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(node.address) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="session")
async def stub(node: Node) -> AsyncIterator[node_pb2_grpc.NodeServiceStub]:
    async with grpc.aio.insecure_channel(node.address) as channel:
        yield node_pb2_grpc.NodeServiceStub(channel)  # type: ignore[no-untyped-call]  # generated


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    """Makes nodes of their own, not started; all of them are ended with the test."""
    made: list[Node] = []

    def make(name: str = "node", **options: Any) -> Node:
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        made.append(Node(root, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()
