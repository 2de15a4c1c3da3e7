"""Measure every peer that is installed, scene by scene, and write ``docs/comparison.md``: ``make compare``."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.compare.measure import SCENARIOS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/comparison.md"
PEER_S = 200

INTRODUCTION = """# Comparison

The same work on this node and on two programs that can be installed and also run agents for callers. It is measured by
`make compare`, which writes this page; nothing on it is written by hand. Every program gets the same agent (a script that
says numbered words), started by its own means, and the same driver (`bench/compare/`) plays the same scenes with it over its
own protocol. Everything happens on one machine over loopback, with no network and no model.

- **sandbox-agent** (npm `@sandbox-agent/cli`): a server that starts coding agents and speaks ACP over HTTP and SSE.
- **a2a-sdk** (PyPI `a2a-sdk[grpc]`): the A2A protocol's own SDK; the agent server is made with it as its documentation shows,
  over gRPC, with its database task store on SQLite.

None of the others claims to be what this node is, so a row in which one does badly is not a bug of it: what it does not
claim is said below the table.
"""


def measure(name: str, python: str, cache: Path, scenario: str) -> dict[str, Any]:
    """The figures of one peer in one scenario, or why there are none."""
    print(f"measuring {scenario} of {name} ...", flush=True)
    command = [python, "-m", "bench.compare.measure", name, str(cache), scenario]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "GRPC_ENABLE_FORK_SUPPORT": "0"}
    try:
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True, timeout=PEER_S)
    except subprocess.SubprocessError as error:
        last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        return {"name": name, "version": "?", "notes": [], scenario: {"failed": " ".join(last)[:100]}}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cell(peer: dict[str, Any], scenario: str, text: str) -> str:
    """*text* filled with the figures of a scenario, or why there are none."""
    figures = peer.get(scenario)
    if not figures or "failed" in figures:
        return f"not measured: {(figures or peer).get('failed', 'no figures')}".replace("|", "/")
    return text.format(**figures)


def got(books: dict[str, Any], count: int) -> str:
    """What a reader got, in a few words."""
    if not books["lost"] and not books["duplicated"] and books["end"] == "complete":
        return "all, once, in order"
    lost = f"lost {books['lost']} of {count}" if books["lost"] else ""
    twice = f"{books['duplicated']} twice" if books["duplicated"] else ""
    end = "" if books["end"] == "complete" else f"end: {books['end'][:80]}"
    return ", ".join(part for part in (lost, twice, end) if part).replace("|", "/").replace("\n", " ")


def rows(peers: list[dict[str, Any]]) -> list[list[str]]:
    """The table, a list of cells for each scene."""

    def books(peer: dict[str, Any], scenario: str, key: str | int | None = None) -> str:
        figures = peer.get(scenario)
        if not figures or "failed" in figures:
            return cell(peer, scenario, "")
        part = figures if key is None else figures["callers"][key] if isinstance(key, int) else figures[key]
        return got(part, figures["words"])

    return [
        ["call → first word, one at a time, p50 (max)", *(cell(p, "first_event", "{p50_ms} ms ({max_ms})") for p in peers)],
        ["one run, as fast as it prints", *(cell(p, "throughput", "{words_per_s} words/s of {words}") for p in peers)],
        ["… and the caller got", *(books(p, "throughput") for p in peers)],
        ["a reader that stops for 4 s gets", *(books(p, "slow_reader", "slow") for p in peers)],
        ["… and one beside it that came in late", *(books(p, "slow_reader", "fast") for p in peers)],
        ["connection dropped and made again from the cursor", *(books(p, "reconnect") for p in peers)],
        ["the same dispatch twice: executed", *(cell(p, "duplicate", "{executed} ×") for p in peers)],
        ["… first caller got", *(books(p, "duplicate", 0) for p in peers)],
        ["… second caller got", *(books(p, "duplicate", 1) for p in peers)],
        ["`kill -9` in mid-answer, started again: caller got", *(books(p, "kill") for p in peers)],
        ["… executed, agents left over", *(cell(p, "kill", "{executed} ×, {agents_left}") for p in peers)],
    ]  # fmt: skip


def page(peers: list[dict[str, Any]]) -> str:
    today = datetime.date.today().isoformat()
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"
    lines = [
        INTRODUCTION,
        f"Measured {today} on {machine}; the machine had other work too, so compare orders of size.",
        "",
    ]
    lines += [
        "| | " + " | ".join(f"{p['name']} {p['version']}" for p in peers) + " |",
        "| --- " * (len(peers) + 1) + "|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in rows(peers)]
    lines += ["", 'Each word is an event of its own. "Twice" counts words that one caller was told again.', ""]
    for peer in peers:
        for note in peer["notes"]:
            lines.append(f"- {peer['name']} {note}.")
        if peer.get("scale", 1) != 1:
            lines.append(
                f"- {peer['name']} was asked for fewer words where the table says so: all of them would take minutes."
            )
    lines += ["", "What the scenes do is written in `bench/compare/measure.py`, one function each.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.compare")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache/compare", help="where the peers are installed")
    cache = parser.parse_args().cache.absolute()
    here, a2a = sys.executable, cache / "a2a/bin/python"
    programs = {
        "iop-node": (here, cache),
        "sandbox-agent": (here, cache / "sandbox-agent/node_modules"),
        "a2a-sdk": (str(a2a), a2a),
    }
    for name in [name for name, (_, place) in programs.items() if not place.exists()]:
        print(f"{name} is not installed under {cache}", file=sys.stderr)
        del programs[name]
    found: dict[str, dict[str, Any]] = {name: {} for name in programs}
    for scenario in SCENARIOS:  # one after the other in each, so that the machine's other work is shared out
        for name, (python, _) in programs.items():
            found[name] |= measure(name, python, cache, scenario.__name__)
    peers = list(found.values())
    PAGE.write_text(page(peers), encoding="utf-8")
    print(page(peers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
