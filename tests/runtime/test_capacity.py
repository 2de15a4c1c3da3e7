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
    adopted = [capacity.take_regardless(adapter="a", target="t") for _ in range(3)]

    with pytest.raises(CapacityExhausted):
        capacity.take(adapter="a", target="t", target_limit=0)
    for ticket in adopted:
        ticket.release()

    assert capacity.in_use == 0
    capacity.take(adapter="a", target="t", target_limit=0)
