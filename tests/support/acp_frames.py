"""What a client of the Agent Client Protocol may say, judged by the protocol's own schema.

The schema comes with the package ``agent-client-protocol``, as models. A model passes over members that it does not know
and mends some that are wrong, so a frame is taken for valid only when it comes out of its model as it went in.
"""

from __future__ import annotations

import json
from typing import Any

from acp import schema
from acp.meta import AGENT_METHODS
from pydantic import BaseModel

Frame = dict[str, Any]

PARAMS: dict[str, type[BaseModel]] = {
    "initialize": schema.InitializeRequest,
    "authenticate": schema.AuthenticateRequest,
    "session/new": schema.NewSessionRequest,
    "session/load": schema.LoadSessionRequest,
    "session/resume": schema.ResumeSessionRequest,
    "session/fork": schema.ForkSessionRequest,
    "session/set_mode": schema.SetSessionModeRequest,
    "session/set_config_option": schema.SetSessionConfigOptionSelectRequest,
    "session/prompt": schema.PromptRequest,
    "session/cancel": schema.CancelNotification,
}

ACTIONS: dict[str | None, type[BaseModel]] = {
    "accept": schema.AcceptElicitationResponse,
    "decline": schema.DeclineElicitationResponse,
    "cancel": schema.CancelElicitationResponse,
}


def frames(data: bytes) -> list[Frame]:
    """The frames in *data*, which are whole lines."""
    assert not data or data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


def assert_valid(data: bytes) -> list[Frame]:
    """Every frame in *data* is one that the protocol knows; they are returned."""
    said = frames(data)
    for frame in said:
        assert frame.pop("jsonrpc") == "2.0"
        _check(frame)
    return said


def _check(frame: Frame) -> None:
    if "method" in frame:
        assert frame["method"] in AGENT_METHODS.values(), f"{frame['method']} is not in the schema"
        is_request = frame["method"] != "session/cancel"
        envelope: type[BaseModel] = schema.ClientRequest if is_request else schema.ClientNotification
        _unchanged(PARAMS[frame["method"]], frame["params"])
    elif "error" in frame:
        envelope = schema.ClientErrorMessage
        _unchanged(schema.Error, frame["error"])
    else:
        envelope = schema.ClientResponseMessage
        _unchanged(ACTIONS.get(frame["result"].get("action"), schema.RequestPermissionResponse), frame["result"])
    assert frame.keys() <= envelope.model_fields.keys()
    assert ("id" in frame) == ("id" in envelope.model_fields)
    envelope.model_validate(frame)


def _unchanged(model: type[BaseModel], told: Frame) -> None:
    assert model.model_validate(told).model_dump(mode="json", by_alias=True, exclude_unset=True) == told
