"""``iop-node sessions``: the logical sessions of a node, what was said in them, and their end."""

from __future__ import annotations

from typing import Annotated

import typer

from node.client import NodeClient
from node.commands.dial import NODE, Exit, Json, Node, dial
from node.commands.output import print_json, print_table, say, write
from node.session_views import TranscriptEntry

app = typer.Typer(no_args_is_help=True, help="Look at logical sessions, and end them.")
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="the session's id")]


@app.command("list")
def list_sessions(node: Node = NODE, json: Json = False) -> None:
    """List the sessions, the last used first."""

    async def work(client: NodeClient) -> Exit:
        found = [session async for session in client.sessions()]
        if json:
            for session in found:
                print_json(session)
        else:
            rows = [(s.session_id, s.state, s.target, s.used_at.isoformat(timespec="seconds"), s.run_id) for s in found]
            print_table(("SESSION", "STATE", "TARGET", "USED", "ACTIVE RUN"), rows)
        return Exit.DONE

    dial(node, work, as_json=json)


@app.command()
def transcript(session: SessionId, node: Node = NODE, json: Json = False) -> None:
    """Print what was said in a session, as far as its runs are still held."""

    async def work(client: NodeClient) -> Exit:
        async for entry in client.transcript(session):
            print_json(entry) if json else write(_shown(entry))
        return Exit.DONE

    dial(node, work, as_json=json)


@app.command()
def terminate(
    session: SessionId,
    node: Node = NODE,
    cancel_active: Annotated[bool, typer.Option("--cancel-active", help="cancel a run that is active on it")] = False,
    json: Json = False,
) -> None:
    """End a session: no run goes on with it. A session with an active run is refused without --cancel-active."""

    async def work(client: NodeClient) -> Exit:
        ended = await client.terminate_session(session, cancel_active=cancel_active)
        print_json(ended) if json else say(f"{ended.session_id} {ended.state}")
        return Exit.DONE

    dial(node, work, as_json=json)


def _shown(entry: TranscriptEntry) -> str:
    who = f"{entry.role} {entry.tool}".strip()
    return f"[{entry.time.isoformat(timespec='seconds')}] {who}: {entry.text}\n"
