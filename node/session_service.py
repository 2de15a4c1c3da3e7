"""The session RPCs: look at logical sessions, read what was said, end one."""

from __future__ import annotations

from typing import Any

import grpc.aio

from node import bridge_views
from node.host import Host
from node.pb import node_pb2
from runtime.conversations import terminate_session, transcript
from runtime.keys import LOCAL

PAGE_DEFAULT, PAGE_LIMIT = 100, 1000

Context = grpc.aio.ServicerContext[Any, Any]


class SessionService:
    """Sessions over gRPC."""

    def __init__(self, host: Host) -> None:
        self._runs = host.runs

    async def GetSession(self, request: node_pb2.GetSessionRequest, context: Context) -> node_pb2.GetSessionResponse:
        session = self._runs.sessions.get(LOCAL, request.session_id)
        return bridge_views.session_response(session, self._runs.active_run_id(session))

    async def ListSessions(
        self, request: node_pb2.ListSessionsRequest, context: Context
    ) -> node_pb2.ListSessionsResponse:
        size = min(request.page_size, PAGE_LIMIT) if request.page_size > 0 else PAGE_DEFAULT
        begin = int(request.page_token) if request.page_token.isdigit() else 0
        found = self._runs.sessions.of(LOCAL)[begin : begin + size + 1]
        shown = [(session, self._runs.active_run_id(session)) for session in found[:size]]
        return bridge_views.sessions_to_wire(shown, next_token=str(begin + size) if len(found) > size else "")

    async def TerminateSession(
        self, request: node_pb2.TerminateSessionRequest, context: Context
    ) -> node_pb2.TerminateSessionResponse:
        session = await terminate_session(self._runs, request.session_id, cancel_active=request.cancel_active)
        return bridge_views.terminated_response(session)

    async def GetTranscript(self, request: node_pb2.GetTranscriptRequest, context: Context) -> None:
        async for utterance in transcript(self._runs, request.session_id):
            await context.write(bridge_views.utterance_to_wire(utterance))
