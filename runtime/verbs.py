"""What is said to a run beside its prompt: a word to the turn under way or behind it, and an answer to what its agent asked.

Each answers with a receipt, and a target does what it declares or refuses: nothing else is done instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.failure import InvalidRequest, NotFound
from runtime.keys import LOCAL
from runtime.provider import Answer, InputOutcome, InputReceipt, InputVerb
from runtime.records import RunRecord
from runtime.resolve import Unsupported
from runtime.runs import Runs
from runtime.types import RunRequest, SessionMode


async def send_input(
    runs: Runs, run_id: str, verb: str, text: str = "", *, new_run_id: str = "", principal: str = LOCAL
) -> InputReceipt:
    """Do *verb* to the run, with *text* where it takes one; the receipt tells what came of it.

    ``queue`` makes a run of its own, under *new_run_id* where that is given; the same again makes no second one.

    Raises:
        NotFound: no such run of this principal.
        InvalidRequest: there is no such verb, its text is missing, or it makes no run and *new_run_id* is given.
        Unsupported: the run's target cannot do it; nothing is done instead.
        FailureError: the new run is refused as any dispatch may be.
    """
    _check_input(verb, text, new_run_id)
    record = await runs.get(run_id, principal=principal)
    if verb == InputVerb.QUEUE and new_run_id and await _is_known(runs, principal, new_run_id):
        return await _queue(runs, record, text, new_run_id)
    run = runs.live.get((principal, run_id))
    if run is None or run.lease is None or run.is_ending or run.ctx.stop is not None:
        return InputReceipt(outcome=InputOutcome.TOO_LATE, message=f"the run is {record.state.value}, or ending")
    if verb not in run.lease.capabilities.verbs:
        can = ", ".join(sorted(run.lease.capabilities.verbs)) or "nothing"
        raise Unsupported(f"target {run.spec.target!r} cannot {verb}; it can {can}", target=run.spec.target, verb=verb)
    if verb == InputVerb.QUEUE:
        return await _queue(runs, record, text, new_run_id)
    if run.ctx.take_input is None:
        return InputReceipt(outcome=InputOutcome.NOT_CONFIRMED, message="the run has not begun its turn")
    return await run.ctx.take_input(InputVerb(verb), text)


def _check_input(verb: str, text: str, new_run_id: str) -> None:
    if verb not in InputVerb._value2member_map_:
        raise InvalidRequest(f"verb {verb!r} is unknown; use one of {', '.join(InputVerb)}", field="verb")
    if verb != InputVerb.INTERRUPT and not text:
        raise InvalidRequest(f"input is empty; give the text to {verb}", field="input")
    if verb != InputVerb.QUEUE and new_run_id:
        raise InvalidRequest(f"new_run_id is given, and {verb} makes no run; leave it out", field="new_run_id")


async def _is_known(runs: Runs, principal: str, run_id: str) -> bool:
    try:
        await runs.get(run_id, principal=principal)
    except NotFound:
        return False
    return True


async def _queue(runs: Runs, ahead: RunRecord, text: str, new_run_id: str) -> InputReceipt:
    """Another run like *ahead*, with *text*, on the same session.

    It is a background run: whoever queues it is not on the line, and what was accepted is not dropped for that.
    """
    if (spec := ahead.spec) is None:
        return InputReceipt(outcome=InputOutcome.TOO_LATE, message=f"the run is {ahead.state.value}")
    request = RunRequest(
        run_id=new_run_id, adapter=spec.adapter, target=spec.target, session_id=ahead.session_id,
        session_mode=SessionMode.CREATE_IF_MISSING, background=True, workspace=spec.workspace, policy=spec.policy,
        input=text, timeout=spec.timeout, metadata=spec.metadata,
    )  # fmt: skip
    run_id = await runs.queue(request, principal=ahead.principal)
    return InputReceipt(outcome=InputOutcome.CONFIRMED, run_id=run_id)


async def respond(
    runs: Runs, run_id: str, request_id: str, decision: str, *, principal: str = LOCAL, message: str = "",
    content: Mapping[str, Any] | None = None,
) -> Answer:  # fmt: skip
    """Answer what the run's agent asked; *content* is what a question is answered with.

    Raises:
        NotFound: no such run of this principal, or no such request is open in it (one that ends has none).
        Conflict: it was answered before.
        InvalidRequest: the decision is none, or *content* does not belong to it.
    """
    record = await runs.get(run_id, principal=principal)
    run = runs.live.get((principal, run_id))
    if run is None or run.is_ending:
        raise NotFound(f"run {run_id!r} is {record.state.value}, or ending; no request of it is open", run_id=run_id)
    return await run.desk.respond(request_id, decision, message=message, content=content)
