"""From the catalog and the operator's settings to the profiles and providers of a node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from providers.catalog.loader import CatalogInvalid
from providers.catalog.schema import CatalogFile, OpeningStanza, ProfileStanza, ProviderStanza
from providers.catalog.values import MODEL_PLACEHOLDER, Capability
from providers.cli.dialects import load_dialect
from providers.cli.environment import SecretSource
from providers.cli.mcp import McpServer
from providers.cli.profile import Profile
from providers.cli.provider import CliProvider, Machinery
from runtime.provider import CommandHandler
from runtime.types import PermissionRules

NO_SERVERS: Mapping[str, McpServer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSettings:
    """What the operator says of one profile in ``node.yaml``."""

    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretSource] = field(default_factory=dict)
    default_workspace: str = ""
    silence_timeout_s: float | None = None
    max_concurrency: int | None = None
    permissions: PermissionRules = field(default_factory=PermissionRules)


def build_profile(
    catalog: CatalogFile,
    profile_id: str,
    settings: ProfileSettings,
    mcp_servers: Mapping[str, McpServer] = NO_SERVERS,
) -> Profile:
    """The profile *profile_id* of *catalog*, model filled in, with the operator's settings; the catalog is not changed.

    Raises:
        CatalogInvalid: there is no such profile; nothing is put in its place.
    """
    stanza = next((p for p in catalog.profiles if p.id == profile_id), None)
    if stanza is None:
        known = ", ".join(p.id for p in catalog.profiles)
        raise CatalogInvalid(f"profile {profile_id!r} is not in the agent catalog; it has {known}")
    provider = next(p for p in catalog.providers if p.id == stanza.provider)
    model = next(m for m in catalog.models if m.id == stanza.model)
    return Profile(
        id=stanza.id, provider_id=provider.id, model_id=model.id, command=provider.command,
        dialect=stanza.output_format or provider.dialect, native=provider.native, slash_is_command=provider.slash_is_command,
        args=_fill(stanza.args, model.target), resume_args=_fill(stanza.resume_args, model.target),
        fork_args=_fill(stanza.fork_args, model.target), forks=Capability.FORK in stanza.capabilities,
        env={**provider.env, **settings.env}, secrets=settings.secrets,
        cancel=stanza.cancel or provider.cancel, mode=stanza.mode, verbs=frozenset(stanza.verbs),
        opening=_filled_opening(stanza.opening, model.target),
        mcp=_mcp_way(provider, stanza), mcp_servers=mcp_servers, policy_keys=frozenset(provider.policy),
        permissions=settings.permissions, login_files=tuple(map(str, provider.login_files)),
        max_concurrency=stanza.max_concurrency if settings.max_concurrency is None else settings.max_concurrency,
        default_workspace=settings.default_workspace,
        silence_timeout_s=settings.silence_timeout_s or provider.silence_timeout_s,
    )  # fmt: skip


def build_profiles(
    catalog: CatalogFile,
    settings: Mapping[str, ProfileSettings],
    mcp_servers: Mapping[str, McpServer] = NO_SERVERS,
) -> dict[str, Profile]:
    """Every profile of *catalog* by id, in ID order.

    Raises:
        CatalogInvalid: settings name a profile that is not there.
    """
    none = ProfileSettings()
    profiles = {p.id: build_profile(catalog, p.id, settings.get(p.id, none), mcp_servers) for p in catalog.profiles}
    if unknown := sorted(set(settings) - set(profiles)):
        raise CatalogInvalid(f"settings name profile {unknown[0]!r}, which is not in the agent catalog")
    return profiles


def build_providers(
    profiles: Mapping[str, Profile], machinery: Machinery, commands: Mapping[str, CommandHandler]
) -> list[CliProvider]:
    """One provider per profile, in their order; *commands* by profile id answer what is no run."""
    return [
        CliProvider(profile, load_dialect(profile.dialect), machinery, commands.get(profile.id))
        for profile in profiles.values()
    ]


def _mcp_way(provider: ProviderStanza, profile: ProfileStanza) -> str:
    """A CLI that is told in words is so only where it speaks that language."""
    speaks = profile.output_format or provider.dialect
    return "" if provider.mcp is None or (provider.mcp == "acp") != (speaks == "acp") else provider.mcp


def _filled_opening(stanza: OpeningStanza | None, model: str) -> dict[str, str]:
    told = {} if stanza is None else stanza.model_dump(exclude_none=True)
    return dict(zip(told, _fill(tuple(told.values()), model), strict=True))


def _fill(arguments: tuple[str, ...], model: str) -> tuple[str, ...]:
    """Each placeholder once: a target that looks like one is not filled again."""
    return tuple(model.join(argument.split(MODEL_PLACEHOLDER)) for argument in arguments)
