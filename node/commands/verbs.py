"""``iop-node interrupt | steer | queue``: a word to a turn under way, or behind it."""

from __future__ import annotations

from typing import Annotated

import typer

from node.client import NodeClient
from node.commands.dial import NODE, Exit, Json, Node, RunId, dial
from node.commands.output import print_json, say, write
from runtime.provider import InputOutcome, InputVerb

Text = Annotated[str, typer.Argument(metavar="TEXT", help="what to say")]
_OUTCOMES = {
    InputOutcome.CONFIRMED: "done",
    InputOutcome.NOT_CONFIRMED: "not confirmed, and the run goes on",
    InputOutcome.TOO_LATE: "too late",
}


def interrupt(run_id: RunId, node: Node = NODE, json: Json = False) -> None:
    """Ask an agent to end its turn; never by force, as `cancel` would. Exit 2 when it was not confirmed."""
    _send(run_id, InputVerb.INTERRUPT, "", node, json)


def steer(run_id: RunId, text: Text, node: Node = NODE, json: Json = False) -> None:
    """Say more to a turn under way. Exit 2 when the agent did not take it."""
    _send(run_id, InputVerb.STEER, text, node, json)


def queue(run_id: RunId, text: Text, node: Node = NODE, json: Json = False) -> None:
    """Make the session's next run, to begin when this one has ended; prints its id. Exit 2 when this one has."""
    _send(run_id, InputVerb.QUEUE, text, node, json)


def _send(run_id: str, verb: InputVerb, text: str, node: str, json: bool) -> None:
    async def work(client: NodeClient) -> Exit:
        receipt = await client.send_input(run_id, verb, text)
        if json:
            print_json(receipt)
        elif receipt.run_id:  # what was asked for, so that it can be attached to
            write(f"{receipt.run_id}\n")
        else:
            say(f"{verb} {run_id}: {_OUTCOMES[receipt.outcome]}{f' ({receipt.message})' if receipt.message else ''}")
        return Exit.DONE if receipt.outcome is InputOutcome.CONFIRMED else Exit.REFUSED

    dial(node, work, as_json=json)
