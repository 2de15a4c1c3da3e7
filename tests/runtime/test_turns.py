from __future__ import annotations

import pytest

from runtime.failure import CapacityExhausted, FailureCode, SessionBusy
from runtime.turns import Turn, Turns

TEA = ("local", "tea")


def line(turns: Turns, *runs: str, limit: int = 9) -> list[Turn]:
    return [turns.take(TEA, run, queue_limit=limit) for run in runs]


def standing(places: list[Turn]) -> list[tuple[bool, int]]:
    """Of each whether it is its turn, and its position."""
    return [(turn.granted.is_set(), turn.position) for turn in places]


@pytest.mark.req("RT-12")
def test_one_has_the_turn_and_the_others_stand_in_order() -> None:
    turns = Turns()
    places = line(turns, "a", "b", "c")

    assert standing(places) == [(True, 0), (False, 1), (False, 2)]
    assert (turns.active(TEA), turns.waiting) == ("a", 2)


@pytest.mark.req("RT-12")
def test_the_turn_goes_to_the_next_once_however_often_it_is_given_back() -> None:
    turns = Turns()
    first, second, third = line(turns, "a", "b", "c")

    first.release()
    first.release()

    assert standing([second, third]) == [(True, 0), (False, 1)]


def test_who_leaves_the_line_lets_nobody_in_before_their_time() -> None:
    turns = Turns()
    first, second, third = line(turns, "a", "b", "c")

    second.release()

    assert standing([first, third]) == [(True, 0), (False, 1)]
    first.release()
    assert standing([third]) == [(True, 0)]
    third.release()
    assert (turns.active(TEA), turns.waiting) == (None, 0)


@pytest.mark.req("RT-12")
def test_who_may_not_wait_is_refused_also_behind_those_who_wait() -> None:
    turns = Turns()
    line(turns, "a", "b")

    with pytest.raises(SessionBusy, match="'tea' has an active run"):
        turns.take(TEA, "c")


def test_the_line_is_bounded_and_says_so() -> None:
    turns = Turns()
    line(turns, "a", "b", "c", limit=2)

    with pytest.raises(CapacityExhausted, match="2 runs wait for session 'tea' already") as refusal:
        line(turns, "d", limit=2)

    assert (refusal.value.failure.code, refusal.value.failure.retryable) == (FailureCode.CAPACITY_EXHAUSTED, True)
    assert turns.waiting == 2


def test_sessions_do_not_wait_for_each_other() -> None:
    turns = Turns()
    line(turns, "a")

    assert turns.take(("other", "tea"), "b").granted.is_set()
    assert turns.take(("local", "milk"), "c").granted.is_set()


def test_after_a_restart_what_had_begun_has_its_turn_and_the_rest_keep_their_order() -> None:
    turns = Turns()
    begun, accepted, later = (
        turns.take_regardless(TEA, run, has_begun=has_begun)
        for run, has_begun in (("a", True), ("b", False), ("c", False))
    )

    assert standing([begun, accepted, later]) == [(True, 0), (False, 1), (False, 2)]


def test_after_a_restart_the_first_has_the_turn_though_it_had_not_begun() -> None:
    assert Turns().take_regardless(TEA, "a", has_begun=False).granted.is_set()
