"""What to type when a profile is not ready."""

from __future__ import annotations

from providers.catalog.readiness import Readiness
from providers.catalog.schema import ProfileStanza, ProviderStanza


def next_step(readiness: Readiness, provider: ProviderStanza, stanza: ProfileStanza) -> str:
    """The command to type next."""
    command = provider.command[0]
    if readiness is Readiness.MISSING_BINARY:
        return provider.install or f"install {command}, or put its directory on the node's PATH"
    if readiness is Readiness.UNAUTHENTICATED:
        return _how_to_log_in(provider, stanza)
    if readiness is Readiness.UNSUPPORTED_MODEL and provider.models is not None:
        return " ".join((command, *provider.models.args))
    probe = provider.version.args if provider.version is not None else ("--version",)
    return " ".join((command, *probe))


def _how_to_log_in(provider: ProviderStanza, stanza: ProfileStanza) -> str:
    if provider.login is not None:
        return f"iop-node login {stanza.id}"
    secrets = provider.auth.secrets if provider.auth is not None else ()
    if secrets:
        return f"name a source for {' or '.join(secrets)} in node.yaml, under profiles.{stanza.id}.secrets"
    return f"log in with {provider.command[0]} as the node's user"
