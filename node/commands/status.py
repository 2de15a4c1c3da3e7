"""``iop-node status | capabilities``: the node itself."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from node.client import NodeClient, NodeError
from node.commands.dial import DIAL_S, NODE, Exit, Json, Node, dial, finish
from node.commands.output import print_facts, print_json, print_table, say, say_error
from node.wire_views import NodeStatusView, TargetView

_POLL_S = 0.1
_EACH_S = 1.0


def status(
    node: Node = NODE,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", min=0, help="wait this long until the node serves")
    ] = 0,
    json: Json = False,
) -> None:
    """Show the node's state. With --wait, exit 4 unless it serves in time."""
    finish(_status(node, wait, json), node, as_json=json)


async def _status(address: str, wait_s: float, as_json: bool) -> Exit:
    if wait_s and not await _serves_within(address, wait_s):
        say_error("unreachable", f"no node serves at {address} after {wait_s:g} s", as_json=as_json)
        return Exit.UNREACHABLE
    async with NodeClient(address) as client:
        await client.ready(DIAL_S)
        view = await client.status()
    print_json(view) if as_json else print_facts(_facts(view))
    return Exit.DONE


async def _serves_within(address: str, wait_s: float) -> bool:
    """Ask until the node says yes. A new connection each time: the node may not even listen yet."""
    ends_at = time.monotonic() + wait_s
    while True:
        try:
            async with NodeClient(address) as client:
                await client.ready(min(_EACH_S, wait_s))
                if await client.is_serving():
                    return True
        except NodeError as error:
            if not error.is_broken:
                raise
        if time.monotonic() >= ends_at:
            return False
        await asyncio.sleep(_POLL_S)


def capabilities(node: Node = NODE, json: Json = False) -> None:
    """List what the node can run, and its limits."""

    async def work(client: NodeClient) -> Exit:
        view = await client.capabilities()
        if json:
            print_json(view)
        else:
            rows = [(t.target, t.adapter, str(t.max_concurrency or "node's limit"), _verbs(t)) for t in view.targets]
            print_table(("TARGET", "ADAPTER", "AT ONCE", "CAN"), rows)
            print_facts({f"limit {name}": f"{limit:,}" for name, limit in sorted(view.limits.items())})
        return Exit.DONE

    dial(node, work, as_json=json)


def _verbs(target: TargetView) -> str:
    return ", ".join([*target.verbs, *(["fork"] if target.forks else [])])


def drain(node: Node = NODE, json: Json = False) -> None:
    """Have the node take no new runs. Those that are accepted go on; a restart undoes it."""

    async def work(client: NodeClient) -> Exit:
        left = await client.drain()
        print_json({"draining": True, "active_runs": left}) if json else say(f"draining; {left} runs are left")
        return Exit.DONE

    dial(node, work, as_json=json)


def reload(node: Node = NODE, json: Json = False) -> None:
    """Have the node read its configuration again. Exit 2 when it is refused; the one before stays in service."""

    async def work(client: NodeClient) -> Exit:
        generation = await client.reload()
        print_json({"generation": generation}) if json else say(f"generation {generation} is in service")
        return Exit.DONE

    dial(node, work, as_json=json)


def _facts(view: NodeStatusView) -> dict[str, str]:
    facts = {
        "node": view.node_id,
        "version": view.version,
        "started": view.started_at.isoformat() if view.started_at else "",
        "recovery": "complete" if view.recovery_complete else "going on",
        "draining": "yes" if view.draining else "",
        "active runs": str(view.active_runs),
        "queued runs": str(view.queued_runs or ""),
        "attached readers": str(view.attached_readers),
        "configuration": f"generation {view.config_generation}",
        "keeper": f"pid {view.keeper_pid}" if view.keeper_pid else "none",
    }
    facts |= {f"limit {name}": f"{limit:,}" for name, limit in sorted(view.limits.items())}
    facts |= {f"note {number}": note for number, note in enumerate(view.notes, 1)}
    return {name: value for name, value in facts.items() if value}
