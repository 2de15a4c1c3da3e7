from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.failure import Conflict, FailureCode, InvalidRequest, TargetNotFound
from runtime.registry import Registry, RegistryClosed
from runtime.types import Capabilities
from tests.support.hosts import PATIENCE_S, Agent, says


def agent(*targets: str, **capabilities: Any) -> Agent:
    return Agent(says("hi"), targets=targets or ("agent",), **capabilities)


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
async def registry() -> AsyncIterator[Registry]:
    opened = Registry()
    yield opened
    async with asyncio.timeout(PATIENCE_S):
        await opened.close()


@pytest.mark.req("RT-03", "RT-30")
async def test_what_was_registered_is_found_with_its_capabilities(registry: Registry) -> None:
    provider = agent("one", "two", max_concurrency=3)
    await registry.replace([("cli", provider)])

    lease = registry.lease(adapter="cli", target="two")

    assert (lease.adapter, lease.target, lease.provider) == ("cli", "two", provider)
    assert lease.capabilities == Capabilities(targets=("one", "two"), max_concurrency=3)
    lease.release()


@pytest.mark.req("RT-03")
async def test_the_snapshot_lists_targets_and_limits(registry: Registry) -> None:
    await registry.replace([("cli", agent("b")), ("acp", agent("a", max_concurrency=1))])

    listed = [(a, t, c.max_concurrency) for a, t, c in registry.snapshot.targets()]

    assert listed == [("acp", "a", 1), ("cli", "b", 0)]


@pytest.mark.req("RT-03")
async def test_a_cancelled_question_for_capabilities_leaves_the_old_set(registry: Registry) -> None:
    asked = asyncio.Event()

    class Slow(Agent):
        async def capabilities(self) -> Capabilities:
            asked.set()
            await asyncio.Event().wait()
            return await super().capabilities()

    await registry.replace([("cli", agent("old"))])
    refresh = asyncio.create_task(registry.replace([("cli", Slow(says(), targets=("new",)))]))
    async with asyncio.timeout(PATIENCE_S):
        await asked.wait()

    refresh.cancel()

    with pytest.raises(asyncio.CancelledError):
        await refresh
    assert [target for _, target, _ in registry.snapshot.targets()] == ["old"]


@pytest.mark.req("RT-31", "RT-04")
@pytest.mark.parametrize("target", ["unknown", "Agent", "AGENT", "agent ", " agent", "age", "agents", "cli/agent", "*"])
@pytest.mark.parametrize("adapter", ["cli", ""])
async def test_only_the_exact_target_is_found(registry: Registry, adapter: str, target: str) -> None:
    """A single entry is no default either."""
    await registry.replace([("cli", agent("agent"))])

    with pytest.raises(TargetNotFound, match="is not served here; served: cli/agent") as refusal:
        registry.lease(adapter=adapter, target=target)

    assert dict(refusal.value.failure.metadata) == {"adapter": adapter, "target": target}


@pytest.mark.req("RT-31")
@pytest.mark.parametrize("adapter", ["CLI", "cl", "scripted", "cli "])
async def test_only_the_exact_adapter_is_found(registry: Registry, adapter: str) -> None:
    await registry.replace([("cli", agent("agent"))])

    with pytest.raises(TargetNotFound, match="agent"):
        registry.lease(adapter=adapter, target="agent")


@pytest.mark.req("RT-31")
async def test_an_empty_registry_serves_nothing(registry: Registry) -> None:
    with pytest.raises(TargetNotFound, match="served: nothing"):
        registry.lease(adapter="", target="agent")


@pytest.mark.req("RT-04")
async def test_an_empty_target_is_refused(registry: Registry) -> None:
    await registry.replace([("cli", agent("agent"))])

    with pytest.raises(InvalidRequest, match="target is empty") as refusal:
        registry.lease(adapter="cli", target="")

    assert dict(refusal.value.failure.metadata) == {"field": "target"}


@pytest.mark.req("RT-31")
async def test_a_target_of_two_adapters_needs_the_adapter_named(registry: Registry) -> None:
    one, other = agent("agent"), agent("agent")
    await registry.replace([("cli", one), ("acp", other)])

    with pytest.raises(InvalidRequest, match="served by adapters acp, cli; name one") as refusal:
        registry.lease(adapter="", target="agent")
    lease = registry.lease(adapter="acp", target="agent")

    assert dict(refusal.value.failure.metadata) == {"field": "adapter"}
    assert lease.provider is other
    lease.release()


@pytest.mark.req("RT-30", "RT-32")
async def test_a_target_registered_twice_leaves_the_old_set_in_place(registry: Registry) -> None:
    old = agent("agent")
    before = await registry.replace([("cli", old)])

    with pytest.raises(Conflict, match="'same' is registered twice under adapter 'cli'"):
        await registry.replace([("cli", agent("same")), ("cli", agent("same"))])
    await let_tasks_run()

    assert registry.snapshot is before
    assert old.closed == 0


@pytest.mark.req("RT-32")
async def test_a_lookup_sees_one_set_whole(registry: Registry) -> None:
    """Every set serves its targets from providers of one generation; two lookups in a row never mix two."""
    generations = [(agent("a", max_concurrency=n), agent("b", max_concurrency=n)) for n in range(1, 40)]
    await registry.replace([("cli", provider) for provider in generations[0]])
    seen: set[tuple[int, int]] = set()

    async def look() -> None:
        while registry.snapshot.version < len(generations):
            snapshot = registry.snapshot
            a, b = registry.lease(adapter="cli", target="a"), registry.lease(adapter="", target="b")
            seen.add((a.capabilities.max_concurrency, b.capabilities.max_concurrency))
            assert registry.snapshot is snapshot
            a.release()
            b.release()
            await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(look())
        for pair in generations[1:]:
            await registry.replace([("cli", provider) for provider in pair])
            await asyncio.sleep(0)

    assert all(a == b for a, b in seen)
    assert len(seen) > 10


@pytest.mark.req("NB-13", "RT-30", "RT-32")
async def test_a_run_keeps_its_provider_until_it_lets_go(registry: Registry) -> None:
    """Several generations are alive at once, and each is closed after its own last run."""
    generations = [agent("agent") for _ in range(3)]
    leases = []
    for provider in generations:
        await registry.replace([("cli", provider)])
        leases.append(registry.lease(adapter="cli", target="agent"))
    second = registry.lease(adapter="cli", target="agent")
    await let_tasks_run()
    assert [provider.closed for provider in generations] == [0, 0, 0]

    leases[1].release()
    leases[1].release()
    await let_tasks_run()
    assert [provider.closed for provider in generations] == [0, 1, 0]
    leases[0].release()
    leases[2].release()
    await let_tasks_run()

    assert [lease.provider for lease in leases] == generations
    assert [provider.closed for provider in generations] == [1, 1, 0]
    second.release()


@pytest.mark.req("RT-30", "RT-32")
async def test_a_provider_that_stays_is_not_closed_by_a_refresh(registry: Registry) -> None:
    staying, leaving = agent("a"), agent("b")
    await registry.replace([("cli", staying), ("cli", leaving)])

    await registry.replace([("cli", staying), ("cli", agent("c"))])
    await let_tasks_run()

    assert (staying.closed, leaving.closed) == (0, 1)


@pytest.mark.req("RT-30")
async def test_close_waits_for_the_runs_and_closes_each_provider_once() -> None:
    registry = Registry()
    busy, idle = agent("busy", "busy-too"), agent("idle")
    await registry.replace([("cli", busy), ("cli", idle)])
    lease = registry.lease(adapter="cli", target="busy")

    closing = asyncio.create_task(registry.close())
    await let_tasks_run()
    assert (idle.closed, busy.closed, closing.done()) == (1, 0, False)
    lease.release()
    async with asyncio.timeout(PATIENCE_S):
        await closing

    assert (idle.closed, busy.closed) == (1, 1)


@pytest.mark.req("RT-30")
async def test_nothing_is_looked_up_or_registered_after_close() -> None:
    registry = Registry()
    await registry.replace([("cli", agent("agent"))])
    await registry.close()

    with pytest.raises(RegistryClosed) as refusal:
        registry.lease(adapter="cli", target="agent")
    with pytest.raises(RegistryClosed):
        await registry.replace([("cli", agent("other"))])
    assert refusal.value.failure.code is FailureCode.DRAINING


@pytest.mark.req("RT-30")
async def test_a_provider_that_fails_to_close_does_not_keep_the_others_open() -> None:
    class Stubborn(Agent):
        async def close(self) -> None:
            raise RuntimeError("no")

    registry, other = Registry(), agent("other")
    await registry.replace([("cli", Stubborn(says(), targets=("stubborn",))), ("cli", other)])

    async with asyncio.timeout(PATIENCE_S):
        await registry.close()

    assert other.closed == 1


async def test_a_run_that_never_ends_does_not_keep_its_host_from_leaving() -> None:
    stuck, registry = agent(), Registry()
    await registry.replace([("cli", stuck)])
    registry.lease(adapter="cli", target="agent")

    async with asyncio.timeout(PATIENCE_S):
        await registry.close(within_s=0.01)

    assert stuck.closed == 0
