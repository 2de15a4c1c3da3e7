"""What ``codex app-server`` asks of whoever runs it, and the answers as it takes them.

Leave for a command or a change has a request of its own. Leave for an MCP server's tool comes as an elicitation with an
empty form, which ``codex_approval_kind`` tells from what a server itself asks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from providers.cli import elicitation
from providers.cli import json_fields as fields
from providers.cli.json_fields import JsonObject
from providers.cli.json_lines import bounded
from runtime.events import PermissionRequest
from runtime.provider import Answer, Decision

Words = Callable[[Answer], JsonObject]
"""How a request is answered."""
_LEAVE = {
    "item/commandExecution/requestApproval": ("commandExecution", ("command", "cwd")),
    "item/fileChange/requestApproval": ("fileChange", ("itemId", "grantRoot")),
}
_USER_INPUT, _ELICITATION = "item/tool/requestUserInput", "mcpServer/elicitation/request"
_REASON_BYTES = 2048


def put(method: str, request_id: str, params: JsonObject) -> tuple[PermissionRequest, Words] | None:
    """The request *method* as the host's, and how it is answered; None where nobody can."""
    if method in _LEAVE:
        tool, asked = _LEAVE[method]
        told = {name: params[name] for name in asked if params.get(name) is not None}
        return _leave(request_id, tool, told, fields.text(params, "reason")), _decision
    if method == _USER_INPUT and any(fields.objects(params, "questions")):
        asked_user = {"questions": params["questions"]}
        return elicitation.questions(request_id, asked_user, asker="requestUserInput"), _input
    if method == _ELICITATION and elicitation.is_known(params):
        return _elicited(request_id, params), partial(elicitation.action, elicitation.mode_of(params))
    return None


def _elicited(request_id: str, params: JsonObject) -> PermissionRequest:
    server, meta = fields.text(params, "serverName"), fields.mapping(params, "_meta")
    if fields.text(meta, "codex_approval_kind") != "mcp_tool_call":
        return elicitation.form(request_id, params, asker=server)
    told: JsonObject = {
        "server": server,
        "tool": fields.text(meta, "tool_name"),
        "arguments": fields.mapping(meta, "tool_params"),
    }
    return _leave(request_id, "mcpToolCall", told, fields.text(params, "message"))


def _leave(request_id: str, tool: str, told: JsonObject, reason: str) -> PermissionRequest:
    asked = bounded(fields.as_json(told))
    return PermissionRequest(request_id=request_id, tool=tool, input_json=asked, reason=bounded(reason, _REASON_BYTES))


def _decision(answer: Answer) -> JsonObject:
    return {"decision": "accept" if answer.decision is Decision.ALLOW else "decline"}


def _input(answer: Answer) -> JsonObject:
    """The answers by question; it has no other word for a refusal than none of them."""
    return {"answers": {name: {"answers": texts} for name, texts in elicitation.texts_of(answer).items()}}
