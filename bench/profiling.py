"""Where the node's time goes under a flood of 16 runs: ours, gRPC's, the loop's.

py-spy samples the node's main thread from outside where it is installed (it is no dependency; ``pip install py-spy``).
Otherwise the node runs under cProfile, which is only good for an order of magnitude: it makes small functions dear.
"""

from __future__ import annotations

import linecache
import pstats
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.client import ask
from bench.options import Options
from bench.report import Row
from bench.servers import Server, node, place, stop

ROOT = Path(__file__).parent.parent
SECONDS = 8
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>[^:()]+)(?::(?P<line>\d+))?\)")

# A line of ours that calls into C is that library's time: (end of the file's name, what its line has, whose it is).
_CALLS = (
    ("node/run_service.py", "write(", "gRPC: write"),
    ("node/runtime_bridge.py", "SerializeToString", "protobuf"),
    ("node/runtime_bridge.py", "varying.", "protobuf"),
    ("node/runtime_bridge.py", "self._timestamp", "protobuf"),
    ("runtime/journal.py", "os.write", "journal: write"),
    ("runtime/journal.py", "encode_lines", "journal: encode"),
    ("providers/cli/dialects", "_decode_", "decode: msgspec"),
)
_OWNERS = (
    ("grpc/", "gRPC: Python"),
    ("asyncio/events.py", "gRPC: completions, called by the loop"),  # a handle runs C code; Python code has frames
    ("asyncio/", "asyncio"),
    ("selectors.py", "asyncio: select"),
    ("google/", "protobuf"),
)
_OURS = ("node/", "runtime/", "providers/")


def profile(options: Options) -> list[Row]:
    """Shares of the samples by owner, then the places of ours that have most."""
    tool = shutil.which("py-spy", path=f"{Path(sys.executable).parent}:/usr/bin:/usr/local/bin")
    places, samples = _sampled(tool) if tool else _traced(options)
    owners: Counter[str] = Counter()
    for where, count in places.items():
        owners[_owner(where)] += count
    rows = [Row(name=f"by {'py-spy' if tool else 'cProfile'}: samples", value=samples)]
    own = sum(count for name, count in owners.items() if name.startswith("ours"))
    rows.append(Row(name="ours, without what it calls in C", unit="%", value=100 * own / samples))
    rows += [Row(name=name, unit="%", value=100 * count / samples) for name, count in owners.most_common(12)]
    ours = [(where, count) for where, count in places.most_common() if _owner(where).startswith("ours")][:14]
    return [*rows, *(Row(name=f"  {where}", unit="%", value=100 * count / samples) for where, count in ours)]


def _sampled(tool: str) -> tuple[Counter[str], int]:
    with node() as server, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "stacks"
        command = [tool, "record", "--pid", str(server.pid), "--format", "raw", "--rate", "400", "--nonblocking"]
        flood = subprocess.Popen(
            [*command, "--duration", str(SECONDS), "--output", str(output)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        time.sleep(1)
        _flood(server, SECONDS - 1)
        flood.wait(60)
        return _innermost(output.read_text())


def _flood(server: Server, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ask("throughput", server, runs=16, events=3_000, apart=True)


def _innermost(stacks: str) -> tuple[Counter[str], int]:
    """Samples by innermost frame, of the main thread alone: others wait in C for most of their time."""
    places: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if "_run_once" in stack:
            places[frames[-1]] += int(count)
    return places, sum(places.values())


def _traced(options: Options) -> tuple[Counter[str], int]:
    with place() as where, tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "profile"
        server = where.start(prefix=(sys.executable, "-m", "cProfile", "-o", str(output), "-m", "node"))
        _flood(server, 3 if options.quick else SECONDS)
        stop(server)
        places: Counter[str] = Counter()
        for (file, line, function), (_, _, own, _, _) in pstats.Stats(str(output)).stats.items():  # type: ignore[attr-defined]
            if "poll" not in function:
                places[f"{function} ({file}:{line})"] += int(own * 1e6)
        return places, sum(places.values())


def _owner(where: str) -> str:
    found = _FRAME.fullmatch(where)
    if found is None:
        return "other"
    file = found["file"]
    text = linecache.getline(str(ROOT / file), int(found["line"] or 0)) if found["line"] else ""
    for name, call, owner in _CALLS:
        if name in file and call in text:
            return owner
    if file.startswith(_OURS) or str(ROOT) in file:
        return f"ours: {file.removeprefix(str(ROOT)).lstrip('/')}"
    return next((owner for name, owner in _OWNERS if name in file), "other")
