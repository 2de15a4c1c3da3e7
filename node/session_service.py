"""The session RPCs: look at logical sessions, read what was said, end one."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc.aio

from node import bridge_views
from node.host import Host
from node.paging import offset_of, page_size
from node.pb import node_pb2
from runtime.conversations import terminate_session, transcript
from runtime.keys import LOCAL

Context = grpc.aio.ServicerContext[Any, Any]
ENTRY_CHARS = 512 * 1024
"""Of one message; a character has at most four bytes, and a reader takes 4 MiB."""


class SessionService:
    """Sessions over gRPC."""

    def __init__(self, host: Host) -> None:
        self._runs = host.runs

    async def GetSession(self, request: node_pb2.GetSessionRequest, context: Context) -> node_pb2.GetSessionResponse:
        await self._runs.recovered.wait()  # before it, nobody knows which sessions are active
        session = self._runs.sessions.get(LOCAL, request.session_id)
        return bridge_views.session_response(session, self._runs.active_run_id(session))

    async def ListSessions(
        self, request: node_pb2.ListSessionsRequest, context: Context
    ) -> node_pb2.ListSessionsResponse:
        size, begin = page_size(request.page_size), offset_of(request.page_token)
        await self._runs.recovered.wait()
        found = self._runs.sessions.of(LOCAL)[begin : begin + size + 1]
        shown = [(session, self._runs.active_run_id(session)) for session in found[:size]]
        return bridge_views.sessions_to_wire(shown, next_token=str(begin + size) if len(found) > size else "")

    async def TerminateSession(
        self, request: node_pb2.TerminateSessionRequest, context: Context
    ) -> node_pb2.TerminateSessionResponse:
        session = await terminate_session(self._runs, request.session_id, cancel_active=request.cancel_active)
        return bridge_views.terminated_response(session)

    async def GetTranscript(self, request: node_pb2.GetTranscriptRequest, context: Context) -> None:
        async with aclosing(transcript(self._runs, request.session_id)) as utterances:
            async for utterance in utterances:
                for begin in range(0, max(1, len(utterance.text)), ENTRY_CHARS):
                    piece = replace(utterance, text=utterance.text[begin : begin + ENTRY_CHARS])
                    await context.write(bridge_views.utterance_to_wire(piece))
