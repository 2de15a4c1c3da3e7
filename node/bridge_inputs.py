"""What is done to a running turn, and what came of it, as messages: both directions."""

from __future__ import annotations

from node.pb import node_pb2
from runtime.provider import InputOutcome, InputReceipt, InputVerb

_VERBS: dict[node_pb2.InputVerb, InputVerb] = {
    node_pb2.INPUT_VERB_INTERRUPT: InputVerb.INTERRUPT,
    node_pb2.INPUT_VERB_STEER: InputVerb.STEER,
    node_pb2.INPUT_VERB_QUEUE: InputVerb.QUEUE,
}

_OUTCOMES: dict[InputOutcome, node_pb2.InputOutcome] = {
    InputOutcome.CONFIRMED: node_pb2.INPUT_OUTCOME_CONFIRMED,
    InputOutcome.NOT_CONFIRMED: node_pb2.INPUT_OUTCOME_NOT_CONFIRMED,
    InputOutcome.TOO_LATE: node_pb2.INPUT_OUTCOME_TOO_LATE,
}


def verb_from_wire(number: node_pb2.InputVerb) -> str:
    """The word of a verb; one that this build does not know stays visible, and is refused, as its number."""
    return _VERBS.get(number, f"INPUT_VERB_{number}")


def verb_to_wire(verb: str) -> node_pb2.InputVerb:
    """The number of a verb; 0, which is refused, for a word that is none."""
    return next((number for number, word in _VERBS.items() if word == verb), node_pb2.INPUT_VERB_UNSPECIFIED)


def input_receipt_to_wire(receipt: InputReceipt) -> node_pb2.SendInputResponse:
    return node_pb2.SendInputResponse(outcome=_OUTCOMES[receipt.outcome], detail=receipt.message, run_id=receipt.run_id)


def input_receipt_from_wire(response: node_pb2.SendInputResponse) -> InputReceipt:
    outcomes = {number: outcome for outcome, number in _OUTCOMES.items()}
    return InputReceipt(outcome=outcomes[response.outcome], message=response.detail, run_id=response.run_id)
