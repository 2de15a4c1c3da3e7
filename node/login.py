"""``iop-node login PROFILE``: the vendor's own login, on this terminal, for exactly the account a run would use.

The login takes this process's place: same user, and the environment a child of the node gets, so that what is stored is
what a run will find. It is the one program that no warden starts, because only here does somebody sit at a terminal.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from node.config import ConfigError, load_config
from providers.catalog.agents import load_selection
from providers.catalog.login import child_environment
from providers.cli.command import find_binary, native_binary
from providers.cli.environment import resolve_secrets
from runtime.failure import FailureError, NotFound

EXIT_USAGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginCommand:
    """What is executed; ``argv[0]`` is an absolute path."""

    argv: tuple[str, ...]
    env: dict[str, str]


def main(argv: Sequence[str]) -> int:
    """Become the vendor's login, whose exit code is then this command's; 2 when there is none to become."""
    arguments = _parser().parse_args(argv)
    try:
        _become(login_command(arguments.profile, config=arguments.config, inherited=dict(os.environ)))
    except (ConfigError, FailureError) as error:
        print(f"iop-node login: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_USAGE


def _become(command: LoginCommand) -> NoReturn:
    sys.stdout.flush()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and the program would inherit that
    os.execve(command.argv[0], command.argv, command.env)


def login_command(profile_id: str, *, config: Path | None, inherited: dict[str, str]) -> LoginCommand:
    """The login of *profile_id* as its catalog declares it.

    Raises:
        ConfigError, FailureError: no such profile, none declared, not installed, or the settings are wrong.
    """
    settings = load_config(config)
    selection = load_selection(settings.catalog, settings.profiles)
    if profile_id not in selection.profiles:
        raise NotFound(f"profile {profile_id!r} is not in the agent catalog; it has {', '.join(selection.profiles)}")
    profile = selection.profiles[profile_id]
    provider = next(one for one in selection.catalog.providers if one.id == profile.provider_id)
    if provider.login is None:
        raise NotFound(f"provider {provider.id!r} has no login of its own; `iop-node doctor` says what to do")
    environment = child_environment(profile, inherited)
    binary = native_binary(find_binary(profile.command[0], environment["PATH"]), profile.native)
    environment |= resolve_secrets(profile.secrets, inherited)
    return LoginCommand(argv=(binary, *profile.command[1:], *provider.login), env=environment)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="iop-node login", description="Log an agent in, as the node would run it.")
    parser.add_argument("profile", metavar="PROFILE", help="a profile of the catalog")
    parser.add_argument("--config", type=Path, metavar="FILE", help="node.yaml; all of it is optional")
    return parser
