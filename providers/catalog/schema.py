"""The shape of the catalog file, strictly typed: providers, their models, and the profiles that join the two.

A profile is what a caller names as target. Everything a CLI needs to be found, checked and run by a machine is declared
here, and nothing secret: what looks like a credential is refused. The agent catalog shares neither classes nor ids with
any other list of providers or models.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from providers.catalog.values import (
    SESSION_PLACEHOLDER,
    Anything,
    Arguments,
    Capabilities,
    Capability,
    Command,
    Confinement,
    Dialect,
    FormatVersion,
    HomeFile,
    Id,
    Literals,
    Pattern,
    ProbeSeconds,
    Seconds,
    SessionStep,
    Step,
    Text,
    Variable,
    Verb,
    Version,
    check_arguments,
    check_environment,
    check_not_empty,
    check_unique,
    one_of,
)
from providers.cli.statuses import known_statuses


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, regex_engine="python-re")


class _Probe(_Strict):
    args: Literals
    timeout_s: ProbeSeconds = 15.0


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
    timeout_s: ProbeSeconds = 15.0

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

    format: Annotated[Text, AfterValidator(lambda name: one_of("status format", known_statuses(), name))]
    input: tuple[Text, ...] = ()


class WorkspaceExecution(_Strict):
    """Something the CLI would execute or obey because it lies in a workspace, and the arguments that stop it."""

    what: Text
    stop: Arguments = ()


class ProviderStanza(_Strict):
    """One agent CLI: how it is started, what language it speaks, how its state is found out.

    ``mcp`` is the way in which it is told of MCP servers (:mod:`providers.cli.mcp`); without it a run that names some is
    refused.
    """

    id: Id
    command: Command
    dialect: Dialect
    native: tuple[Text, ...] = ()
    slash_is_command: Annotated[bool, Field(strict=True)] = False
    env: Annotated[dict[str, Anything], AfterValidator(check_environment)] = {}
    cancel: Annotated[tuple[Step, ...], AfterValidator(check_not_empty)] = ("term",)
    policy: Annotated[tuple[Text, ...], AfterValidator(check_unique)] = ()
    silence_timeout_s: Seconds | None = None
    capabilities: Capabilities = ()
    inner_sandbox: Literal["own", "none"] = "none"
    mcp: Literal["claude_config", "codex_overrides", "acp"] | None = None
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


class OpeningStanza(_Strict):
    """What a fresh process is told in words, where the CLI has no arguments for it (dialect ``acp``).

    ``authenticate`` is one of the agent's own methods of logging in, ``model`` and ``mode`` its names of them.
    """

    authenticate: Text | None = None
    model: Annotated[Text, AfterValidator(lambda value: check_arguments((value,))[0])] | None = None
    mode: Text | None = None


class ProfileStanza(_Strict):
    """What a caller names: one provider, one of its models, and how the two are run.

    ``mode``: ``oneshot`` is one process a run; ``resumable`` is the same where the later runs of a session must go on with
    its conversation; ``session`` is one process a session, in a dialect that can talk to it. ``output_format`` is the
    dialect, where it is not the provider's, and ``cancel`` the steps of a cancel: ``interrupt`` asks in the dialect, the
    others are signals. ``verbs`` are what can be done to a run beside cancelling it, ``opening`` what a fresh process of
    a session is told before its first turn.
    """

    id: Id
    provider: Id
    model: Id
    mode: Literal["oneshot", "resumable", "session"] = "oneshot"
    output_format: Dialect | None = None
    cancel: Annotated[tuple[SessionStep, ...], Field(min_length=1), AfterValidator(check_unique)] | None = None
    verbs: Annotated[tuple[Verb, ...], AfterValidator(check_unique)] = ()
    opening: OpeningStanza | None = None
    args: Arguments = ()
    resume_args: Arguments = ()
    fork_args: Arguments = ()
    capabilities: Capabilities = ()
    confinement: Confinement | None = None
    max_concurrency: Annotated[int, Field(ge=0, strict=True)] = 0

    @model_validator(mode="after")
    def _is_whole(self) -> ProfileStanza:
        if self.mode == "resumable" and not self.resume_args:
            raise ValueError("mode resumable needs resume_args")
        spoken = {*self.verbs, *(self.cancel or ())} & {"interrupt", "steer"}
        if self.mode != "session" and spoken:
            raise ValueError(f"{min(spoken)} needs mode session: another process cannot be talked to")
        if self.mode == "oneshot" and "queue" in self.verbs:
            raise ValueError("queue needs mode resumable or session: the next run goes on with the conversation")
        if self.fork_args and Capability.FORK not in self.capabilities:
            raise ValueError("fork_args need the capability fork")
        if self.resume_args and Capability.FORK in self.capabilities and not self.fork_args:
            raise ValueError("the capability fork needs fork_args where the CLI resumes by resume_args")
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
