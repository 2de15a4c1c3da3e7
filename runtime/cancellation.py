"""Waits that a cancel must not tear: work that is finished all the same, and the first of several ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end and return its result; a cancel that arrives meanwhile is raised afterwards.

    Shielding alone is not enough: the caller would go on while the work still runs. *work* bounds itself.
    """
    task = asyncio.ensure_future(work)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                break
            interrupted = error
        except Exception:
            break  # task.result() raises it below
    if interrupted is not None:
        if not task.cancelled() and task.exception() is not None:
            raise interrupted from task.exception()
        raise interrupted
    return task.result()


async def first_of(*waits: Coroutine[Any, Any, object], within_s: float | None = None) -> None:
    """Wait until one of *waits* is over, or *within_s* is; the others are cancelled, also when this call is."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
