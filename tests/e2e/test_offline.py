"""Neither the node nor its tests need a network, a key, or an installed agent."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from node.client import NodeClient
from providers.cli.environment import is_secret_name
from tests.support.nodes import DEMO, Agent, Node
from tests.support.runs import ending, run


@pytest.mark.req("PKG-10")
def test_this_process_cannot_reach_another_machine() -> None:
    with socket.socket() as outside, pytest.raises(RuntimeError, match="runs without a network"):
        outside.connect(("192.0.2.1", 80))
    with pytest.raises(RuntimeError, match="runs without a network"):
        socket.getaddrinfo("registry.example", 443)


@pytest.mark.req("PKG-10")
async def test_an_event_loop_cannot_reach_another_machine_either() -> None:
    with pytest.raises(RuntimeError, match="runs without a network"):
        await asyncio.open_connection("192.0.2.1", 80)


@pytest.mark.req("PKG-10")
def test_this_process_has_no_credentials() -> None:
    assert [name for name in os.environ if is_secret_name(name)] == []


@pytest.fixture
def alone() -> list[str]:
    """What starts a program in a network namespace of its own."""
    unshare = shutil.which("unshare")
    prefix = [str(unshare), *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "--"]
    if unshare is None or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("NOT TESTED: no network namespace can be made here")
    return prefix


@pytest.mark.req("PKG-10")
async def test_a_node_without_any_network_serves_on_its_socket(
    new_node: Callable[..., Node], tmp_path: Path, alone: list[str]
) -> None:
    """In a network namespace of its own there is not even loopback; keeper, wardens and agent are in it too."""
    path = tmp_path / "n.sock"
    agents = {
        "demo-agent": Agent(command=DEMO),
        "looks": Agent(command=["/bin/cat", "/proc/net/dev"], dialect="plain_text"),
    }
    new_node(agents=agents, listen=f"unix:{path}", prefix=alone).start()

    async with NodeClient(f"unix:{path}") as client:
        events = await run(client, "demo-agent", "[[demo text=hi]]")
        interfaces = await run(client, "looks")

    assert ending(events[-1]) == ("complete", "turn 1: hi")
    assert _names(interfaces[-1].message) <= {"lo"} | _default_tunnels()


def _names(table: str) -> set[str]:
    return {line.partition(":")[0].strip() for line in table.splitlines()[2:]}


def _default_tunnels() -> set[str]:
    """Fallback devices that some kernels put into every namespace; they lead nowhere."""
    return {"tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
