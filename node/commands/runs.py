"""``iop-node attach | cancel | respond | ps | show``: the runs that a node has or had."""

from __future__ import annotations

import sys
from contextlib import aclosing
from datetime import datetime
from json import loads
from typing import Annotated, Any, Literal

import typer

from node.client import NodeClient
from node.commands.dial import BY_STATE, NODE, Exit, Json, Node, RunId, dial
from node.commands.output import print_facts, print_json, print_table, say
from node.commands.printers import HumanPrinter, JsonPrinter, activity_line
from node.wire_views import RunDetails, RunView
from runtime.events import TERMINAL, RuntimeEvent


def attach(
    run_id: RunId,
    after: Annotated[int, typer.Option("--after", metavar="N", help="only events after this sequence")] = 0,
    activity: Annotated[bool, typer.Option("--activity", help="also show tool calls, plans, notices")] = False,
    node: Node = NODE,
    json: Json = False,
) -> None:
    """Stream a run's events, live or finished. Ctrl-C stops watching."""

    async def work(client: NodeClient) -> Exit:
        printer = JsonPrinter() if json else HumanPrinter()
        async with aclosing(client.attach(run_id, after, include_activity=activity)) as events:
            async for event in events:
                printer.show(event)
                if event.type in TERMINAL:
                    return BY_STATE[event.type.value]
        return BY_STATE.get((await client.get(run_id)).run.state, Exit.NODE_FAILED)

    dial(node, work, as_json=json)


def cancel(
    run_id: RunId,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="for the record")] = "",
    node: Node = NODE,
    json: Json = False,
) -> None:
    """End a run as cancelled; its session stays usable."""

    async def work(client: NodeClient) -> Exit:
        receipt = await client.cancel(run_id, reason=reason)
        if json:
            print_json(receipt)
        else:
            say(f"cancelled {run_id}" if receipt.accepted else f"{run_id} had ended before: {receipt.state}")
        return Exit.DONE

    dial(node, work, as_json=json)


def respond(
    run: RunId,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="the id in the permission_request")],
    decision: Annotated[Literal["allow", "deny"], typer.Argument(help="what the agent is told")],
    node: Node = NODE,
    message: Annotated[str, typer.Option("--message", metavar="TEXT", help="a word to the agent")] = "",
    answer: Annotated[str, typer.Option("--answer", metavar="JSON", help="what a question is answered with")] = "",
    json: Json = False,
) -> None:
    """Answer an agent that asks for leave to use a tool, or a question. Exit 2 when it was answered, or asks no more."""
    content = _object_in(answer) if answer else None

    async def work(client: NodeClient) -> Exit:
        await client.respond(run, request, allow=decision == "allow", message=message, answer=content)
        print_json({"run_id": run, "request_id": request, "decision": decision}) if json else say(
            f"{request}: {decision}"
        )
        return Exit.DONE

    dial(node, work, as_json=json)


def _object_in(answer: str) -> dict[str, Any]:
    try:
        found = loads(answer)
    except ValueError as error:
        raise typer.BadParameter(f"--answer is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise typer.BadParameter(f"--answer is {answer[:40]}; give a JSON object with a member for each thing asked")
    return found


def ps(
    all_: Annotated[bool, typer.Option("--all", help="finished runs too")] = False,
    node: Node = NODE,
    json: Json = False,
) -> None:
    """List runs, newest first."""

    async def work(client: NodeClient) -> Exit:
        async with aclosing(client.list(active_only=not all_)) as found:
            if json:
                async for run in found:
                    print_json(run)
            else:
                columns = ("RUN", "STATE", "TARGET", "SESSION", "ACCEPTED", "TOOK")
                print_table(columns, [_row(run) async for run in found])
        return Exit.DONE

    dial(node, work, as_json=json)


def show(
    run_id: RunId,
    stderr: Annotated[bool, typer.Option("--stderr", help="what the agent wrote to standard error")] = False,
    raw: Annotated[bool, typer.Option("--raw", help="what it wrote to standard output, undecoded")] = False,
    answer: Annotated[bool, typer.Option("--answer", help="its final answer")] = False,
    events: Annotated[bool, typer.Option("--events", help="the events so far, one a line")] = False,
    node: Node = NODE,
    json: Json = False,
) -> None:
    """Explain a run: why did it fail?"""
    wanted = [name for name, asked in (("stderr", stderr), ("raw", raw), ("answer", answer)) if asked]
    if len(wanted) + events > 1:
        raise typer.BadParameter("choose one of --stderr, --raw, --answer, --events")

    async def work(client: NodeClient) -> Exit:
        if wanted:
            await _copy_artifact(client, run_id, wanted[0])
        elif events:
            await _list_events(client, run_id, json)
        else:
            details = await client.get(run_id)
            print_json(details) if json else print_facts(_facts(details))
        return Exit.DONE

    dial(node, work, as_json=json)


async def _copy_artifact(client: NodeClient, run_id: str, name: str) -> None:
    async with aclosing(client.artifact(run_id, name)) as pieces:
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
    sys.stdout.buffer.flush()


async def _list_events(client: NodeClient, run_id: str, as_json: bool) -> None:
    """What there is now: a run that goes on is not waited for."""
    last = (await client.get(run_id)).run.last_sequence
    if last == 0:
        return
    printer = JsonPrinter()
    async with aclosing(client.attach(run_id, include_activity=True)) as events:
        async for event in events:
            printer.show(event) if as_json else print_facts({f"{event.sequence:>6} {event.type:<15}": _gist(event)})
            if event.sequence >= last:
                return


def _gist(event: RuntimeEvent) -> str:
    if event.activity is not None:
        return activity_line(event.activity)
    return repr((event.delta or event.error or event.message)[:200]).strip("'\"")


def _row(run: RunView) -> tuple[str, ...]:
    code = f" ({run.failure.code.value})" if run.failure else ""
    took = _took(run.accepted_at, run.ended_at)
    accepted = f"{run.accepted_at:%Y-%m-%d %H:%M:%SZ}" if run.accepted_at else ""
    waiting = f" (next {run.queue_position})" if run.queue_position else ""
    return run.run_id, run.state + code + waiting, run.target, run.session_id, accepted, took


def _took(began: datetime | None, ended: datetime | None) -> str:
    return f"{(ended - began).total_seconds():.1f} s" if began and ended else ""


def _facts(details: RunDetails) -> dict[str, str]:
    """The cause first, then what the node knows about it, the bulky parts last."""
    run = details.run
    facts = {"run": run.run_id, "state": run.state}
    if run.failure is not None:
        advice = " (trying again may help)" if run.failure.retryable else ""
        facts["cause"] = f"{run.failure.code.value}: {run.failure.message}{advice}"
        facts.update({f"cause.{key}": value for key, value in sorted(run.failure.metadata.items())})
    facts |= {"target": f"{run.target} ({run.adapter})", "session": run.session_id, "workspace": run.workspace}
    facts["accepted"] = run.accepted_at.isoformat() if run.accepted_at else ""
    facts["ended"] = run.ended_at.isoformat() if run.ended_at else ""
    facts["took"] = _took(run.accepted_at, run.ended_at)
    facts["events"] = f"{run.first_sequence} to {run.last_sequence}"
    facts["shares workspace with"] = ", ".join(run.workspace_shared_with)
    facts["place in the queue"] = str(run.queue_position or "")
    facts["waits for an answer to"] = ", ".join(run.open_requests)
    facts["background"] = "yes" if run.background else ""
    facts["recovered"] = "yes" if run.recovered else ""
    facts.update(sorted(details.details.items(), key=lambda item: ("\n" in item[1], item[0])))
    return {name: value for name, value in facts.items() if value}
