"""``iop-node serve``: one node, in the foreground, until SIGTERM or SIGINT. Nothing heavy is imported for it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from node.config import ConfigError, NodeConfig
from node.host import Host, open_host
from node.reload import ConfigSource
from node.server import CannotListen, serving
from runtime.cancellation import first_of
from runtime.failure import FailureError

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


class RecoveryFailed(Exception):
    """What an earlier node left cannot be taken up; the text says why."""


class LineFormatter(logging.Formatter):
    """A line a record, with what its ``extra`` holds behind the message: ``ended run_id=r1 state=complete``."""

    _PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}

    def formatMessage(self, record: logging.LogRecord) -> str:  # the name is logging's
        facts = (f"{key}={value}" for key, value in record.__dict__.items() if key not in self._PLAIN)
        return " ".join([super().formatMessage(record), *facts])


def without_departures(record: logging.LogRecord) -> bool:
    """A caller that has its terminal may leave before the status is out; gRPC tells that as an error with a traceback."""
    if record.exc_info and type(record.exc_info[1]).__name__ == "ExecuteBatchError":
        record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
    return True


def main(argv: Sequence[str]) -> int:
    """Serve until told to stop. Exit codes: 0 stopped, 1 could not start, 2 wrong usage or configuration."""
    arguments = _parser().parse_args(argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=arguments.log_level.upper(), handlers=[handler])
    logging.getLogger("grpc._cython.cygrpc").addFilter(without_departures)
    source = ConfigSource(path=arguments.config, listen=arguments.listen, data_dir=arguments.data_dir)
    try:
        config = source.load()
    except ConfigError as error:
        return _refuse(str(error), EXIT_USAGE)
    if sys.platform != "linux":
        return _refuse("iop-node serves on Linux only; use a Linux machine, or WSL2", EXIT_FAILED)
    if os.getpid() == 1 and not arguments.as_pid_1:
        return _refuse("as process 1 of a container use iop-node supervise, which reaps; or say --as-pid-1", EXIT_USAGE)
    return asyncio.run(_serve(config, source))


async def _serve(config: NodeConfig, source: ConfigSource) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, signals.put_nowait, number)
    try:
        async with open_host(config, source=source) as host, serving(host) as address:
            print(f"iop-node {host.node_id} listening on {address}", flush=True)
            await _while_recovered(host, _until_told(host, signals))
            await _leave(host, signals)
    except (CannotListen, RecoveryFailed, FailureError) as error:
        return _refuse(str(error), EXIT_FAILED)
    return EXIT_OK


async def _while_recovered(host: Host, work: Coroutine[Any, Any, None]) -> None:
    """Do *work*, unless earlier runs cannot be taken up: a node that would never serve is better ended, and started anew."""
    task = asyncio.create_task(work)
    try:
        await asyncio.wait({task, host.recovery}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and (error := host.recovery.exception()) is not None:
            raise RecoveryFailed(f"earlier runs cannot be taken up: {error}") from error
        await task
    finally:
        task.cancel()


async def _until_told(host: Host, signals: asyncio.Queue[signal.Signals]) -> None:
    """Serve until SIGTERM or SIGINT; SIGHUP reloads the configuration."""
    while await signals.get() == signal.SIGHUP:
        try:
            generation = await host.reloader.reload()
            log.info("configuration reloaded", extra={"generation": generation})
        except FailureError as error:
            log.error("configuration not reloaded: %s", error)
        except Exception:  # whatever a reload stumbles over, what is in service stays in service
            log.exception("configuration not reloaded")


async def _leave(host: Host, signals: asyncio.Queue[signal.Signals]) -> None:
    """Take no new runs, and give the others time to end; a second signal to stop cancels them.

    Calls are answered meanwhile. What is running after that is left to the next node process.
    """
    host.runs.drain()
    told_again = asyncio.Event()
    await first_of(_tell_stop(signals, told_again), host.runs.idle(), within_s=host.reloader.config.drain_s)
    if told_again.is_set():
        await host.runs.cancel_all("the node was told twice to stop")


async def _tell_stop(signals: asyncio.Queue[signal.Signals], told: asyncio.Event) -> None:
    while await signals.get() == signal.SIGHUP:
        log.warning("configuration not reloaded: the node is leaving")
    told.set()


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
    parser.add_argument("--as-pid-1", action="store_true", help="serve even as process 1, which has to reap")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser
