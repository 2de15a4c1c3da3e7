"""The rules that hold between the stanzas of a catalog: who owns what, who may claim what."""

from __future__ import annotations

from collections.abc import Iterator

from providers.catalog.schema import CatalogFile, ProfileStanza, ProviderStanza
from providers.catalog.values import Capability
from providers.cli.dialects import has_conversations

Finding = tuple[tuple[str | int, ...], str]
"""The path of a value, and what is wrong with it."""


def check_references(catalog: CatalogFile) -> Iterator[Finding]:
    """Everything that is wrong between the stanzas; nothing when the catalog is sound."""
    for array in ("providers", "models", "profiles"):
        yield from _repeated(array, [item.id for item in getattr(catalog, array)])
    providers = {provider.id: provider for provider in catalog.providers}
    for index, model in enumerate(catalog.models):
        if model.provider not in providers:
            yield ("models", index, "provider"), f"model {model.id!r}: provider {model.provider!r} is not declared"
    owners = {model.id: model.provider for model in catalog.models}
    for index, profile in enumerate(catalog.profiles):
        yield from _profile(("profiles", index), profile, providers, owners)


def catalog_notes(catalog: CatalogFile) -> list[str]:
    """What is allowed and still worth a look, a sentence each."""
    seen: dict[tuple[str, str], str] = {}
    notes = []
    for model in catalog.models:
        first = seen.setdefault((model.provider, model.target), model.id)
        if first != model.id:
            notes.append(
                f"catalog: models {first!r} and {model.id!r} of provider {model.provider!r} are one: {model.target!r}"
            )
    return notes


def _repeated(array: str, ids: list[str]) -> Iterator[Finding]:
    for index, one in enumerate(ids):
        if one in ids[:index]:
            yield (array, index, "id"), f"id {one!r} is in {array} already, at {array}[{ids.index(one)}]"


def _profile(
    path: tuple[str | int, ...], profile: ProfileStanza, providers: dict[str, ProviderStanza], owners: dict[str, str]
) -> Iterator[Finding]:
    name = f"profile {profile.id!r}"
    provider = providers.get(profile.provider)
    if provider is None:
        yield (*path, "provider"), f"{name}: provider {profile.provider!r} is not declared"
    if profile.model not in owners:
        yield (*path, "model"), f"{name}: model {profile.model!r} is not declared"
    elif owners[profile.model] != profile.provider:
        owner = owners[profile.model]
        yield (*path, "model"), f"{name}: model {profile.model!r} is provider {owner!r}'s, not {profile.provider!r}'s"
    if provider is not None:
        yield from _claims(path, profile, provider)
        yield from _dialect(path, profile, profile.output_format or provider.dialect)


def _dialect(path: tuple[str | int, ...], profile: ProfileStanza, dialect: str) -> Iterator[Finding]:
    if has_conversations(dialect) != (profile.mode == "session"):
        speaks = "can only be spoken in mode session" if has_conversations(dialect) else "has no conversations"
        yield (*path, "mode"), f"profile {profile.id!r}: mode {profile.mode}, but the output format {dialect} {speaks}"


def _claims(path: tuple[str | int, ...], profile: ProfileStanza, provider: ProviderStanza) -> Iterator[Finding]:
    for index, capability in enumerate(profile.capabilities):
        if capability not in provider.capabilities:
            place = (*path, "capabilities", index)
            yield place, f"profile {profile.id!r}: {capability} is not a capability of provider {provider.id!r}"
    if profile.confinement == "own" and provider.inner_sandbox != "own":
        yield (*path, "confinement"), f"profile {profile.id!r}: provider {provider.id!r} has no sandbox of its own"
    if Capability.UNATTENDED in profile.capabilities:
        for execution in provider.workspace_executes:
            if execution.stop and not _stops(profile, execution.stop):
                stop = " ".join(execution.stop)
                yield (
                    (*path, "args"),
                    f"profile {profile.id!r} is unattended and does not stop {execution.what} ({stop})",
                )


def _stops(profile: ProfileStanza, stop: tuple[str, ...]) -> bool:
    lists = [profile.args, *filter(None, (profile.resume_args, profile.fork_args))]
    return all(any(args[i : i + len(stop)] == stop for i in range(len(args))) for args in lists)
