from __future__ import annotations

import pytest

from runtime.events import TERMINAL, EventType
from runtime.records import RunState
from runtime.states import is_success, outcome_of


@pytest.mark.req("E-1")
def test_every_terminal_has_its_state() -> None:
    assert {kind.value: outcome_of(kind).value for kind in TERMINAL} == {
        "complete": "complete", "error": "error", "cancelled": "cancelled",
    }  # fmt: skip


@pytest.mark.req("E-1")
@pytest.mark.parametrize("kind", sorted(set(EventType) - TERMINAL))
def test_what_ends_nothing_has_no_outcome(kind: EventType) -> None:
    with pytest.raises(KeyError):
        outcome_of(kind)


@pytest.mark.req("E-1")
@pytest.mark.parametrize("state", RunState)
def test_only_complete_is_a_success(state: RunState) -> None:
    assert is_success(state) is (state is RunState.COMPLETE)


@pytest.mark.req("E-1")
def test_only_one_spelling_of_cancelled_is_made() -> None:
    words = {*(kind.value for kind in EventType), *(state.value for state in RunState)}

    assert "canceled" not in words
