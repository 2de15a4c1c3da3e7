"""``python -m tests.support.mockllm --port 0``: the scripted model server as a process of its own.

The first line on stdout is ``listening on 127.0.0.1:PORT``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from tests.support.mockllm.server import serving


async def serve(options: argparse.Namespace) -> None:
    scenarios = json.loads(options.scenarios.read_text()) if options.scenarios else None
    async with serving(options.port, scenarios=scenarios, log=options.log, dump=options.dump) as server:
        print(f"listening on {server.url.removeprefix('http://')}", flush=True)
        await asyncio.Event().wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="mockllm", description="A scripted model server on loopback.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="append the request log to this file")
    parser.add_argument("--dump", type=Path, help="keep every request body in this folder")
    parser.add_argument("--scenarios", type=Path, help="a JSON file of further named scenarios")
    try:
        asyncio.run(serve(parser.parse_args()))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
