"""The run RPCs: bridge in, call the runtime, bridge out. One method per RPC, no decisions.

``Run`` and ``AttachRun`` are one loop over a reader. A write waits for this client alone; the run and the other readers do
not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio

from node import bridge_inputs, bridge_views
from node.host import Host
from node.paging import key_of, page_size
from node.pb import node_pb2
from node.runtime_bridge import EventEncoder, request_from_wire
from runtime import journal
from runtime.events import EventType
from runtime.execution import SUPPRESSED
from runtime.failure import NotFound
from runtime.keys import new_ulid
from runtime.provider import Describer
from runtime.readers import Reader
from runtime.records import RunRecord, RunState
from runtime.types import RUN_ID
from runtime.verbs import respond, send_input

RUN_ID_HEADER = "iop-run-id"
CHUNK_BYTES = 256 * 1024

Context = grpc.aio.ServicerContext[Any, Any]


class RunService:
    """Runs over gRPC."""

    def __init__(self, host: Host) -> None:
        self._host, self._runs = host, host.runs

    async def Run(self, request: node_pb2.RunRequest, context: Context) -> None:
        """Dispatch, then stream to the terminal."""
        asked = request_from_wire(request)
        asked = replace(asked, run_id=asked.run_id or new_ulid().lower())
        is_header = RUN_ID.fullmatch(asked.run_id)  # one that is none is refused below, in our words and not gRPC's
        await context.send_initial_metadata([(RUN_ID_HEADER, asked.run_id)] if is_header else [])
        reader = await self._runs.dispatch(
            asked, after=request.after_sequence, outer_deadline_s=context.time_remaining()
        )
        await self._stream(reader, context, after=request.after_sequence, include_activity=request.include_activity)

    async def AttachRun(self, request: node_pb2.AttachRunRequest, context: Context) -> None:
        """Stream from a cursor to the terminal."""
        reader = await self._runs.attach(request.run_id, after=request.after_sequence)
        with reader:  # a caller that is gone by now must not stay counted as one who reads
            await context.send_initial_metadata([(RUN_ID_HEADER, reader.run_id)])  # even while the run is quiet
            await self._stream(reader, context, after=request.after_sequence, include_activity=request.include_activity)

    async def _stream(self, reader: Reader, context: Context, *, after: int, include_activity: bool) -> None:
        encoder = EventEncoder(node_id=self._host.node_id, after_sequence=after)
        write = context.write
        with reader:
            while events := await reader.read():
                for event in events:
                    if event.type is EventType.ACTIVITY and not include_activity:
                        continue
                    for data in encoder.encode(event):
                        await write(data)

    async def CancelRun(self, request: node_pb2.CancelRunRequest, context: Context) -> node_pb2.CancelRunResponse:
        receipt = await self._runs.cancel(request.run_id, reason=request.reason)
        return bridge_views.receipt_to_wire(receipt)

    async def SendInput(self, request: node_pb2.SendInputRequest, context: Context) -> node_pb2.SendInputResponse:
        verb = bridge_inputs.verb_from_wire(request.verb)
        receipt = await send_input(self._runs, request.run_id, verb, request.input, new_run_id=request.new_run_id)
        return bridge_inputs.input_receipt_to_wire(receipt)

    async def RespondPermission(
        self, request: node_pb2.RespondPermissionRequest, context: Context
    ) -> node_pb2.RespondPermissionResponse:
        answer = await respond(
            self._runs,
            request.run_id,
            request.request_id,
            bridge_views.decision_from_wire(request.decision),
            message=request.message,
            content=bridge_views.content_from_wire(request),
        )
        return bridge_views.answer_to_wire(answer)

    async def GetRun(self, request: node_pb2.GetRunRequest, context: Context) -> node_pb2.GetRunResponse:
        record = await self._runs.get(request.run_id)
        first, last = await asyncio.to_thread(_held, self._directory(record))
        details = await asyncio.to_thread(self._explain, record)
        return bridge_views.run_details_to_wire(
            record,
            first=first,
            last=last,
            queue_position=self._runs.queue_position(record),
            open_requests=self._runs.open_requests(record),
            details=details,
        )

    async def ListRuns(self, request: node_pb2.ListRunsRequest, context: Context) -> node_pb2.ListRunsResponse:
        size, before = page_size(request.page_size), key_of(request.page_token)
        found = await self._runs.page(before=before, limit=size + 1, active_only=request.active_only)
        queued = {record.ulid: self._runs.queue_position(record) for record in found}
        return bridge_views.page_to_wire(
            found[:size], queued, next_token=found[size - 1].ulid if len(found) > size else ""
        )

    async def ListArtifacts(
        self, request: node_pb2.ListArtifactsRequest, context: Context
    ) -> node_pb2.ListArtifactsResponse:
        record = await self._runs.get(request.run_id)
        return bridge_views.artifacts_to_wire(await asyncio.to_thread(self._artifact_sizes, record))

    async def GetArtifact(self, request: node_pb2.GetArtifactRequest, context: Context) -> None:
        record = await self._runs.get(request.run_id)
        async with aclosing(self._artifact(record, request.name)) as pieces:
            async for data in pieces:
                await context.write(bridge_views.chunk_to_wire(data))

    # -- what a run left --------------------------------------------------------------------------------------------

    def _directory(self, record: RunRecord) -> Path:
        return self._runs.storage.run_directory(record.ulid)

    def _describer(self, record: RunRecord) -> Describer | None:
        if record.spec is None:
            return None
        entry = self._host.registry.snapshot.entries.get((record.spec.adapter, record.spec.target))
        return entry.provider if entry is not None and isinstance(entry.provider, Describer) else None

    def _explain(self, record: RunRecord) -> dict[str, str]:
        describer = self._describer(record)
        facts = {} if describer is None else describer.explain(self._directory(record))
        if record.state is RunState.CANCELLED and (reason := _last_word(self._directory(record))):
            facts = {"reason": reason, **facts}
        suppressed = self._directory(record) / SUPPRESSED
        return facts | ({"suppressed": suppressed.read_text()} if suppressed.is_file() else {})

    def _files(self, record: RunRecord) -> dict[str, Path]:
        describer = self._describer(record)
        return {} if describer is None else describer.artifacts(self._directory(record))

    def _artifact_sizes(self, record: RunRecord) -> dict[str, int]:
        sizes = {name: path.stat().st_size for name, path in self._files(record).items()}
        if (answer := _answer(self._directory(record))) is not None:
            sizes["answer"] = len(answer)
        return dict(sorted(sizes.items()))

    async def _artifact(self, record: RunRecord, name: str) -> AsyncGenerator[bytes, None]:
        if name == "answer" and (answer := await asyncio.to_thread(_answer, self._directory(record))) is not None:
            for begin in range(0, len(answer), CHUNK_BYTES):
                yield answer[begin : begin + CHUNK_BYTES]
            return
        files = self._files(record)
        if name not in files:
            known = ", ".join(await asyncio.to_thread(self._artifact_sizes, record)) or "none"
            raise NotFound(f"run {record.run_id!r} has no artifact {name!r}; it has {known}", run_id=record.run_id)
        with open(files[name], "rb") as file:
            while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                yield data


def _held(directory: Path) -> tuple[int, int]:
    """The first and last sequence in the journal; zeros when there is none."""
    path = directory / journal.NAME
    last = journal.peek_last(path)
    return (0, 0) if last is None else (journal.first_sequence(path), last.sequence)


def _last_word(directory: Path) -> str:
    """What the last event says: of a cancelled run, why it was."""
    last = journal.peek_last(directory / journal.NAME)
    return "" if last is None else last.message


def _answer(directory: Path) -> bytes | None:
    """The final text of a completed run, whole, whatever its length."""
    last = journal.peek_last(directory / journal.NAME)
    return last.message.encode() if last is not None and last.type is EventType.COMPLETE else None
