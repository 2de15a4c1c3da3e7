"""One turn with an agent that speaks the Agent Client Protocol, heard and spoken; the dialect states its rule."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from providers.cli import elicitation
from providers.cli import json_fields as fields
from providers.cli.acp_errors import code_of_words, failure_of
from providers.cli.acp_frames import (
    INVALID_REQUEST,
    Message,
    error_answer,
    id_text,
    messages,
    method_not_found,
    notification,
)
from providers.cli.acp_questions import ELICITATION, Questions, cancelled, is_served
from providers.cli.acp_updates import CHUNKS, Updates
from providers.cli.acp_usage import TurnUsage
from providers.cli.dialect import Line, Noise, ProcessEnd, Question, Reply, State, Told, TurnContext, process_failure
from providers.cli.evidence import code_of_prose, exit_facts, recoded, was_ended_from_outside
from providers.cli.found import Found
from providers.cli.json_fields import JsonObject, storable
from runtime.events import Draft, Usage, complete, error
from runtime.failure import Failure, FailureCode
from runtime.provider import Answer

_STOPS = {
    "max_tokens": (FailureCode.BUDGET_EXHAUSTED, "the answer reached the model's limit of tokens and is cut"),
    "max_turn_requests": (FailureCode.BUDGET_EXHAUSTED, "the turn reached the agent's limit of model requests"),
    "refusal": (FailureCode.REFUSED, "the agent refused to go on"),
    "cancelled": (FailureCode.INTERRUPTED, "the turn was interrupted, though not by this host"),
}


# What is read of a piece of text, of which there are hundreds a turn; every other message is read as plain objects.


class _Content(msgspec.Struct, gc=False):
    type: str
    text: str


class _Update(msgspec.Struct, gc=False, rename="camel"):
    session_update: str
    content: _Content
    message_id: str | None = None


class _Params(msgspec.Struct, gc=False, rename="camel"):
    session_id: str
    update: _Update


class _Piece(msgspec.Struct, gc=False):
    method: str
    params: _Params


_decode_piece = msgspec.json.Decoder(_Piece).decode


class AcpConversation:
    """Decodes the messages of one turn, and knows what to say meanwhile."""

    def __init__(self, context: TurnContext) -> None:
        state: JsonObject = dict(context.state)
        self._session, self._agent = fields.text(state, "session"), fields.text(state, "agent")
        self._number = fields.count(state, "next") or 0
        self._usage = TurnUsage(self._agent, state)
        self._updates = Updates(self._agent, self._usage)
        self._questions = Questions(self._number)
        self._end: Message | None = None
        self._confusion = ""

    @property
    def native_id(self) -> str | None:
        return fields.as_identifier(self._session)

    @property
    def has_ended(self) -> bool:
        return self._end is not None or bool(self._confusion)

    @property
    def is_usable(self) -> bool:
        """Whether the agent still keeps to the protocol; one that does not is not given another turn."""
        return not self._confusion

    @property
    def state(self) -> State:
        return {"session": self._session, "agent": self._agent, "next": self._number + 1, **self._usage.state}

    def decode(self, line: Line) -> Sequence[Told]:
        if not self.has_ended and (piece := _text_piece(line.data, self._session)) is not None:
            found = Found(line.end)
            text = storable(piece.content.text)
            self._updates.say(CHUNKS[piece.session_update], text, storable(piece.message_id or ""), found)
            return found
        found, told = Found(line.end), list[Told]()
        for each in messages(line.data):
            if isinstance(each, Noise):
                found.append(each)
            elif (asked := self._message(each, found, line.end)) is not None:
                told += [*found, asked]
                found.clear()  # its places go on
        return [*told, *found]

    # -- what the agent says

    def _message(self, message: Message, found: Found, end: int) -> Question | Reply | None:
        if not message.method:
            self._answered(message, found)
        elif message.has_id:
            return self._request(message, found, end)
        elif self.has_ended:
            if _is_text(message):
                found.noise("after_terminal", message.method)
        elif message.method == "session/update" and fields.text(message.params, "sessionId") == self._session:
            self._updates.take(fields.mapping(message.params, "update"), found)
        elif not message.method.startswith(("_", "$/")):  # an extension's, or the transport's
            found.noise("unknown_type", message.method)
        return None

    def _answered(self, message: Message, found: Found) -> None:
        """The answer to our prompt ends the turn; one to an earlier prompt is late; one to nothing ends it as well."""
        number = message.id if isinstance(message.id, int) and not isinstance(message.id, bool) else None
        if number is not None and number <= self._number and (number < self._number or self.has_ended):
            found.noise("answered_twice", f"request {number}")
        elif self.has_ended:
            found.noise("after_terminal", f"an answer to {id_text(message.id)}")
        elif number == self._number:
            self._end = message
            self._usage.take_answer(message.result)
        else:  # nothing that we asked: it may be our prompt's, and nothing else would ever come
            told = f": {failure_of(message.error).message}" if message.error is not None else ""
            self._confusion = f"the agent answered under an id that nobody asked with ({id_text(message.id)}){told}"

    def _request(self, message: Message, found: Found, end: int) -> Question | Reply:
        request_id, params = self._questions.name(message), message.params
        if not is_served(message):
            return Reply(key=request_id, data=method_not_found(message))
        if message.id is None:  # it could never be answered
            return Reply(key=request_id, data=error_answer(None, INVALID_REQUEST, "a question needs an id"))
        if self.has_ended or self._questions.are_cancelled:
            return Reply(key=request_id, data=cancelled(message))
        self._questions.add(request_id, message)  # a sub-agent's session has another id, and nobody else to ask
        if message.method == ELICITATION:
            request = elicitation.form(request_id, params)
        else:
            request = self._updates.tools.question(request_id, fields.mapping(params, "toolCall"), found)
        return Question(request=request, offset=end, index=found.take_place())

    # -- what is said to the agent

    def interrupt(self) -> bytes | None:
        """The cancel, and the end of every question that is still open: the protocol wants both."""
        return notification("session/cancel", {"sessionId": self._session}) + self._questions.cancel()

    def answer(self, answer: Answer) -> bytes:
        return self._questions.answer(answer)

    # -- judgement

    @property
    def usage_so_far(self) -> Usage | None:
        return self._usage.own()

    def conclude(self, end: ProcessEnd) -> Draft:
        usage, facts = self._usage.own(), exit_facts(end) if end.code is not None else {}
        if self._end is None:
            return error(self._failure_without_end(end), usage=usage)
        if self._end.error is not None:
            failure = failure_of(self._end.error)
            facts = {**facts, **failure.metadata}
            return error(Failure(code=failure.code, message=failure.message, metadata=facts), usage=usage)
        if (failed := self._failure_of_stop(facts)) is not None:
            return error(failed, usage=usage)
        return complete(self._updates.answer, usage=usage, metadata=facts)

    def _failure_of_stop(self, facts: dict[str, str]) -> Failure | None:
        assert self._end is not None
        reason, spoken = fields.text(self._end.result, "stopReason"), self._updates.spoken_error
        if reason == "end_turn":
            return self._failure_of_words(spoken, facts) if spoken else None
        unknown = FailureCode.OUTPUT_INVALID, f"the agent ended its turn with the unknown reason {reason[:100]!r}"
        code, message = _STOPS.get(reason, unknown)
        return Failure(code=code, message=message, metadata={**facts, "stop_reason": reason})

    def _failure_of_words(self, spoken: str, facts: dict[str, str]) -> Failure | None:
        """The failure of a turn that ended well and whose last words are an error; None when a model said them."""
        code, is_models = code_of_words(spoken), self._usage.has_model_answered
        if code is None and (is_models or (is_models is None and self._updates.has_answer)):
            return None
        return Failure(code=code or FailureCode.PROCESS_FAILED, message=spoken, metadata=facts)

    def _failure_without_end(self, end: ProcessEnd) -> Failure:
        if self._confusion:
            return Failure(code=FailureCode.OUTPUT_INVALID, message=self._confusion)
        spoken = self._updates.spoken_error
        failure = process_failure(end, detail=f"failed: {spoken}" if spoken else "")
        if was_ended_from_outside(end):
            return failure  # what it said before is no reason
        return recoded(failure, code_of_words(spoken) if spoken else code_of_prose(end.stderr))


def _text_piece(data: bytes, session: str) -> _Update | None:
    """The piece of plain text in *data*, when it is one of *session* and nothing else."""
    if b"_chunk" not in data or b'"_meta"' in data or b'"id"' in data:
        return None
    try:
        params = _decode_piece(data)
    except (msgspec.MsgspecError, RecursionError):
        return None
    update = params.params.update
    is_ours = params.method == "session/update" and params.params.session_id == session
    return update if is_ours and update.session_update in CHUNKS and update.content.type == "text" else None


def _is_text(message: Message) -> bool:
    """Something that should have come before the end; the vendors' notes on a session may come at any time."""
    return fields.text(fields.mapping(message.params, "update"), "sessionUpdate") in (*CHUNKS, "tool_call")
