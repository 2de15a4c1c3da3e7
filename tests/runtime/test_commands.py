"""Commands go to exactly one provider and come back with an answer, whatever the provider does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runtime.commands import run_command
from runtime.events import complete
from runtime.failure import Failure, FailureCode, FailureError, InvalidRequest, TargetNotFound
from runtime.provider import CommandRequest, CommandResponse, EventSink, RunContext
from runtime.registry import Registry
from runtime.types import Capabilities, ExecutionSpec

STATUS = CommandRequest(name="status")


class Silent:
    """A provider without commands."""

    def __init__(self, target: str = "t") -> None:
        self._target = target

    async def capabilities(self) -> Capabilities:
        return Capabilities(targets=(self._target,))

    async def execute(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        await sink.emit([complete("")])

    async def close(self) -> None: ...


class Answering(Silent):
    """A provider whose answer a test chooses."""

    def __init__(self, answer: Callable[[CommandRequest], CommandResponse], target: str = "t") -> None:
        super().__init__(target)
        self._answer = answer

    async def command(self, request: CommandRequest) -> CommandResponse:
        return self._answer(request)


async def ask(provider: Silent, request: CommandRequest = STATUS, *, target: str = "t") -> CommandResponse:
    registry = Registry()
    await registry.replace([("cli", provider)])
    try:
        return await run_command(registry, request, adapter="", target=target)
    finally:
        assert all(entry.leases == 0 for entry in registry.snapshot.entries.values())


def failing(error: Exception) -> Callable[[CommandRequest], CommandResponse]:
    def answer(request: CommandRequest) -> CommandResponse:
        raise error

    return answer


@pytest.mark.req("RT-25")
async def test_a_command_and_its_answer_pass_unchanged() -> None:
    request = CommandRequest(name="status", arguments={"deep": [1, None]})
    given = CommandResponse(metadata={"a": "b"})
    seen = []

    answer = await ask(Answering(lambda asked: seen.append(asked) or given), request)  # type: ignore[func-returns-value]  # append gives None

    assert (seen, answer) == ([request], given)


@pytest.mark.req("RT-25")
async def test_a_provider_without_commands_is_told_as_unsupported() -> None:
    answer = await ask(Silent())

    assert answer.failure == Failure(code=FailureCode.UNSUPPORTED, message="target 't' takes no commands")


@pytest.mark.req("RT-25", "FAIL-08")
@pytest.mark.parametrize(
    ("error", "code"),
    [(InvalidRequest("no"), FailureCode.INVALID_REQUEST), (ValueError("sk-canary0123456789"), FailureCode.INTERNAL)],
)
async def test_a_handler_that_raises_is_a_failed_answer(error: Exception, code: FailureCode) -> None:
    answer = await ask(Answering(failing(error)))

    assert answer.failure is not None
    assert (answer.failure.code, "canary" in answer.failure.message) == (code, False)


@pytest.mark.req("RT-25", "BAN-13", "RT-31")
@pytest.mark.parametrize("target", ["T", "t ", "unknown"])
async def test_an_unknown_target_is_refused_and_not_replaced(target: str) -> None:
    with pytest.raises(TargetNotFound):
        await ask(Answering(lambda _: CommandResponse()), target=target)


@pytest.mark.req("RT-25")
async def test_a_cancelled_command_lets_go_of_its_provider() -> None:
    class Hanging(Silent):
        async def command(self, request: CommandRequest) -> CommandResponse:
            await asyncio.Event().wait()
            raise AssertionError

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ask(Hanging())


def test_the_errors_of_commands_are_failures() -> None:
    assert issubclass(TargetNotFound, FailureError)
