"""How many runs may execute at once, and in which order the others wait.

A run holds a ticket from its acceptance to its end. A ticket is *granted* when the run may execute: at once while a slot
is free, else in the order of acceptance, as slots are given back. A run that waits for something else first holds a
*parked* ticket, which occupies nothing until it enters the queue. A slot is free again before the run's terminal can be
seen, so whoever sees a terminal can dispatch at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from runtime.failure import CapacityExhausted

Key = tuple[str, str]


class Ticket:
    """The right to execute one run, or a place in the queue for it."""

    def __init__(self, capacity: Capacity, key: Key, limit: int) -> None:
        self._capacity, self.key, self.limit = capacity, key, limit
        self._is_released = False
        self.granted = asyncio.Event()

    @property
    def position(self) -> int:
        """The place in the queue, 1 being next; 0 once granted."""
        return self._capacity.position(self)

    def enter(self) -> None:
        """Of a parked ticket: it is granted now, or waits at the end of the queue. Of another this does nothing."""
        if not self._is_released:
            self._capacity.enter(self)

    def release(self) -> None:
        """Give the slot or the place back; repeating does nothing."""
        if not self._is_released:
            self._is_released = True
            self._capacity.give_back(self)


class Capacity:
    """The host's limit over all runs, and each target's own; at most *queue_limit* runs wait."""

    def __init__(self, limit: int, *, queue_limit: int = 0) -> None:
        self.limit, self.queue_limit = limit, queue_limit
        self._used: Counter[Key] = Counter()
        self._waiting: list[Ticket] = []

    @property
    def in_use(self) -> int:
        return self._used.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def resize(self, limit: int, *, queue_limit: int) -> None:
        """Other limits from now on. Nothing granted is taken back; what fits now begins now."""
        self.limit, self.queue_limit = limit, queue_limit
        self._advance()

    def take(self, *, adapter: str, target: str, target_limit: int) -> Ticket:
        """A ticket for one run of the target (*target_limit* 0: only the host's limit applies), granted or queued.

        Raises:
            CapacityExhausted: no slot is free and the queue is full; the message says whose limit it is.
        """
        ticket = Ticket(self, (adapter, target), target_limit)
        if self._is_free(ticket) and not any(self._is_free(other) for other in self._waiting):
            self._grant(ticket)
        elif len(self._waiting) < self.queue_limit:
            self._waiting.append(ticket)
        else:
            raise self._exhausted(ticket, target)
        return ticket

    def park(self, *, adapter: str, target: str, target_limit: int = 0) -> Ticket:
        """A ticket for a run that waits for something else first."""
        return Ticket(self, (adapter, target), target_limit)

    def enter(self, ticket: Ticket, *, has_begun: bool = False) -> None:
        """Grant the parked *ticket* when a slot is free, else queue it: its run was accepted, so no limit refuses it.

        A run that has begun already has its slot whatever the limits say.
        """
        if ticket.granted.is_set() or ticket in self._waiting:
            return
        if has_begun or self._is_free(ticket):
            self._grant(ticket)
        else:
            self._waiting.append(ticket)

    def position(self, ticket: Ticket) -> int:
        return self._waiting.index(ticket) + 1 if ticket in self._waiting else 0

    def give_back(self, ticket: Ticket) -> None:
        """Called by the ticket, once."""
        if not ticket.granted.is_set():
            if ticket in self._waiting:
                self._waiting.remove(ticket)
            return
        self._used[ticket.key] -= 1
        if not self._used[ticket.key]:
            del self._used[ticket.key]
        self._advance()

    def _advance(self) -> None:
        """Grant what can begin now, in order; a target at its own limit holds back only its own runs."""
        for ticket in tuple(self._waiting):
            if self.in_use >= self.limit:
                return
            if self._is_free(ticket):
                self._waiting.remove(ticket)
                self._grant(ticket)

    def _grant(self, ticket: Ticket) -> None:
        self._used[ticket.key] += 1
        ticket.granted.set()

    def _is_free(self, ticket: Ticket) -> bool:
        return self.in_use < self.limit and not (ticket.limit and self._used[ticket.key] >= ticket.limit)

    def _exhausted(self, ticket: Ticket, target: str) -> CapacityExhausted:
        queue = f" and {self.queue_limit} more wait" if self.queue_limit else ""
        if self.in_use >= self.limit:
            return CapacityExhausted(
                f"all {self.limit} execution slots of this node are in use{queue}", limit=str(self.limit)
            )
        limit = ticket.limit
        return CapacityExhausted(f"all {limit} slots of target {target!r} are in use{queue}", limit=str(limit))
