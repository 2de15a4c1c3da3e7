"""The shape of the catalog file, strictly typed: providers, their models, and the profiles that join the two.

A profile is what a caller names as target. Everything a CLI needs to be found, checked and run by a machine is declared
here, and nothing secret: what looks like a credential is refused. The agent catalog shares neither classes nor ids with
any other list of providers or models.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from providers.catalog.patterns import check_pattern
from providers.cli.dialects import known_dialects
from providers.cli.environment import is_secret_name
from providers.cli.statuses import known_statuses

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
    QUOTA = "quota"
    """Tells how much of the account's allowance is used."""


def _check_arguments(arguments: tuple[str, ...]) -> tuple[str, ...]:
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
    for argument in _check_arguments(arguments):
        if found := _ANY_PLACEHOLDER.search(argument):
            raise ValueError(f"placeholder {found[0]!r} is not filled in a probe")
    return arguments


def _check_not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("is empty; at least one is needed")
    return values


def _check_command(command: tuple[str, ...]) -> tuple[str, ...]:
    program = _check_not_empty(command)[0]
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


def _check_environment(env: dict[str, str]) -> dict[str, str]:
    for name in env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"{name!r} is no name of a variable")
        if is_secret_name(name):
            raise ValueError(f"{name} looks like a secret; name a source for it in node.yaml (profiles.<id>.secrets)")
    return env


def _check_unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if repeated := sorted({value for value in values if values.count(value) > 1}):
        raise ValueError(f"{str(repeated[0])!r} stands there twice")
    return values


def _check_format(version: int) -> int:
    if version != 1:
        raise ValueError(f"version {version} is not supported; this build reads version 1")
    return version


def _one_of(kind: str, known: list[str], name: str) -> str:
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
Arguments = Annotated[tuple[Anything, ...], AfterValidator(_check_arguments)]
Literals = Annotated[tuple[Anything, ...], AfterValidator(_check_literal)]
Command = Annotated[tuple[Text, ...], AfterValidator(_check_command), BeforeValidator(_as_list)]
Version = Annotated[str, StringConstraints(pattern=r"^\d{1,9}(\.\d{1,9}){1,3}$", strict=True)]
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", strict=True)]
HomeFile = Annotated[str, StringConstraints(pattern=r"^(?!/)(?!.*\.\.)[^\0]+$", strict=True)]
Capabilities = Annotated[tuple[Capability, ...], AfterValidator(_check_unique)]
Dialect = Annotated[Text, AfterValidator(lambda name: _one_of("output format", known_dialects(), name))]
FormatVersion = Annotated[int, Field(strict=True), AfterValidator(_check_format)]
Confinement = Literal["bwrap", "landlock", "own"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="python-re")


class _Probe(_Strict):
    args: Literals
    timeout_s: ProbeSeconds = 10.0


class VersionProbe(_Probe):
    """Prints the CLI's version. Older than ``min`` is not ready; newer than ``tested`` runs, with a notice."""

    min: Version | None = None
    tested: Version | None = None


class AuthProbe(_Strict):
    """How it is known that the CLI is logged in, without a call to its vendor.

    ``args`` are run and their output compared: ``unauthenticated`` first, then ``ready`` together with exit 0. Where the CLI
    has no such command, ``files`` (below HOME) stand for a login: one of them must exist. ``secrets`` are variables that the
    CLI takes in place of a login; one that the operator has configured settles it. ``required: false``: no login exists.
    """

    required: Annotated[bool, Field(strict=True)] = True
    args: Literals | None = None
    ready: Pattern | None = None
    unauthenticated: Pattern | None = None
    files: tuple[HomeFile, ...] = ()
    secrets: tuple[Variable, ...] = ()
    timeout_s: ProbeSeconds = 10.0

    @model_validator(mode="after")
    def _decides(self) -> AuthProbe:
        if not self.required:
            if self.args is not None or self.files or self.secrets:
                raise ValueError("a login that is not required is not probed either")
        elif self.args is not None and (self.ready is None or self.files):
            raise ValueError("args need the pattern ready, and stand instead of files")
        elif self.args is None and not self.files and not self.secrets:
            raise ValueError("give args and ready, or files, or secrets, or required: false")
        elif self.args is None and (self.ready is not None or self.unauthenticated is not None):
            raise ValueError("patterns need args")
        return self


class ModelProbe(_Probe):
    """Lists the models the CLI can use, one a line; a profile's target must equal a whole line.

    ``strip: bullet`` removes a list mark from the beginning of each line; with ``until_blank`` the list ends at the first
    empty line, and what follows is no model.
    """

    strip: Literal["bullet"] | None = None
    until_blank: Annotated[bool, Field(strict=True)] = False


class StatusProbe(_Probe):
    """Asks the CLI for its usage and quota: ``input`` lines go to its stdin, ``format`` reads the answer."""

    format: Annotated[Text, AfterValidator(lambda name: _one_of("status format", known_statuses(), name))]
    input: tuple[Text, ...] = ()


class WorkspaceExecution(_Strict):
    """Something the CLI would execute or obey because it lies in a workspace, and the arguments that stop it."""

    what: Text
    stop: Arguments = ()


class ProviderStanza(_Strict):
    """One agent CLI: how it is started, what language it speaks, how its state is found out."""

    id: Id
    command: Command
    dialect: Dialect
    native: tuple[Text, ...] = ()
    slash_is_command: Annotated[bool, Field(strict=True)] = False
    env: Annotated[dict[str, Anything], AfterValidator(_check_environment)] = {}
    cancel: Annotated[tuple[Step, ...], AfterValidator(_check_not_empty)] = ("term",)
    policy: Annotated[tuple[Text, ...], AfterValidator(_check_unique)] = ()
    silence_timeout_s: Seconds | None = None
    capabilities: Capabilities = ()
    inner_sandbox: Literal["own", "none"] = "none"
    login: Literals | None = None
    install: Text | None = None
    login_files: tuple[HomeFile, ...] = ()
    workspace_executes: tuple[WorkspaceExecution, ...] = ()
    version: VersionProbe | None = None
    auth: AuthProbe | None = None
    models: ModelProbe | None = None
    status: StatusProbe | None = None


class ModelStanza(_Strict):
    """A model of one provider, under the name the provider's CLI knows."""

    id: Id
    provider: Id
    target: Annotated[str, StringConstraints(pattern=r"^\S(.*\S)?$", strict=True)]


class ProfileStanza(_Strict):
    """What a caller names: one provider, one of its models, and how the two are run.

    ``mode``: ``oneshot`` is one process a run; ``resumable`` is the same where the later runs of a session must go on with
    its conversation; ``session`` is one process a session, in a dialect that can talk to it. ``output_format`` is the
    dialect, where it is not the provider's, and ``cancel`` the steps of a cancel: ``interrupt`` asks in the dialect, the
    others are signals. ``verbs`` are what can be done to a run beside cancelling it.
    """

    id: Id
    provider: Id
    model: Id
    mode: Literal["oneshot", "resumable", "session"] = "oneshot"
    output_format: Dialect | None = None
    cancel: Annotated[tuple[SessionStep, ...], Field(min_length=1), AfterValidator(_check_unique)] | None = None
    verbs: Annotated[tuple[Verb, ...], AfterValidator(_check_unique)] = ()
    args: Arguments = ()
    resume_args: Arguments = ()
    capabilities: Capabilities = ()
    confinement: Confinement | None = None
    max_concurrency: Annotated[int, Field(ge=0, strict=True)] = 0

    @model_validator(mode="after")
    def _is_whole(self) -> ProfileStanza:
        if self.mode == "resumable" and not self.resume_args:
            raise ValueError("mode resumable needs resume_args")
        if self.mode != "session" and (self.verbs or "interrupt" in (self.cancel or ())):
            raise ValueError(
                "verbs and the cancel step interrupt need mode session: another process cannot be talked to"
            )
        if any(SESSION_PLACEHOLDER in argument for argument in self.args):
            raise ValueError(f"{SESSION_PLACEHOLDER} is not known in args; it belongs into resume_args")
        if (Capability.WRITABLE_ROOT_CONFINEMENT in self.capabilities) != (self.confinement is not None):
            raise ValueError("writable_root_confinement and the mechanism in confinement go together")
        return self


class CatalogFile(_Strict):
    """The whole file, as written."""

    version: FormatVersion
    providers: tuple[ProviderStanza, ...]
    models: tuple[ModelStanza, ...]
    profiles: tuple[ProfileStanza, ...]
