"""From a profile to the command of one run: argv without the prompt, and the binary it begins with."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

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


def build_command(profile: Profile, *, native_id: str | None, path: str) -> Command:
    """The command of one run of *profile*, with its resume arguments when *native_id* is known.

    Raises:
        CannotStart: the binary is not on *path*, or cannot be executed.
    """
    resuming = native_id is not None and bool(profile.resume_args)
    arguments = profile.args + (profile.resume_args if resuming else ())
    filled = tuple(a.replace(SESSION_PLACEHOLDER, native_id or "") for a in arguments)
    for argument in filled:
        if len(argument.encode()) > ARGUMENT_LIMIT_BYTES:
            raise CannotStart(
                f"an argument of profile {profile.id!r} has {len(argument.encode())} bytes; the system takes {ARGUMENT_LIMIT_BYTES}"
            )
    return Command(
        argv=(find_binary(profile.command[0], path), *profile.command[1:], *filled),
        resumed_id=native_id if resuming else None,
    )


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
