from __future__ import annotations

import pytest

from runtime.capacity import Capacity
from runtime.failure import CapacityExhausted, FailureCode


@pytest.mark.req("NB-15")
def test_a_ticket_is_given_back_once_however_often_it_is_released() -> None:
    capacity = Capacity(2)
    first = capacity.take(adapter="a", target="t", target_limit=0)
    capacity.take(adapter="a", target="t", target_limit=0)

    first.release()
    first.release()

    assert capacity.in_use == 1


def test_the_hosts_limit_is_over_all_targets() -> None:
    capacity = Capacity(2)
    capacity.take(adapter="a", target="t", target_limit=0)
    capacity.take(adapter="b", target="u", target_limit=0)

    with pytest.raises(CapacityExhausted, match="all 2 execution slots of this node") as refusal:
        capacity.take(adapter="c", target="v", target_limit=0)

    assert (refusal.value.failure.code, refusal.value.failure.retryable) == (FailureCode.CAPACITY_EXHAUSTED, True)
    assert dict(refusal.value.failure.metadata) == {"limit": "2"}


@pytest.mark.req("RT-03")
def test_a_targets_limit_is_its_own() -> None:
    capacity = Capacity(9)
    held = capacity.take(adapter="a", target="t", target_limit=1)

    with pytest.raises(CapacityExhausted, match="all 1 slots of target 't'"):
        capacity.take(adapter="a", target="t", target_limit=1)
    capacity.take(adapter="b", target="t", target_limit=1)
    held.release()
    capacity.take(adapter="a", target="t", target_limit=1)

    assert capacity.in_use == 2


@pytest.mark.req("RT-03")
def test_a_target_limit_of_zero_leaves_the_hosts() -> None:
    capacity = Capacity(3)

    for _ in range(3):
        capacity.take(adapter="a", target="t", target_limit=0)

    with pytest.raises(CapacityExhausted):
        capacity.take(adapter="a", target="t", target_limit=0)


def test_a_run_of_an_earlier_host_goes_on_beyond_the_limit() -> None:
    capacity = Capacity(1)
    adopted = [capacity.park(adapter="a", target="t") for _ in range(3)]
    for ticket in adopted:
        capacity.enter(ticket, has_begun=True)

    with pytest.raises(CapacityExhausted):
        capacity.take(adapter="a", target="t", target_limit=0)
    for ticket in adopted:
        ticket.release()

    assert capacity.in_use == 0
    capacity.take(adapter="a", target="t", target_limit=0)


# --- the queue


def queue(limit: int = 1, *, places: int = 9) -> Capacity:
    return Capacity(limit, queue_limit=places)


def test_a_run_waits_for_a_slot_in_its_place() -> None:
    capacity = queue()
    tickets = [capacity.take(adapter="a", target="t", target_limit=0) for _ in range(3)]

    assert [ticket.granted.is_set() for ticket in tickets] == [True, False, False]
    assert [ticket.position for ticket in tickets] == [0, 1, 2]
    assert (capacity.in_use, capacity.waiting) == (1, 2)


@pytest.mark.req("NB-15")
def test_a_slot_that_is_given_back_goes_to_the_next_at_once() -> None:
    capacity = queue()
    first, second, third = (capacity.take(adapter="a", target="t", target_limit=0) for _ in range(3))

    first.release()
    first.release()

    assert (second.granted.is_set(), third.granted.is_set(), capacity.in_use) == (True, False, 1)


def test_a_place_that_is_given_back_costs_no_slot() -> None:
    capacity = queue()
    held, waiting, last = (capacity.take(adapter="a", target="t", target_limit=0) for _ in range(3))

    waiting.release()
    waiting.release()
    held.release()

    assert (last.granted.is_set(), last.position, capacity.in_use, capacity.waiting) == (True, 0, 1, 0)


def test_a_full_queue_refuses_and_says_so() -> None:
    capacity = queue(places=1)
    for _ in range(2):
        capacity.take(adapter="a", target="t", target_limit=0)

    with pytest.raises(CapacityExhausted, match="all 1 execution slots of this node are in use and 1 more wait"):
        capacity.take(adapter="a", target="t", target_limit=0)


def test_a_target_at_its_own_limit_holds_back_only_its_own() -> None:
    capacity = queue(2)
    first = capacity.take(adapter="a", target="narrow", target_limit=1)
    waits = capacity.take(adapter="a", target="narrow", target_limit=1)

    passes = capacity.take(adapter="a", target="wide", target_limit=0)
    first.release()

    assert (passes.granted.is_set(), waits.granted.is_set()) == (True, True)


def test_a_run_that_had_begun_does_not_queue_after_a_restart_and_another_does() -> None:
    capacity = queue()

    begun, accepted = (capacity.park(adapter="a", target="t") for _ in range(2))
    capacity.enter(begun, has_begun=True)
    accepted.enter()

    assert (begun.granted.is_set(), accepted.granted.is_set()) == (True, False)
    begun.release()
    assert accepted.granted.is_set()


def test_a_parked_ticket_occupies_nothing_until_it_enters() -> None:
    capacity = queue()
    parked = capacity.park(adapter="a", target="t")
    capacity.take(adapter="a", target="t", target_limit=0)

    before = (capacity.in_use, capacity.waiting, parked.position)
    parked.enter()
    parked.enter()
    waiting = (capacity.in_use, capacity.waiting, parked.position)
    parked.release()
    parked.enter()

    assert (before, waiting) == ((1, 0, 0), (1, 1, 1))
    assert (capacity.in_use, capacity.waiting) == (1, 0)


def test_a_parked_run_is_refused_by_no_limit() -> None:
    capacity = Capacity(1)
    parked = capacity.park(adapter="a", target="t")
    first = capacity.take(adapter="a", target="t", target_limit=0)

    parked.enter()
    first.release()

    assert parked.granted.is_set()


def test_more_slots_let_those_who_wait_begin() -> None:
    capacity = queue()
    _, second, third = (capacity.take(adapter="a", target="t", target_limit=0) for _ in range(3))

    capacity.resize(2, queue_limit=0)

    assert (second.granted.is_set(), third.granted.is_set()) == (True, False)
    assert (capacity.in_use, capacity.waiting) == (2, 1)
