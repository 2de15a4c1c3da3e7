"""``python -m bench [PART ...] [--quick]``: measure, print rows beside their targets, keep them under bench/results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable

from bench.micro import micro
from bench.options import Options
from bench.profiling import profile
from bench.real_cli import real_cli
from bench.report import Row, show, store
from bench.returning import attach, recovery
from bench.starting import cancel, idle, start
from bench.streaming import latency, throughput
from bench.warm import warm

PARTS: dict[str, Callable[[Options], list[Row]]] = {
    each.__name__: each for each in (throughput, latency, start, warm, attach, recovery, cancel, idle, micro, profile)
} | {"real-cli": real_cli}
_ONLY_WHEN_NAMED = ("profile", "real-cli")


def main() -> int:
    """Exit codes: 0 measured, whether targets are met or not; 2 wrong usage."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended on this way out, too
    arguments = _parser().parse_args()
    options = Options(
        runs=tuple(arguments.runs), events=arguments.events or (500 if arguments.quick else Options().events),
        rounds=arguments.rounds or (2 if arguments.quick else Options().rounds), quick=arguments.quick,
    )  # fmt: skip
    chosen = [part for part in PARTS if part not in _ONLY_WHEN_NAMED] if "all" in arguments.parts else arguments.parts
    found: dict[str, list[Row]] = {}
    for part in chosen:
        began, load = time.monotonic(), os.getloadavg()[0]
        found[part] = PARTS[part](options)
        print(f"{part}: {PARTS[part].__doc__}  [{time.monotonic() - began:.0f} s, load {load:.1f} before]")
        show(found[part])
    print(f"kept in {store(found)}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description="The product beside its floor, in one run.")
    parser.add_argument(
        "parts", nargs="*", choices=[*PARTS, "all"], default="all", help="default: all but profile and real-cli"
    )
    parser.add_argument("--runs", type=int, nargs="+", default=list(Options().runs), help="runs at once (throughput)")
    parser.add_argument("--events", type=int, help="events of each run (throughput)")
    parser.add_argument("--rounds", type=int, help="pairs (throughput)")
    parser.add_argument("--quick", action="store_true", help="everything small: within a minute, and rough")
    return parser


if __name__ == "__main__":
    sys.exit(main())
