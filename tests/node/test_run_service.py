"""The run RPCs at the moments when their caller is gone already."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.pb import node_pb2
from node.run_service import RunService
from runtime.events import start
from runtime.failure import InvalidRequest
from runtime.types import RunRequest
from tests.support.hosts import Agent, Gate, open_host, read_one


class Gone:
    """The context of a call whose caller has left before the first answer."""

    def __init__(self) -> None:
        self.metadata: list[Any] = []

    def time_remaining(self) -> None:
        return None

    async def send_initial_metadata(self, metadata: list[Any]) -> None:
        self.metadata += metadata
        raise asyncio.CancelledError


class Patient(Gone):
    async def send_initial_metadata(self, metadata: list[Any]) -> None:
        self.metadata += metadata


@pytest.mark.req("NB-14")
async def test_a_reader_that_left_before_it_was_attached_is_none(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(Gate(start()))) as host:
        service = RunService(SimpleNamespace(runs=host.runs, node_id="n"))  # type: ignore[arg-type]  # all it looks at
        with await host.runs.dispatch(RunRequest(target="agent", run_id="r1")) as reader:
            await read_one(reader)

            with pytest.raises(asyncio.CancelledError):
                await service.AttachRun(node_pb2.AttachRunRequest(run_id="r1"), Gone())  # type: ignore[arg-type]

            assert host.runs.readers == 1


@pytest.mark.req("NB-16")
@pytest.mark.parametrize("run_id", ["a\nb", "a b", "x" * 100_000, "\u00e9"])
async def test_an_id_that_no_header_can_hold_is_refused_in_our_words(tmp_path: Path, run_id: str) -> None:
    async with open_host(tmp_path, Agent(Gate(start()))) as host:
        service, context = RunService(SimpleNamespace(runs=host.runs, node_id="n")), Patient()  # type: ignore[arg-type]

        with pytest.raises(InvalidRequest, match=r"run_id .* is not allowed"):
            await service.Run(node_pb2.RunRequest(run_id=run_id, target="agent"), context)  # type: ignore[arg-type]

        assert context.metadata == []


async def test_a_cancelled_run_says_why(tmp_path: Path) -> None:
    async with open_host(tmp_path, Agent(Gate(start()))) as host:
        service = RunService(SimpleNamespace(runs=host.runs, node_id="n", registry=host.registry))  # type: ignore[arg-type]
        reader = await host.runs.dispatch(RunRequest(target="agent", run_id="r1"))
        await host.runs.cancel("r1", reason="somebody changed their mind")
        reader.close()

        found = await service.GetRun(node_pb2.GetRunRequest(run_id="r1"), Patient())  # type: ignore[arg-type]

    assert found.details["reason"] == "somebody changed their mind"
