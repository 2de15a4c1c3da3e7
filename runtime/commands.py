"""Queries to a provider: beside the runs, never in their streams, and without an execution slot."""

from __future__ import annotations

from runtime.failure import Failure, FailureCode, failure_from_exception
from runtime.provider import CommandHandler, CommandRequest, CommandResponse
from runtime.registry import Registry


async def run_command(registry: Registry, request: CommandRequest, *, adapter: str, target: str) -> CommandResponse:
    """Let the provider of exactly this target answer *request*; what it cannot or fails to do is a failure in the answer.

    Raises:
        FailureError: nothing serves the target, or nothing is served any more.
        asyncio.CancelledError: the caller went away or its deadline passed; whatever the command started has ended.
    """
    lease = registry.lease(adapter=adapter, target=target)
    try:
        if not isinstance(lease.provider, CommandHandler):
            return _unsupported(f"target {lease.target!r} takes no commands")
        return await lease.provider.command(request)
    except Exception as error:
        return CommandResponse(failure=failure_from_exception(error))
    finally:
        lease.release()


def _unsupported(message: str) -> CommandResponse:
    return CommandResponse(failure=Failure(code=FailureCode.UNSUPPORTED, message=message))
