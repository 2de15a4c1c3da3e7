"""``iop-node gc``: let go of what the configuration does not keep, or only say what that is.

A running node does this by itself every ten minutes; the command is for a data directory that no node is using.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.commands.dial import Exit
from node.commands.output import print_json, say, say_error
from runtime.failure import FailureError

if TYPE_CHECKING:
    from node.config import NodeConfig
    from runtime.retention import Swept


def gc(
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="node.yaml")] = None,
    data_dir: Annotated[str, typer.Option("--data-dir", metavar="DIR", help="instead of the configured one")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="change nothing")] = False,
    json: Annotated[bool, typer.Option("--json", help="one JSON object")] = False,
) -> None:
    """Remove ended runs beyond what is kept. Exit 2 when a node is using the data directory."""
    from node.config import ConfigError, load_config  # pydantic takes its time, which no other command needs

    try:
        swept = asyncio.run(_sweep(load_config(config, data_dir=data_dir), dry_run=dry_run))
    except ConfigError as error:
        say_error("config", str(error), as_json=json)
        raise typer.Exit(Exit.REFUSED) from None
    except FailureError as error:
        say_error(error.failure.code.value, str(error), failure=error.failure, as_json=json)
        raise typer.Exit(Exit.REFUSED) from None
    facts = {"dry_run": dry_run, "runs": [run.run_id for run in swept.runs], "bytes": swept.bytes}
    if json:
        print_json(facts)
    else:
        say(f"{'would remove' if dry_run else 'removed'} {len(swept.runs)} runs, {swept.bytes / 1e6:.1f} MB")


async def _sweep(config: NodeConfig, *, dry_run: bool) -> Swept:
    from node.host import unlock_outputs
    from runtime.index import open_index
    from runtime.records import unended
    from runtime.registry import Registry
    from runtime.retention import sweep
    from runtime.runs import open_runs
    from runtime.storage import open_storage

    with open_storage(config.runtime.data_dir, unlock=unlock_outputs) as storage:
        async with open_index(storage.root) as index, open_runs(config.runtime, storage, index, Registry()) as runs:
            for record in await index.run(unended):  # their agents may be running, in the directories of their sessions
                runs.sessions.reclaim(record.principal, record.session_id, record.ulid, has_begun=True)
            return await sweep(runs, now_ns=time.time_ns(), dry_run=dry_run)
