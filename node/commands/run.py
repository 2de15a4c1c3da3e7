"""``iop-node run``: dispatch a run and stream it."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated

import typer

from node.client import NodeClient, NodeError, new_run_id
from node.commands.dial import BY_STATE, NODE, Exit, Json, Node, dial
from node.commands.output import say
from node.commands.printers import HumanPrinter, JsonPrinter, Printer
from runtime.events import TERMINAL
from runtime.types import RunRequest, SessionMode

_CANCEL_S = 5.0  # somebody has pressed Ctrl-C and waits


def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT|-", help="what to do; - reads it from standard input")],
    target: Annotated[str, typer.Option("--target", metavar="PROFILE", help="who does it: a profile of the node")],
    node: Node = NODE,
    session: Annotated[str, typer.Option("--session", metavar="ID", help="go on in this session, or begin it")] = "",
    require_existing: Annotated[bool, typer.Option("--require-existing", help="never begin a session")] = False,
    fork: Annotated[
        str, typer.Option("--fork", metavar="ID", help="begin a session with what was said in this one")
    ] = "",
    background: Annotated[bool, typer.Option("--background", help="let it go on when nobody watches")] = False,
    activity: Annotated[bool, typer.Option("--activity", help="also show tool calls, plans, notices")] = False,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="the run's deadline")] = None,
    workspace: Annotated[str, typer.Option("--workspace", metavar="DIR", help="where the agent works")] = "",
    run_id: Annotated[str, typer.Option("--run-id", metavar="ID", help="the same id and request is one run")] = "",
    json: Json = False,
) -> None:
    """Dispatch a run and stream it to its end. Ctrl-C cancels it; with --background it only stops watching."""
    if require_existing and not session:
        raise typer.BadParameter("--require-existing needs --session: which one has to exist?")
    if require_existing and fork:
        raise typer.BadParameter("--fork makes a session, and --require-existing forbids it: leave one of them out")
    request = RunRequest(
        run_id=run_id or new_run_id(),
        target=target,
        session_id=session,
        session_mode=SessionMode.FORK if fork else _mode(session, require_existing),
        fork_from=fork,
        background=background,
        workspace=os.path.abspath(workspace) if workspace else "",
        input=_prompt(prompt),
        timeout=_timeout(timeout),
    )

    async def work(client: NodeClient) -> Exit:
        return await _run(client, request, activity, JsonPrinter() if json else HumanPrinter())

    dial(node, work, as_json=json)


async def _run(client: NodeClient, request: RunRequest, activity: bool, printer: Printer) -> Exit:
    try:
        async with aclosing(client.run(request, include_activity=activity)) as events:
            async for event in events:
                printer.show(event)
                if event.type in TERMINAL:
                    return BY_STATE[event.type.value]
    except asyncio.CancelledError:
        await _interrupted(client, request)
        raise
    return Exit.NODE_FAILED


async def _interrupted(client: NodeClient, request: RunRequest) -> None:
    if request.background:
        say(f"\nthe run goes on: iop-node attach {request.run_id}", style="yellow")
        return
    try:
        async with asyncio.timeout(_CANCEL_S):
            await client.cancel(request.run_id, reason="interrupted at the terminal")
    except (NodeError, TimeoutError) as error:
        say(f"\nthe cancel did not arrive ({error}); the node cancels a run that nobody watches", style="yellow")
    else:
        say(f"\ncancelled {request.run_id}", style="yellow")


def _mode(session: str, require_existing: bool) -> SessionMode | None:
    if not session:
        return None
    return SessionMode.REQUIRE_EXISTING if require_existing else SessionMode.CREATE_IF_MISSING


def _prompt(argument: str) -> str:
    if argument != "-":
        return argument
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"standard input is not UTF-8 at byte {error.start}") from None


def _timeout(seconds: float | None) -> timedelta | None:
    try:
        return None if seconds is None else timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        raise typer.BadParameter(f"--timeout of {seconds} s is not a time") from None
