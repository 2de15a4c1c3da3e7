"""What every command that talks to a node has in common: the address, the exit code, and one way to tell an error.

The exit codes are a promise to scripts; ``iop-node --help`` prints this table.

====  ==========================================================================
code  meaning
====  ==========================================================================
0     the run is complete; the command did what it was asked
1     the run ended in error
2     bad usage, or the node refused before it accepted anything
3     the run was cancelled
4     no node answers, or its connection was lost and did not come back
5     the node failed: an internal error, or an answer that makes no sense
130   interrupted by Ctrl-C; a foreground run was cancelled first
141   the reader of our output went away
====  ==========================================================================
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine
from enum import IntEnum
from typing import Annotated, Any, NoReturn, TypeAlias

import typer

from node.client import DEFAULT_ADDRESS, NodeClient, NodeError, NodeUnreachable
from node.commands.output import say, say_error
from runtime.failure import Failure, FailureCode, FailureError

DIAL_S = 3.0  # generous for a handshake, short for a person who waits


class Exit(IntEnum):
    """The exit codes of ``iop-node``."""

    DONE = 0
    RUN_FAILED = 1
    REFUSED = 2
    RUN_CANCELLED = 3
    UNREACHABLE = 4
    NODE_FAILED = 5
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODES = "\n".join(line for line in (__doc__ or "").splitlines() if line[:1].isdigit())
BY_STATE = {"complete": Exit.DONE, "error": Exit.RUN_FAILED, "cancelled": Exit.RUN_CANCELLED}

Work: TypeAlias = Callable[[NodeClient], Awaitable[Exit]]


def check_address(address: str) -> str:
    """Refuse what gRPC would take for a host name and dial on the port of HTTPS."""
    if address.startswith("unix:") or re.fullmatch(r".+:[0-9]{1,5}", address):
        return address
    raise typer.BadParameter(f"{address!r} is no address; use HOST:PORT or unix:/PATH")


Node: TypeAlias = Annotated[
    str,
    typer.Option("--node", envvar="IOP_NODE", metavar="ADDR", callback=check_address, help="HOST:PORT or unix:/PATH"),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="one JSON object per line, for programs")]
RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="the run's id")]
NODE: str = DEFAULT_ADDRESS


def dial(address: str, work: Work, *, as_json: bool = False) -> NoReturn:
    """Do *work* with the node at *address* and end the command as :func:`finish` does."""
    finish(_connected(address, work), address, as_json=as_json)


def finish(command: Coroutine[Any, Any, Exit], address: str, *, as_json: bool = False) -> NoReturn:
    """Run *command* to its end, tell what went wrong, and end the process's command with its exit code."""
    try:
        code = asyncio.run(command)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        code = Exit.BROKEN_PIPE
    except NodeUnreachable as error:
        say_error("unreachable", str(error), as_json=as_json)
        if not as_json:
            say(f"is a node running at {address}? Start one with `iop-node serve`, or name another with --node")
        code = Exit.UNREACHABLE
    except NodeError as error:
        say_error(error.code, str(error), failure=error.failure, as_json=as_json)
        code = _code_of(error.failure)
    except FailureError as error:
        say_error(error.failure.code.value, str(error), failure=error.failure, as_json=as_json)
        code = Exit.REFUSED if error.failure.code is FailureCode.INVALID_REQUEST else Exit.NODE_FAILED
    raise typer.Exit(code)


async def _connected(address: str, work: Work) -> Exit:
    async with NodeClient(address) as client:
        await client.ready(DIAL_S)
        return await work(client)


def _code_of(failure: Failure | None) -> Exit:
    refused = failure is not None and failure.code not in (FailureCode.INTERNAL, FailureCode.UNKNOWN)
    return Exit.REFUSED if refused else Exit.NODE_FAILED
