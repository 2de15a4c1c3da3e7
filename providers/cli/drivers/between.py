"""What a process printed between two turns. No turn reads it, and what is asked there is waited for without end.

It is heard when the next turn is handed over, and not while the process is idle. Nobody needs the answers earlier: a
background job of the agent waits, and no run waits for it. To look meanwhile would take a decoder and a watch per idle
process, and a rule for who answers at the moment of the hand-over. Here the bytes are bounded on the disk before anything
is sent (``unread`` to ``offset`` of the run's part), so hearing them is a pure function that waits for nothing, and a node
that takes the turn over gives the same answers again under the same key. What is asked later is asked of the turn.

Every answer is a refusal: there is no run that the question belongs to, so nobody who could be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from providers.cli.dialect import Conversation, Line, Question, Reply
from providers.cli.framing import Framing
from runtime.provider import Answer, Decision

LIMIT_BYTES = 1 << 20
"""Agents print a few notices between turns. Of one that printed more, what it waits for cannot be told in bounded time."""

REFUSAL = "Nobody can be asked between two turns."


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What is to be said before the turn, and whether the process may have the turn at all."""

    answers: bytes = b""
    is_fit: bool = True


def hear(path: Path, begin: int, end: int, conversation: Conversation) -> Heard:
    """Decode the bytes [*begin*, *end*) of *path*, whole lines, with a *conversation* made for this. Blocks."""
    if end - begin > LIMIT_BYTES:
        return Heard(is_fit=False)
    with open(path, "rb") as file:
        file.seek(begin)
        lines = Framing(start=begin).feed(file.read(end - begin))
    told = [item for line in lines if isinstance(line, Line) for item in conversation.decode(line)]
    answers = [_refusal(conversation, item) for item in told if isinstance(item, Question | Reply)]
    return Heard(answers=b"".join(answers), is_fit=conversation.is_usable)


def _refusal(conversation: Conversation, item: Question | Reply) -> bytes:
    if isinstance(item, Reply):
        return item.data
    request_id = item.request.request_id
    return conversation.answer(Answer(request_id=request_id, decision=Decision.DENY, by="rule", message=REFUSAL))
