"""A node in a container: the supervisor starts it, starts it again when it dies, and leaves with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from node.client import NodeClient
from runtime.events import EventType
from runtime.types import RunRequest
from tests.support.nodes import START_S, STOP_S, Node, wait_until


def node_pid(supervisor: int) -> int:
    """The supervisor's child that serves; 0 while there is none."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat, command = Path(f"/proc/{name}/stat").read_text(), Path(f"/proc/{name}/cmdline").read_bytes()
        except OSError:
            continue
        if int(stat.rsplit(")", 1)[1].split()[1]) == supervisor and b"serve" in command:
            return int(name)
    return 0


@pytest.mark.req("PKG-01")
async def test_a_killed_node_comes_back_and_its_run_ends_once(tmp_path: Path) -> None:
    files = Node(tmp_path, times={"foreground_grace_s": 30})
    log = tmp_path / "supervisor.log"
    address = "unix:" + str(tmp_path / "node.sock")
    command = [sys.executable, "-m", "node", "supervise", "--config", str(tmp_path / "node.yaml"), "--listen", address]
    with open(log, "wb") as out:
        supervisor = subprocess.Popen(  # noqa: ASYNC220  # returns at once
            [*command, "--data-dir", str(files.data_dir)], stdout=out, stderr=out
        )
    try:
        wait_until(lambda: "listening" in log.read_text(), START_S, log.read_text)
        first = node_pid(supervisor.pid)
        async with NodeClient(address) as client:
            events = []
            async for event in client.run(RunRequest(run_id="s1", target="demo-agent", input="[[demo words=250]]")):
                events.append(event)
                if len(events) == 5:
                    os.kill(first, signal.SIGKILL)

            assert [e.type for e in events if e.is_terminal] == [EventType.COMPLETE]
            assert node_pid(supervisor.pid) not in (0, first)
            assert (await client.get("s1")).run.recovered

        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(STOP_S) == 0
        assert re.search(r"the node ended \(-9\); starting it again", log.read_text())
    finally:
        supervisor.kill()
        supervisor.wait()
        files.close()
