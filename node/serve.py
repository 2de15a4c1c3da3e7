"""``iop-node serve``: one node, in the foreground, until SIGTERM or SIGINT. Nothing heavy is imported for it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from node.config import ConfigError, NodeConfig, load_config
from runtime.failure import FailureError

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop. Exit codes: 0 stopped, 1 could not start, 2 wrong usage or configuration."""
    arguments = _parser().parse_args(argv)
    logging.basicConfig(
        level=arguments.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr
    )
    try:
        config = load_config(arguments.config, listen=arguments.listen, data_dir=arguments.data_dir)
    except ConfigError as error:
        return _refuse(str(error), EXIT_USAGE)
    if sys.platform != "linux":
        return _refuse("iop-node serves on Linux only; use a Linux machine, or WSL2", EXIT_FAILED)
    return asyncio.run(_serve(config))


async def _serve(config: NodeConfig) -> int:
    from node.host import open_host
    from node.server import CannotListen, serving

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        async with open_host(config) as host, serving(host) as address:
            print(f"iop-node {host.node_id} listening on {address}", flush=True)
            await stop.wait()
    except (CannotListen, FailureError) as error:
        return _refuse(str(error), EXIT_FAILED)
    return EXIT_OK


def _refuse(sentence: str, code: int) -> int:
    print(f"iop-node: {sentence}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="iop-node serve", description="Serve agent runs to edge servers over gRPC.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="node.yaml; all of it is optional")
    parser.add_argument("--listen", default="", metavar="ADDR", help="HOST:PORT or unix:PATH (default 127.0.0.1:50400)")
    parser.add_argument(
        "--data-dir", default="", metavar="DIR", help="where runs are kept (default ~/.local/state/iop-node)"
    )
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser
