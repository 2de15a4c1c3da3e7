"""The vendors' CLIs behind one real node: what the cells share, and the table at the end.

``make real-cli`` says in ``IOP_REAL_CLIS`` which CLIs are installed; without it no cell is collected.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from node.client import NodeClient
from tests.real_cli.agents import AGENTS, RealAgent, node_settings
from tests.real_cli.driven import Driven
from tests.real_cli.matrix import GREEN, NOT_APPLICABLE, RED, Matrix
from tests.real_cli.session_agents import SESSIONS, SessionAgent, rows_of, session_settings
from tests.real_cli.talking import Talking
from tests.support.mockllm.server import ModelServer, serving
from tests.support.nodes import GONE_S, Node, running, wait_until

CLIS = os.environ.get("IOP_REAL_CLIS", "").split()

_CELLS = ["test_cells.py", "test_facts.py", "test_mcp_cells.py", "test_readiness.py", "test_session_cells.py"]
collect_ignore = [] if CLIS else _CELLS
ROWS: dict[str, RealAgent | SessionAgent] = {**AGENTS, **SESSIONS}

_MATRIX = pytest.StashKey[Matrix]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cell(name): the column of the matrix that a test fills")
    config.stash[_MATRIX] = Matrix()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "cli" in metafunc.fixturenames:
        metafunc.parametrize("cli", [cli for cli in CLIS if cli in AGENTS], scope="session")
    if "session_row" in metafunc.fixturenames:
        metafunc.parametrize("session_row", rows_of(CLIS), scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One loop for all: grpc.aio still wakes the loop that it was used on last when that one is closed already."""
    for item in items:
        if item.get_closest_marker("cell") is None:
            continue
        item.add_marker(pytest.mark.real_cli)
        item.add_marker(pytest.mark.timeout(300))
        if pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if (place := _place(item)) is not None and (cannot := ROWS[place[0]].cannot.get(place[1])) is not None:
            item.add_marker(pytest.mark.skip(reason=cannot.reason))


def _place(item: pytest.Item) -> tuple[str, str] | None:
    """The row and the cell of a test."""
    marker, call = item.get_closest_marker("cell"), getattr(item, "callspec", None)
    row = (call.params.get("cli") or call.params.get("session_row")) if call else None
    return (row, marker.args[0]) if marker and isinstance(row, str) else None  # of no rows at all a test stays


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if (place := _place(item)) is not None:
        matrix = item.config.stash[_MATRIX]
        matrix.spent(place[0], report.duration)
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            matrix.add(*place, NOT_APPLICABLE, reason=reason.removeprefix("Skipped: "))
        elif report.failed:
            matrix.add(*place, RED)
        elif report.when == "call":
            matrix.add(*place, GREEN)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := list(config.stash[_MATRIX].lines()):
        terminalreporter.section("the vendors' CLIs")
        for line in lines:
            terminalreporter.write_line(line)


# -- what the cells share ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model() -> Iterator[ModelServer]:
    """The scripted model, on a loop of its own: the CLIs ask it whatever the tests wait for."""
    started, ended = threading.Event(), asyncio.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        async with serving() as server:
            found.update(server=server, loop=asyncio.get_running_loop())
            started.set()
            await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="model")
    thread.start()
    assert started.wait(10)
    yield found["server"]
    found["loop"].call_soon_threadsafe(ended.set)
    thread.join(10)


@pytest.fixture(scope="session")
def node_options(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return node_settings([cli for cli in CLIS if cli in AGENTS], tmp_path_factory.mktemp("homes"), model.url)


@pytest.fixture(scope="session")
def shared_node(node_options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node"), **node_options) as node:
        yield node


@pytest.fixture
def own_node(node_options: dict[str, Any], tmp_path: Path) -> Iterator[Node]:
    """A node for a test that kills it; started."""
    node = Node(tmp_path / "own", **node_options)
    try:
        yield node.start()
    finally:
        node.close()


@pytest.fixture
def agent(cli: str) -> RealAgent:
    return AGENTS[cli]


@pytest_asyncio.fixture(loop_scope="session")
async def client(shared_node: Node) -> AsyncIterator[NodeClient]:
    async with NodeClient(shared_node.address) as connected:
        yield connected


@pytest.fixture
def driven(
    agent: RealAgent,
    shared_node: Node,
    client: NodeClient,
    model: ModelServer,
    node_options: dict[str, Any],
    tmp_path: Path,
) -> Iterator[Driven]:
    """The CLI of this cell behind the shared node. Every cell also proves that it leaves no process behind."""
    (workspace := tmp_path / "workspace").mkdir()
    home = Path(node_options["profiles"][agent.profile]["env"]["HOME"])
    yield Driven(agent=agent, node=shared_node, client=client, model=model, workspace=workspace, home=home)
    shared_node.assert_no_agents()
    assert "Traceback" not in shared_node.logged(), shared_node.logged()


# -- what the cells of sessions share ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def session_options(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return session_settings(rows_of(CLIS), tmp_path_factory.mktemp("session-homes"), model.url)


@pytest.fixture(scope="session")
def session_node(session_options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("session-node"), **session_options) as node:
        yield node


@pytest_asyncio.fixture(loop_scope="session")
async def talking(
    session_row: str, session_node: Node, session_options: dict[str, Any], tmp_path: Path
) -> AsyncIterator[Talking]:
    """A session of this cell. Every cell also proves that nothing is left of it when the session has been ended."""
    async with NodeClient(session_node.address) as client:
        yield (talk := Talking.of(session_row, session_node, client, session_options, tmp_path))
        await client.terminate_session(talk.session, cancel_active=True)
    await asyncio.to_thread(
        wait_until, lambda: not talk.processes(), GONE_S, lambda: f"left behind: {talk.processes()}"
    )
    assert "Traceback" not in session_node.logged(), session_node.logged()
