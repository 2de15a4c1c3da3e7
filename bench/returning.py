"""Coming back: a client to a long run, and a node to the runs it left."""

from __future__ import annotations

import os
import signal

from bench import proc
from bench.client import ask
from bench.options import Options
from bench.report import Row
from bench.servers import Place, Server, cancel_all, kill, node, place, stop

LONG = 100_000


def attach(options: Options) -> list[Row]:
    """Attach at the end of 100,000 events: while the run lives, after a restart, after its end."""
    tries = 20 if options.quick else 60
    rows = []

    def look(server: Server, when: str) -> None:
        found = ask("attach", server, run_id="long-0", tries=tries)
        for key in ("first", "p50", "max"):
            name = f"attach at the end of {int(found['last']):,}, {when}, {key}"
            rows.append(Row(name=name, unit="ms", value=found[f"{key}_ms"], at_most=10))

    with place() as where:
        with_run = where.start()
        orders = f'{{"events":{LONG},"hold_s":300}}'
        ask("fill", with_run, name="long", target="bench", runs=1, input=orders, events=LONG)
        look(with_run, "live")
        stop(with_run)
        with node(where) as server:
            look(server, "after a restart")
            cancel_all(server)
            look(server, "ended")
    return rows


def recovery(options: Options) -> list[Row]:
    """A node is killed; three of four agents end meanwhile; the next node takes all of them up."""
    runs, lines = (40, 2000) if options.quick else (200, 2000)
    with place(lines=lines) as where:
        seconds = _recovered_s(where, runs, lines)
    return [
        Row(name=f"recovery of {runs} runs x {lines:,} lines to SERVING", unit="s", value=seconds, at_most=3.0),
        Row(name="the same, a line", unit="us", value=seconds / runs / lines * 1e6),
    ]


def _recovered_s(where: Place, runs: int, lines: int) -> float:
    first = where.start()
    ask("fill", first, name="still", target="still", runs=runs, input="", events=lines)
    wardens = proc.children(first.keeper)
    kill(first)
    for warden in wardens[: runs * 3 // 4]:
        for agent in proc.children(warden):
            os.kill(agent, signal.SIGKILL)
    with node(where) as server:
        return server.started_s
