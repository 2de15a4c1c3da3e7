"""``iop-node config check``: is the configuration right, before a node is started with it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.commands.dial import Exit
from node.commands.output import say, say_error

app = typer.Typer(no_args_is_help=True, help="Look at the node's configuration.")


@app.callback()
def config() -> None:
    """Look at the node's configuration."""


@app.command()
def check(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="node.yaml; without it, the defaults are checked")
    ] = None,
) -> None:
    """Check the configuration and say the first thing that is wrong with it. Exit 2 if something is."""
    from node.config import ConfigError, load_config  # pydantic takes its time, which no other command needs

    try:
        load_config(config)
    except ConfigError as error:
        say_error("config", str(error))
        raise typer.Exit(Exit.REFUSED) from None
    say(f"{config or 'the default configuration'} is valid")
