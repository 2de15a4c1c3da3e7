"""The Agent Client Protocol, version 1: JSON-RPC 2.0 over stdin and stdout, a message a line, a process a session.

Format: the protocol's published schema, and recorded transcripts under ``tests/`` of Gemini CLI 0.61.0, opencode 1.18.33,
Qwen Code 0.15.10, Copilot CLI 1.0.102 and claude-agent-acp 0.49.0. A process is opened with ``initialize`` and a session;
each turn is one ``session/prompt``, and what happens meanwhile comes as ``session/update``.

THE RULE: the first answer to our ``session/prompt`` decides. An error is an error. ``stopReason`` ``end_turn`` is
complete; ``max_tokens`` and ``max_turn_requests`` are ``budget_exhausted``, because an answer that was cut must not pass
for a whole one; ``refusal`` is ``refused``; ``cancelled`` is ``interrupted``, and whoever asked for it calls it cancelled;
any other reason is ``output_invalid``. One exception: Copilot ends its turn well after an error of its model's API, and
says that as text (see :mod:`providers.cli.acp_updates`); such a turn is an error when the text names an error that is
known, or when its usage shows that no model said anything.

An answer under an id that nobody asked with may be the one to our prompt, and nothing else would ever come: it ends the
turn with ``output_invalid``, and the process is not given another one. A second answer is counted and passed over.

The answer comes without a text. The text of ``complete`` is what the agent said after its last tool call, or, if it said
nothing then, before it.

What the agent asks: leave to use a tool is put to the host, and answered with the option for this once where there is
one; so is a form for people (``elicitation/create``, which the protocol calls unstable). Files and terminals are not
offered to the agent, and everything else that it asks is refused at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from providers.cli import json_fields as fields
from providers.cli.acp_frames import request
from providers.cli.acp_opening import AcpOpening
from providers.cli.acp_turn import AcpConversation
from providers.cli.dialect import State, TurnContext
from providers.cli.json_fields import JsonObject


def decoder(context: TurnContext) -> AcpConversation:
    """A decoder for one turn; its state names the session."""
    return AcpConversation(context)


def opening(
    *, cwd: str, resumed_id: str | None, source_id: str | None = None, settings: Mapping[str, str],
    mcp_servers: Sequence[JsonObject] = (),
) -> AcpOpening:  # fmt: skip
    """The opening of a fresh process; *settings* are those of :mod:`providers.cli.acp_opening`."""
    return AcpOpening(cwd=cwd, resumed_id=resumed_id, source_id=source_id, settings=settings, mcp_servers=mcp_servers)


def _as_text(text: str) -> str:
    """*text* so that no agent takes it for a command, which in the protocol begins with a slash.

    A space in front would do for most, but Gemini strips it, and takes a dollar sign as well.
    """
    return f"\N{ZERO WIDTH SPACE}{text}" if text.lstrip().startswith(("/", "$")) else text


def encode_turn(text: str, state: State) -> bytes:
    """The request that begins a turn in the session of *state*."""
    told: JsonObject = dict(state)
    prompt: JsonObject = {
        "sessionId": fields.text(told, "session"),
        "prompt": [{"type": "text", "text": _as_text(text)}],
    }
    return request(fields.count(told, "next") or 0, "session/prompt", prompt)
