"""Warm sessions: a later turn beside the same agent driven directly, and what a process that waits costs."""

from __future__ import annotations

import json
import subprocess
import time

from bench.catalog import TALK
from bench.client import ask, percentile
from bench.options import Options
from bench.report import Row
from bench.servers import node

PROMPT = "[[demo text=hi delay_ms=0]]"
SESSIONS = 32  # as many as a node keeps warm


def warm(options: Options) -> list[Row]:
    """A later turn of a session whose process is warm, over the same agent driven directly; and what warm ones cost."""
    tries = 20 if options.quick else 100
    bare = _bare(tries)
    with node() as server:
        found = ask("warm", server, tries=tries, input=PROMPT, sessions=SESSIONS)
    own = percentile(bare, 0.5)
    return [
        Row(name="later turn driven directly, to its first delta, p50", unit="ms", value=own),
        Row(name="the same through the node, over that, p50", unit="ms", value=found["p50_ms"] - own, at_most=20),
        Row(name="the same through the node, over that, p99", unit="ms", value=found["p99_ms"] - own),
        Row(name="private memory beside an idle warm process", unit="MB", value=found["warden_mb"], at_most=1.5),
        Row(name=f"threads more with {SESSIONS} warm sessions", value=found["threads_more"], at_most=0),
    ]


def _bare(tries: int) -> list[float]:
    """Milliseconds from each turn's line to the agent's first delta."""
    process = subprocess.Popen([*TALK, "--input-format", "stream-json"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    frame = {"type": "user", "message": {"role": "user", "content": PROMPT}}
    found = []
    for _ in range(tries + 1):
        began, first = time.monotonic(), 0.0
        process.stdin.write(json.dumps(frame).encode() + b"\n")
        process.stdin.flush()
        for line in process.stdout:
            if not first and b'"content_block_delta"' in line:
                first = time.monotonic() - began
            if line.startswith(b'{"type":"result"'):
                break
        assert first, "the agent said nothing"
        found.append(first * 1e3)
    process.stdin.close()
    process.wait()
    return found[1:]
