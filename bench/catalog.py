"""The node's configuration for the measurements: targets that are children of ours.

``bench``  the agent of :mod:`bench.agent`, its orders as the prompt
``quick``  prints one short answer from a file and is gone: the cheapest child there is
``still``  prints a number of lines from a file, and stays
``talk``   the demo agent, one process a session
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench import agent

HERE = Path(__file__).parent
AGENT = [sys.executable, "-S", "-E", str(HERE / "agent.py")]
QUICK = ["/bin/sh", "-c", 'exec cat "$0"']
TALK = [str(Path(sys.executable).parent / "iop-demo-agent")]
STILL = ["/bin/sh", "-c", 'cat "$0"; exec sleep 600']


def quick_answer(directory: Path) -> Path:
    """The file that ``quick`` prints."""
    path = directory / "quick.txt"
    path.write_bytes(agent.head() + agent.line("hello") + agent.TAIL.encode())
    return path


def write_config(directory: Path, *, lines: int = 2000) -> Path:
    """``node.yaml`` and its catalog in *directory*; ``still`` prints *lines* lines."""
    still = directory / "still.txt"
    still.write_bytes(agent.head() + agent.line(f"{0:019d} " + "x" * 40) * lines)
    commands = {
        "bench": AGENT,
        "quick": [*QUICK, str(quick_answer(directory))],
        "still": [*STILL, str(still)],
    }
    spoken = ["--input-format", "stream-json"]
    talk = {
        "id": "talk", "provider": "talk", "model": "talk", "mode": "session", "output_format": "claude_session",
        "cancel": ["interrupt", "term"], "args": spoken, "resume_args": [*spoken, "--resume", "{{session}}"],
    }  # fmt: skip
    commands["talk"] = TALK
    catalog = {
        "version": 1,
        "providers": [{"id": k, "command": c, "dialect": "claude_stream_json"} for k, c in commands.items()],
        "models": [{"id": k, "provider": k, "target": k} for k in commands],
        "profiles": [talk if k == "talk" else {"id": k, "provider": k, "model": k} for k in commands],
    }
    (directory / "catalog.yaml").write_text(json.dumps(catalog))  # JSON is YAML
    settings = {"catalog": "catalog.yaml", "limits": {"max_concurrent_runs": 1000}}
    path = directory / "node.yaml"
    path.write_text(json.dumps(settings))
    return path
