"""``iop-node doctor``: which agents are ready, and what to type for those that are not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from node.client import NodeClient
from node.commands.dial import Exit, Json, check_address, dial, finish
from node.commands.output import print_json, print_table, say_error
from runtime.failure import NotFound

_LOCAL = "this machine"


def _address(value: str) -> str:
    return check_address(value) if value else ""


def doctor(
    profile: Annotated[list[str] | None, typer.Argument(metavar="[PROFILE]...", help="only these; else all")] = None,
    node: Annotated[
        str,
        typer.Option(
            "--node", metavar="ADDR", callback=_address, help="ask this node; without it, look on this machine"
        ),
    ] = "",
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="the node.yaml to look with, on this machine")
    ] = None,
    json: Json = False,
) -> None:
    """Look which agents are installed, logged in and ready. Executes no prompt."""
    if node:
        dial(node, lambda client: _ask(client, profile or [], json), as_json=json)
    finish(_look(config, profile or [], json), _LOCAL, as_json=json)


async def _ask(client: NodeClient, profiles: list[str], as_json: bool) -> Exit:
    found = await client.probe_readiness(profiles)
    if as_json:
        for one in found:
            print_json(one)
    else:
        from node.smoke import COLUMNS, why  # the host behind it takes its time, which no other command needs

        rows = [
            (one.profile_id, one.readiness, one.version, why(one.detail, one.notices), one.next_step) for one in found
        ]
        print_table(COLUMNS, rows)
    return Exit.DONE


async def _look(config: Path | None, profiles: list[str], as_json: bool) -> Exit:
    from node.config import ConfigError, load_config
    from node.smoke import print_readiness, private_host

    try:
        settings = await asyncio.to_thread(load_config, config)
    except ConfigError as error:
        say_error("config", str(error), as_json=as_json)
        return Exit.REFUSED
    try:
        async with private_host(settings) as host:
            results = await host.agents.discovery.probe(profiles)
    except NotFound as error:
        say_error(error.failure.code.value, str(error), failure=error.failure, as_json=as_json)
        return Exit.REFUSED
    print_readiness(results, as_json=as_json)
    return Exit.DONE
