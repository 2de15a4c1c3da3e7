"""What a run may spend: how a caller says it, how turns are counted, and how a run ends that passes it."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.budget import Budget, TurnCount, parse_budget
from runtime.emitter import Emitter, execute
from runtime.events import Draft, RuntimeEvent, ToolCall, ToolResult, Usage, activity, complete, delta, reasoning_delta
from runtime.failure import InvalidRequest
from runtime.provider import EventSink, RunContext, StopReason
from runtime.resolve import parse_policy
from runtime.types import Capabilities, ExecutionSpec, RunRequest

SPEC = ExecutionSpec(run_id="r1", adapter="scripted", target="agent")


def say(message_id: str) -> Draft:
    return delta("x", message_id=message_id)


def think(message_id: str) -> Draft:
    return reasoning_delta("x", message_id=message_id)


CALL, RESULT = activity(ToolCall(call_id="c", name="Bash")), activity(ToolResult(call_id="c"))


def test_a_budget_is_read_from_the_policy() -> None:
    told = {"iop": {"budget": {"turns": 3.0, "tokens": 100, "cost_usd": 0.5}}}

    budget = parse_policy(RunRequest(target="t", policy=told).policy).budget

    assert budget == Budget(turns=3, tokens=100, cost_usd=0.5)
    assert (type(budget.turns), parse_policy({}).budget, parse_budget({})) == (int, Budget(), Budget())


@pytest.mark.parametrize(
    ("told", "field", "said"),
    [
        (3, "", "must be an object, found int"),
        ({"words": 3}, ".words", "is unknown; known: turns, tokens, cost_usd"),
        ({"turns": 2.5}, ".turns", "is 2.5; give a positive whole number, or leave it out"),
        *(
            ({name: value}, f".{name}", "give a positive")
            for name in ("turns", "tokens", "cost_usd")
            for value in (0, -1, "3", True, None, float("inf"), [1])
        ),
    ],
)
def test_a_budget_that_is_none_is_named(told: Any, field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refusal:
        parse_policy(RunRequest(target="t", policy={"iop": {"budget": told}}).policy)

    assert refusal.value.failure.metadata["field"] == f"policy.iop.budget{field}"


@pytest.mark.parametrize(
    ("drafts", "turns"),
    [
        ([], 0),
        ([say("a"), say("a")], 1),
        ([say("a"), say("b")], 2),
        ([say("a"), CALL, CALL, RESULT, RESULT, say("b")], 2),
        ([CALL, RESULT, CALL, RESULT], 2),
        ([think("t1"), say("m1"), CALL, RESULT, think("t2"), CALL, RESULT, say("m3")], 3),
        ([think("t1"), think("t2")], 0),
    ],
    ids=str,
)
def test_turns_are_the_messages_of_the_agent(drafts: list[Draft], turns: int) -> None:
    count = TurnCount()
    for draft in drafts:
        count.take(draft)

    assert count.turns == turns


def test_a_bound_may_be_reached_and_not_passed() -> None:
    budget = Budget(turns=2, tokens=10, cost_usd=0.1)

    assert not budget.passed_by_turns(2)
    assert not budget.passed_by(Usage(input_tokens=4, output_tokens=6, cache_read_tokens=99, cost_usd=0.1))
    assert not budget.passed_by(Usage())
    assert budget.passed_by_turns(3) == "the agent's reported turns (3) passed the run's budget of 2"
    assert "tokens (11)" in budget.passed_by(Usage(input_tokens=4, output_tokens=7))
    assert "cost_usd (0.2)" in budget.passed_by(Usage(cost_usd=0.2))


class Talker:
    """Says *drafts* in turn, unless it is told to stop."""

    def __init__(self, *drafts: Draft) -> None:
        self.drafts = drafts

    async def capabilities(self) -> Capabilities:
        return Capabilities(targets=("agent",))

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        for draft in self.drafts:
            if ctx.stop is None:
                await sink.emit([draft])
        await sink.emit([complete("done", usage=Usage(input_tokens=5))])

    async def close(self) -> None: ...


class Kept:
    def __init__(self) -> None:
        self.events: list[RuntimeEvent] = []

    async def write(self, events: Any) -> None:
        self.events.extend(events)


async def executed(budget: Budget, *drafts: Draft, ctx: RunContext | None = None) -> tuple[RunContext, RuntimeEvent]:
    ctx, kept = ctx or RunContext(budget=budget), Kept()
    await execute(Talker(*drafts), ctx, SPEC, Emitter(ctx, SPEC, kept))
    return ctx, kept.events[-1]


async def test_a_run_that_passes_its_turns_is_told_to_stop_and_ends_as_spent() -> None:
    ctx, last = await executed(Budget(turns=1), say("a"), CALL, RESULT, say("b"), say("c"))

    assert ctx.stop is not None and ctx.stop.reason is StopReason.BUDGET
    assert last.failure is not None and last.failure.code == "budget_exhausted"
    assert (last.error, last.usage) == (ctx.stop.message, Usage(input_tokens=5))


async def test_a_run_within_its_turns_completes() -> None:
    _, last = await executed(Budget(turns=2), say("a"), CALL, RESULT, say("b"))

    assert last.message == "done"
