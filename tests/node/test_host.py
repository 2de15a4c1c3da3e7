"""The composition root: a host of runs without any wire, opened and closed around one block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from node.client import NodeClient
from node.config import load_config
from node.host import Host, open_host
from node.server import serving
from providers.keeper.client import clear_append_only
from runtime.events import RuntimeEvent
from runtime.failure import FailureError
from runtime.readers import Reader
from runtime.types import RunRequest
from tests.support.nodes import catalog_of, end_keepers, shell
from tests.support.runs import follow, told

BOUND_S = 60.0


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    yield directory
    end_keepers(directory)
    for output in directory.glob("runs/*/stdout"):
        clear_append_only(output)


@asynccontextmanager
async def opened(data: Path, **settings: Any) -> AsyncIterator[Host]:
    (data.parent / "catalog.yaml").write_text(yaml.safe_dump(catalog_of({"shell": shell()})))
    (data.parent / "node.yaml").write_text(yaml.safe_dump({"catalog": "catalog.yaml", **settings}))
    config = load_config(data.parent / "node.yaml", listen="127.0.0.1:0", data_dir=str(data))
    async with asyncio.timeout(BOUND_S), open_host(config) as host:
        yield host


async def read(reader: Reader) -> list[RuntimeEvent]:
    found: list[RuntimeEvent] = []
    with reader:
        while events := await reader.read():
            found += events
    return found


@pytest.mark.req("RT-01", "NB-02", "BAN-16")
async def test_a_run_is_the_same_in_a_bare_host_and_over_the_wire(data: Path) -> None:
    script = "echo one; echo two >&2; echo three; exit 4"
    async with opened(data) as host, serving(host) as address, NodeClient(address) as client:
        bare = await read(await host.runs.dispatch(RunRequest(target="shell", input=script)))
        wired = await follow(client.run(RunRequest(target="shell", input=script)))

    assert told(wired) == told(bare)
    assert bare[-1].failure == wired[-1].failure
    assert told(bare)[:2] == [("start", "", ""), ("delta", "one\nthree\n", "")]


@pytest.mark.req("RT-05", "NB-01")
async def test_opening_twice_is_refused_and_the_first_goes_on(data: Path) -> None:
    async with opened(data) as host:
        with pytest.raises(FailureError, match="is in use by another node"):
            async with opened(data):
                pass
        events = await read(await host.runs.dispatch(RunRequest(target="shell", input="echo on")))

    assert events[-1].message == "on\n"


@pytest.mark.req("NB-09")
async def test_a_node_id_belongs_to_the_data_directory_unless_one_is_configured(data: Path) -> None:
    async with opened(data) as host:
        first = host.node_id
    async with opened(data) as host:
        second = host.node_id
    async with opened(data, node_id="named") as host:
        third = host.node_id

    assert first == second and first.startswith("node-")
    assert third == "named"


async def test_a_catalog_that_is_wrong_leaves_nothing_open(data: Path) -> None:
    data.parent.mkdir(exist_ok=True)
    (data.parent / "wrong.yaml").write_text("version: 1\n")
    (data.parent / "node.yaml").write_text("catalog: wrong.yaml\n")
    config = load_config(data.parent / "node.yaml", data_dir=str(data))

    with pytest.raises(FailureError, match=r"wrong\.yaml"):
        async with open_host(config):
            pass
    async with opened(data) as host:
        assert host.runs.live == {}


@pytest.mark.req("RT-33")
async def test_what_survives_its_host_is_left_to_the_next_one(data: Path) -> None:
    async with opened(data) as host:
        asked = RunRequest(run_id="r", target="shell", input="echo a; sleep 1.5; echo b", background=True)
        reader = await host.runs.dispatch(asked)
        await reader.read()
        reader.close()
    async with opened(data) as host:
        await host.recovery
        events = await read(await host.runs.attach("r"))

    assert told(events) == [("start", "", ""), ("delta", "a\nb\n", ""), ("complete", "a\nb\n", "")]
