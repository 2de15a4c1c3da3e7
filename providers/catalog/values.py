"""The values a catalog is made of, each with the check that makes it one; a message says what is wrong and how to mend it."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from providers.catalog.patterns import check_pattern
from providers.cli.dialects import known_dialects
from providers.cli.environment import is_secret_name

MODEL_PLACEHOLDER, SESSION_PLACEHOLDER = "{{model}}", "{{session}}"
PROBE_TIMEOUT_CAP_S = 60.0
_PLACEHOLDERS = (MODEL_PLACEHOLDER, SESSION_PLACEHOLDER)
_ANY_PLACEHOLDER = re.compile(r"\{\{.*?\}\}")
_SECRET_FLAG = re.compile(r"--?([A-Za-z][A-Za-z0-9-]*)(?:=(.*))?", re.DOTALL)


class Capability(StrEnum):
    """What a profile may do; a closed set. A profile has only what its provider supports too."""

    UNATTENDED = "unattended"
    """Runs without anybody to ask."""
    APPROVAL_BYPASS = "approval_bypass"
    """Does not ask for permission; whoever lets it run confines it."""
    WRITABLE_ROOT_CONFINEMENT = "writable_root_confinement"
    """Its process can be kept from writing outside of given directories; the profile names by what (``confinement``)."""
    RESUME = "resume"
    """Goes on with an earlier conversation."""
    FORK = "fork"
    """Begins a conversation with what was said in another one."""
    QUOTA = "quota"
    """Tells how much of the account's allowance is used."""


def check_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Placeholders somebody fills, and no credential after a flag that takes one."""
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=False):
        for found in _ANY_PLACEHOLDER.findall(argument):
            if found not in _PLACEHOLDERS:
                raise ValueError(f"placeholder {found!r} is unknown; known: {', '.join(_PLACEHOLDERS)}")
        flag = _SECRET_FLAG.fullmatch(argument)
        if flag and is_secret_name(flag[1].replace("-", "_")):
            value = flag[2] if flag[2] is not None else "" if following.startswith("-") else following
            if value:
                raise ValueError(f"{argument.partition('=')[0]} brings a credential; name its source in node.yaml")
    return arguments


def _check_literal(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments of a probe: nothing in them is filled."""
    for argument in check_arguments(arguments):
        if found := _ANY_PLACEHOLDER.search(argument):
            raise ValueError(f"placeholder {found[0]!r} is not filled in a probe")
    return arguments


def check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("is empty; at least one is needed")
    return values


def _check_command(command: tuple[str, ...]) -> tuple[str, ...]:
    program = check_not_empty(command)[0]
    if os.sep in program and not os.path.isabs(program):
        raise ValueError(f"{program!r} is relative to nowhere; give a name to be found on PATH, or an absolute path")
    return command


def _as_list(command: object) -> object:
    """One word is a command too; a line of words would need a shell, and none is ever used."""
    if isinstance(command, str):
        if any(character.isspace() for character in command):
            raise ValueError("a command of several words is written as a list: [program, argument]")
        return (command,)
    return command


def check_environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a variable")
        if is_secret_name(name):
            raise ValueError(f"{name} looks like a secret; name a source for it in node.yaml (profiles.<id>.secrets)")
    return env


def check_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := sorted({value for value in values if values.count(value) > 1}):
        raise ValueError(f"{str(repeated[0])!r} stands there twice")
    return values


def _check_format(version: int) -> int:
    if version != 1:
        raise ValueError(f"version {version} is not supported; this build reads version 1")
    return version


def one_of(kind: str, known: list[str], name: str) -> str:
    if name not in known:
        raise ValueError(f"{kind} {name!r} is unknown; known: {', '.join(known)}")
    return name


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", strict=True)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]
Anything = Annotated[str, StringConstraints(strict=True)]
Seconds = Annotated[float, Field(gt=0, le=86_400, strict=True)]
ProbeSeconds = Annotated[float, Field(gt=0, le=PROBE_TIMEOUT_CAP_S, strict=True)]
Step = Literal["int", "term", "hup"]
SessionStep = Literal["interrupt", "int", "term", "hup"]
Verb = Literal["interrupt", "queue", "steer"]
Pattern = Annotated[Text, AfterValidator(check_pattern)]
Arguments = Annotated[tuple[Anything, ...], AfterValidator(check_arguments)]
Literals = Annotated[tuple[Anything, ...], AfterValidator(_check_literal)]
Command = Annotated[tuple[Text, ...], AfterValidator(_check_command), BeforeValidator(_as_list)]
Version = Annotated[str, StringConstraints(pattern=r"^\d{1,9}(\.\d{1,9}){1,3}$", strict=True)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", strict=True)]
HomeFile = Annotated[str, StringConstraints(pattern=r"^(?!/)(?!.*\.\.)[^\0]+$", strict=True)]
Capabilities = Annotated[tuple[Capability, ...], AfterValidator(check_unique)]
Dialect = Annotated[Text, AfterValidator(lambda name: one_of("output format", known_dialects(), name))]
FormatVersion = Annotated[int, Field(strict=True), AfterValidator(_check_format)]
Confinement = Literal["bwrap", "landlock", "own"]
