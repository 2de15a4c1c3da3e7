"""The shape of the catalog file, strictly typed: providers, their models, and the profiles that join the two.

A profile is what a caller names as target. Everything a CLI needs to be run unattended by a machine is declared here, and
nothing secret: keys that look like credentials are refused.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

from providers.cli.environment import is_secret_name

Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$", strict=True)]
Text = Annotated[str, StringConstraints(strict=True, min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=86_400, strict=True)]
Step = Literal["int", "term", "hup"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProviderStanza(_Strict):
    """One agent CLI: how it is started and what language it speaks."""

    id: Id
    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    dialect: Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$", strict=True)]
    native: tuple[Text, ...] = ()
    slash_is_command: bool = False
    env: dict[str, str] = {}
    cancel: tuple[Step, ...] = ("term",)
    policy: tuple[Text, ...] = ()
    silence_timeout_s: Seconds | None = None

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if is_secret_name(name):
                raise ValueError(
                    f"{name} looks like a secret; name a source for it in node.yaml (profiles.<id>.secrets)"
                )
        return env


class ModelStanza(_Strict):
    """A model of one provider, under the name the provider's CLI knows."""

    id: Id
    provider: Id
    target: Text


class ProfileStanza(_Strict):
    """What a caller names: one provider, one of its models, and how the two are run."""

    id: Id
    provider: Id
    model: Id
    mode: Literal["oneshot"] = "oneshot"
    args: tuple[str, ...] = ()
    resume_args: tuple[str, ...] = ()
    max_concurrency: Annotated[int, Field(ge=0, strict=True)] = 0


class CatalogFile(_Strict):
    """The whole file, as written."""

    version: Literal[1]
    providers: tuple[ProviderStanza, ...]
    models: tuple[ModelStanza, ...]
    profiles: tuple[ProfileStanza, ...]
