"""From a profile to the command of one run: argv without the prompt, and the binary it begins with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from providers.cli.profile import Profile
from runtime.failure import FailureCode, FailureError

SESSION_PLACEHOLDER = "{{session}}"
ARGUMENT_LIMIT_BYTES = 131_071
"""What Linux takes for one argument."""


class CannotStart(FailureError):
    """The agent could not be started; no process ran."""

    code = FailureCode.PROCESS_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What is executed; ``argv[0]`` is an absolute path."""

    argv: tuple[str, ...]
    resumed_id: str | None = None


def build_command(profile: Profile, *, native_id: str | None, path: str, source_id: str | None = None) -> Command:
    """The command of one run of *profile*: its resume arguments when *native_id* is known, else its first ones.

    A session that has no conversation yet and is a fork of *source_id* begins with the fork arguments.

    Raises:
        CannotStart: the binary is not on *path* or cannot be executed, or an argument is longer than the system takes.
    """
    resuming = native_id is not None and bool(profile.resume_args)
    forking = native_id is None and source_id is not None and bool(profile.fork_args)
    template = profile.resume_args if resuming else profile.fork_args if forking else profile.args
    named = native_id or source_id or ""
    arguments = tuple(argument.replace(SESSION_PLACEHOLDER, named) for argument in template)
    for argument in arguments:
        if (size := len(argument.encode())) > ARGUMENT_LIMIT_BYTES:
            raise CannotStart(
                f"an argument of profile {profile.id!r} has {size} bytes; the limit is {ARGUMENT_LIMIT_BYTES}"
            )
    binary = native_binary(find_binary(profile.command[0], path), profile.native)
    return Command(argv=(binary, *profile.command[1:], *arguments), resumed_id=native_id if resuming else None)


def prompt_text(profile: Profile, text: str) -> str:
    """*text* as the CLI has to be given it so that it stays text: a space before a leading slash."""
    return f" {text}" if profile.slash_is_command and text.startswith("/") else text


def native_binary(found: str, patterns: Sequence[str]) -> str:
    """The vendor's own binary that the launcher *found* would start, or *found* itself.

    A launcher is a second process that forwards no signals and costs a start of its own. *patterns* are globs relative to
    the directory in which the launcher really lies.
    """
    home = Path(os.path.realpath(found)).parent
    for pattern in patterns:
        for candidate in sorted(home.glob(pattern)):
            if candidate.is_file() and os.access(candidate, os.X_OK):
                return os.path.normpath(candidate)
    return found


def find_binary(name: str, path: str) -> str:
    """The absolute path of *name*: itself when absolute, else the first executable file on *path* (relative entries ignored).

    Raises:
        CannotStart: there is none; the message says what was looked for, and where.
    """
    absolute = os.pathsep.join(entry for entry in path.split(os.pathsep) if os.path.isabs(entry))
    if os.path.isabs(name):
        found = name if os.path.isfile(name) and os.access(name, os.X_OK) else None
    else:
        found = shutil.which(name, path=absolute) if os.sep not in name else None
    if found is not None:
        return found
    if os.path.isabs(name) and os.path.isfile(name):
        raise CannotStart(
            f"{name} is not executable; make it so (chmod +x), or correct the profile's command", binary=name
        )
    raise CannotStart(
        f"binary {name!r} was not found; install it, or put its directory on the node's PATH ({absolute})", binary=name
    )
