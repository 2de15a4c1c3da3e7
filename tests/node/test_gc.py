"""``iop-node gc`` on what a node left: its runs may be going on under their wardens."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands import gc
from node.config import load_config
from runtime.events import start
from runtime.types import RunRequest
from tests.support.hosts import Agent, Gate, index_rows, open_host, read_all, read_one, says, until_settled


async def left(data: Path, agent: Agent) -> list[Path]:
    """A host that had one run in a session nobody named, long ago; the private workspaces it left."""
    async with open_host(data, agent) as host:
        reader = await host.runs.dispatch(RunRequest(target="agent", input="hi", background=True))
        if (await agent.capabilities()).survives_host:
            await read_one(reader)
            reader.close()
        else:
            await read_all(reader)
            await until_settled(host)
    with index_rows(data) as rows:
        rows.execute("UPDATE sessions SET used_ns=0")
    return list(data.glob("sessions/*/workspace"))


@pytest.mark.req("RT-33", "BAN-18")
async def test_the_session_of_a_run_that_goes_on_is_kept(tmp_path: Path) -> None:
    (workspace,) = await left(tmp_path / "data", Agent(Gate(start()), survives_host=True))

    swept = await gc._sweep(load_config(data_dir=str(tmp_path / "data")), dry_run=False)

    assert swept.sessions == 0
    assert workspace.is_dir()


async def test_the_session_of_a_run_that_is_over_goes(tmp_path: Path) -> None:
    (workspace,) = await left(tmp_path / "data", Agent(says("hi")))

    swept = await gc._sweep(load_config(data_dir=str(tmp_path / "data")), dry_run=False)

    assert swept.sessions == 1
    assert not workspace.exists()
