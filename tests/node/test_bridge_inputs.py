"""Verbs and receipts between wire and runtime, every value of them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from node import bridge_inputs
from node.pb import node_pb2
from runtime.provider import InputOutcome, InputReceipt, InputVerb


@pytest.mark.parametrize("verb", InputVerb)
def test_every_verb_has_a_number(verb: InputVerb) -> None:
    assert bridge_inputs.verb_from_wire(bridge_inputs.verb_to_wire(verb)) == verb


def test_every_number_is_a_verb_or_visible() -> None:
    numbers = {node_pb2.InputVerb.Value(name) for name in node_pb2.InputVerb.keys()}  # noqa: SIM118  # not a dict

    assert {bridge_inputs.verb_from_wire(cast(Any, number)) for number in numbers} == {"INPUT_VERB_0", *InputVerb}
    assert bridge_inputs.verb_to_wire("dance") == node_pb2.INPUT_VERB_UNSPECIFIED


@pytest.mark.parametrize("outcome", InputOutcome)
def test_every_receipt_survives_the_wire(outcome: InputOutcome) -> None:
    receipt = InputReceipt(outcome=outcome, message="so it is")

    assert bridge_inputs.input_receipt_from_wire(bridge_inputs.input_receipt_to_wire(receipt)) == receipt
