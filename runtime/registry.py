"""Which provider executes a target. A lookup finds exactly what was registered, or nothing; there is no default.

The contents are one immutable snapshot that a refresh replaces whole. A run holds a lease on the provider it began with;
a replaced provider is closed after its last lease, and not before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from runtime.failure import Conflict, FailureCode, FailureError, InvalidRequest, TargetNotFound
from runtime.provider import Provider
from runtime.types import Capabilities

log = logging.getLogger(__name__)


class RegistryClosed(FailureError):
    """The host is shutting down; nothing more is looked up."""

    code = FailureCode.DRAINING


@dataclass(slots=True, kw_only=True, eq=False)
class _Entry:
    """One registered provider and how many runs hold it."""

    adapter: str
    provider: Provider
    capabilities: Capabilities
    leases: int = 0
    is_retired: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One generation of the registry."""

    version: int = 0
    entries: Mapping[tuple[str, str], _Entry] = field(default_factory=dict)

    def targets(self) -> list[tuple[str, str, Capabilities]]:
        """(adapter, target, capabilities) of everything served, in order."""
        return [
            (adapter, target, self.entries[adapter, target].capabilities) for adapter, target in sorted(self.entries)
        ]


class Lease:
    """A provider in use by one run; release it when the run has ended."""

    def __init__(self, registry: Registry, entry: _Entry, target: str) -> None:
        self._registry, self._entry = registry, entry
        self.adapter, self.target = entry.adapter, target
        self.provider, self.capabilities = entry.provider, entry.capabilities
        self._held = True
        entry.leases += 1

    def release(self) -> None:
        """Repeating does nothing."""
        if self._held:
            self._held = False
            self._registry._released(self._entry)


class Registry:
    """The providers of a host. One loop; lookups are synchronous, so they see one snapshot."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def replace(self, providers: Iterable[tuple[str, Provider]]) -> Snapshot:
        """Make *providers*, as (adapter, provider), the whole contents, in one step.

        A provider that is in the old and the new set stays open. Those no longer in it are closed after their last run.

        Raises:
            Conflict: two of them serve one target under one adapter; the old set stays.
            RegistryClosed: too late.
        """
        kept = {id(entry.provider): entry for entry in self.snapshot.entries.values()}
        entries: dict[tuple[str, str], _Entry] = {}
        for adapter, provider in providers:
            capabilities = await provider.capabilities()
            old = kept.get(id(provider))
            entry = (
                old
                if old and old.capabilities == capabilities
                else _Entry(adapter=adapter, provider=provider, capabilities=capabilities)
            )
            for target in capabilities.targets:
                if (adapter, target) in entries:
                    raise Conflict(f"target {target!r} is registered twice under adapter {adapter!r}")
                entries[adapter, target] = entry
        if self._is_closed:
            raise RegistryClosed("the registry is closed")
        before, self.snapshot = self.snapshot, Snapshot(version=self.snapshot.version + 1, entries=entries)
        staying = {id(entry) for entry in entries.values()}
        for entry in {id(e): e for e in before.entries.values() if id(e) not in staying}.values():
            self._retire(entry)
        return self.snapshot

    def lease(self, *, adapter: str, target: str) -> Lease:
        """The provider of exactly this adapter and target; an empty adapter means the one that serves the target.

        Raises:
            InvalidRequest: no target was named, or several adapters serve it and none was named.
            TargetNotFound: nothing serves it; the message lists what is served.
        """
        if self._is_closed:
            raise RegistryClosed("the node is shutting down")
        if not target:
            raise InvalidRequest("target is empty; name a profile of the catalog", field="target")
        adapter = adapter or self._only_adapter(target)
        entry = self.snapshot.entries.get((adapter, target))
        if entry is None:
            raise self._not_found(adapter, target)
        return Lease(self, entry, target)

    def _only_adapter(self, target: str) -> str:
        found = sorted(a for a, t in self.snapshot.entries if t == target)
        if not found:
            raise self._not_found("", target)
        if len(found) > 1:
            raise InvalidRequest(
                f"target {target!r} is served by adapters {', '.join(found)}; name one", field="adapter"
            )
        return found[0]

    def _not_found(self, adapter: str, target: str) -> TargetNotFound:
        served = ", ".join(f"{a}/{t}" for a, t in sorted(self.snapshot.entries)) or "nothing"
        name = f"{adapter}/{target}" if adapter else target
        return TargetNotFound(f"target {name!r} is not served here; served: {served}", adapter=adapter, target=target)

    def _released(self, entry: _Entry) -> None:
        entry.leases -= 1
        if not entry.leases:
            entry.idle.set()

    def _retire(self, entry: _Entry) -> None:
        if entry.is_retired:
            return
        entry.is_retired = True
        task = asyncio.create_task(_close_when_idle(entry), name=f"close provider {entry.adapter}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, *, within_s: float = 10.0) -> None:
        """Close every provider once, each after its last run; call it when runs have been told to end.

        One that has not closed *within_s* is left behind: a stuck run must not keep its host from leaving.
        """
        self._is_closed = True
        before, self.snapshot = self.snapshot, Snapshot(version=self.snapshot.version + 1)
        for entry in {id(e): e for e in before.entries.values()}.values():
            self._retire(entry)
        if self._closing:
            _, stuck = await asyncio.wait(self._closing, timeout=within_s)
            for task in stuck:
                log.error("%s: not over after %g s, left behind", task.get_name(), within_s)
                task.cancel()


async def _close_when_idle(entry: _Entry) -> None:
    while entry.leases:
        entry.idle.clear()
        await entry.idle.wait()
    try:
        await entry.provider.close()
    except Exception:
        log.exception("provider did not close", extra={"adapter": entry.adapter})
