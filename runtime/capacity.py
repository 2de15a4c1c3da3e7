"""How many runs may execute at once: tickets, taken before a run is accepted and given back exactly once.

A ticket is released before the run's terminal can be seen, so whoever sees a terminal can dispatch at once.
"""

from __future__ import annotations

from collections import Counter

from runtime.failure import CapacityExhausted


class Ticket:
    """The right to execute one run."""

    def __init__(self, capacity: Capacity, key: tuple[str, str]) -> None:
        self._capacity: Capacity | None = capacity
        self._key = key

    def release(self) -> None:
        """Give it back; repeating does nothing."""
        capacity, self._capacity = self._capacity, None
        if capacity is not None:
            capacity._give_back(self._key)


class Capacity:
    """The host's limit over all runs, and each target's own."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._used: Counter[tuple[str, str]] = Counter()

    @property
    def in_use(self) -> int:
        return self._used.total()

    def take(self, *, adapter: str, target: str, target_limit: int) -> Ticket:
        """A ticket for one run of the target (*target_limit* 0: only the host's limit applies).

        Raises:
            CapacityExhausted: no slot is free; the message says whose limit it is.
        """
        key = (adapter, target)
        if self.in_use >= self.limit:
            raise CapacityExhausted(
                f"all {self.limit} execution slots of this node are in use; try again later", limit=str(self.limit)
            )
        if target_limit and self._used[key] >= target_limit:
            raise CapacityExhausted(
                f"all {target_limit} slots of target {target!r} are in use; try again later", limit=str(target_limit)
            )
        return self.take_regardless(adapter=adapter, target=target)

    def take_regardless(self, *, adapter: str, target: str) -> Ticket:
        """A ticket for a run that was accepted by an earlier host process and goes on whatever the limit is now."""
        self._used[adapter, target] += 1
        return Ticket(self, (adapter, target))

    def _give_back(self, key: tuple[str, str]) -> None:
        self._used[key] -= 1
        if not self._used[key]:
            del self._used[key]
