from __future__ import annotations

import pytest

from providers.cli.dialect import Line, ProcessEnd, TurnContext
from providers.cli.dialects.plain_text import ANSWER_LIMIT_BYTES, decoder
from runtime.events import Draft, EventType, complete
from runtime.failure import FailureCode
from tests.support.expect import decode


def concluded(output: bytes, end: ProcessEnd) -> Draft:
    plain = decoder(TurnContext())
    decode([output], plain)
    return plain.conclude(end)


def code_of(draft: Draft) -> FailureCode | None:
    return draft.failure.code if draft.failure else None


@pytest.mark.req("RT-13", "NB-06")
def test_each_line_is_a_delta_and_the_deltas_are_the_answer() -> None:
    plain = decoder(TurnContext())
    drafts = decode([b"one\n\ntwo"], plain)

    assert "".join(each.text for each in drafts if isinstance(each, Draft)) == "one\n\ntwo"
    assert plain.conclude(ProcessEnd(code=0)) == complete("one\n\ntwo")


def test_a_failed_process_is_a_failure_whatever_it_printed() -> None:
    draft = concluded(b"almost done\n", ProcessEnd(code=3, stderr="out of ideas"))

    assert code_of(draft) is FailureCode.PROCESS_FAILED
    assert "out of ideas" in draft.text


def test_a_process_that_still_runs_has_proved_nothing() -> None:
    assert concluded(b"answer\n", ProcessEnd()).type is EventType.ERROR


def test_pr_11_exit_0_with_nothing_is_no_answer() -> None:
    assert code_of(concluded(b"", ProcessEnd(code=0))) is FailureCode.OUTPUT_INVALID


def test_an_answer_that_cannot_be_held_whole_does_not_pass_for_one() -> None:
    line = b"x" * 65_535 + b"\n"
    draft = concluded(line * (ANSWER_LIMIT_BYTES // len(line) + 1), ProcessEnd(code=0))

    assert code_of(draft) is FailureCode.OUTPUT_LIMIT


def test_an_answer_with_a_line_left_out_does_not_pass_for_whole() -> None:
    plain = decoder(TurnContext())
    plain.decode(Line(data=b"one", end=4))
    plain.decode(Line(data=b"three", end=1000))

    assert code_of(plain.conclude(ProcessEnd(code=0))) is FailureCode.OUTPUT_LIMIT
