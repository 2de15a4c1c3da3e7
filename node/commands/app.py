"""The commands of ``iop-node`` that talk to a node; ``iop-node serve``, which is one, is not among them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from node.commands import config, doctor, gc, run, runs, sessions, status, verbs
from node.commands.dial import EXIT_CODES

_EPILOG = (
    "`iop-node serve` starts a node, `iop-node supervise` does in a container, `iop-node login PROFILE` logs an agent in.\n\n"
    "\b\nExit codes:\n" + EXIT_CODES
)


def build() -> typer.Typer:
    """The command line, assembled."""
    app = typer.Typer(
        help="Dispatch coding-agent runs to a node, and look after them.",
        epilog=_EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (
        run.run,
        runs.attach,
        runs.cancel,
        runs.respond,
        verbs.interrupt,
        verbs.steer,
        verbs.queue,
        runs.ps,
        runs.show,
        status.status,
        status.capabilities,
        status.drain,
        status.reload,
        doctor.doctor,
        gc.gc,
    ):
        app.command()(command)
    app.add_typer(config.app, name="config")
    app.add_typer(sessions.app, name="sessions")
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is that of the table in :mod:`node.commands.dial`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an agent may say what this terminal cannot show
    try:
        build()(args=None if argv is None else list(argv), prog_name="iop-node")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
