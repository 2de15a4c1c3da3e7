"""``iop-provider-smoke``: are the catalog's profiles ready on this machine, with this user and this environment?

It opens a host of its own, without gRPC, in a private directory that is removed again. Nothing is executed unless
``--execute`` says so; then one prompt goes to one profile, the way a run over the wire would go. What a CLI printed is never
shown, only what was concluded from it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from node.commands.output import one_line, print_json, print_table
from node.config import ConfigError, NodeConfig, load_config
from node.host import Host, open_host
from providers.catalog.readiness import ReadinessResult
from runtime.events import RuntimeEvent
from runtime.failure import FailureError
from runtime.states import is_success, outcome_of
from runtime.types import RunRequest

EXIT_READY, EXIT_NOT_READY, EXIT_USAGE = 0, 1, 2
COLUMNS = ("PROFILE", "READINESS", "VERSION", "WHY", "NEXT")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 all requested profiles are ready (and the execution completed), 1 not, 2 wrong usage or configuration."""
    arguments = _parser().parse_args(argv)
    if arguments.execute is not None and len(arguments.profile) != 1:
        return _refuse("--execute needs exactly one --profile: a prompt is one account's money")
    try:
        return asyncio.run(_smoke(load_config(arguments.config), arguments))
    except (ConfigError, FailureError) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130


@asynccontextmanager
async def private_host(config: NodeConfig) -> AsyncIterator[Host]:
    """A host for the moment: the profiles of *config*, and a data directory that nobody else has and nobody will miss."""
    # a keeper that is just leaving may still be looking at its directory
    with tempfile.TemporaryDirectory(prefix="iop-node-", ignore_cleanup_errors=True) as root:
        runtime = replace(config.runtime, data_dir=Path(root) / "data")
        async with open_host(replace(config, runtime=runtime)) as host:
            yield host


async def _smoke(config: NodeConfig, arguments: argparse.Namespace) -> int:
    async with private_host(config) as host:
        results = await host.agents.discovery.probe(arguments.profile)
        print_readiness(results, as_json=arguments.json)
        if not all(result.is_ready for result in results):
            return EXIT_NOT_READY
        if arguments.execute is None:
            return EXIT_READY
        return await _execute(host, results[0].profile_id, arguments.execute, as_json=arguments.json)


def print_readiness(results: Sequence[ReadinessResult], *, as_json: bool) -> None:
    """One line per profile: a table for people, an object for programs."""
    if as_json:
        for result in results:
            print_json(result)
    else:
        rows = [(r.profile_id, r.readiness, r.version, why(r.detail, r.notices), r.next_step) for r in results]
        print_table(COLUMNS, rows)


def why(detail: str, notices: Sequence[str]) -> str:
    """The reason, or what is worth knowing, as one line."""
    return one_line("; ".join(filter(None, (detail, *notices))))


async def _execute(host: Host, profile_id: str, prompt: str, *, as_json: bool) -> int:
    reader = await host.runs.dispatch(RunRequest(target=profile_id, input=prompt))
    last: RuntimeEvent | None = None
    with reader:
        while events := await reader.read():
            last = events[-1]
    if last is None:
        raise RuntimeError("a run ended without an event")
    code = last.failure.code if last.failure is not None else ""
    if as_json:
        print_json(
            {"profile_id": profile_id, "run": last.type.value, "failure": code, "answer_chars": len(last.message)}
        )
    else:
        print(f"{profile_id}: run {last.type.value}" + (f" ({code})" if code else f", {len(last.message)} characters"))
    return EXIT_READY if is_success(outcome_of(last.type)) else EXIT_NOT_READY


def _refuse(sentence: str) -> int:
    print(f"iop-provider-smoke: {sentence}", file=sys.stderr)
    return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="iop-provider-smoke", description="Look whether the agents of the catalog are ready. Executes nothing."
    )
    parser.add_argument("--profile", metavar="ID", nargs="+", action="extend", default=[], help="only these profiles")
    parser.add_argument("--execute", metavar="PROMPT", help="also execute PROMPT once, on exactly one ready profile")
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for programs")
    parser.add_argument("--config", type=Path, metavar="FILE", help="node.yaml; all of it is optional")
    return parser


if __name__ == "__main__":
    sys.exit(main())
