"""The agents of one host: the catalog in service, what is known of its readiness, and the providers built of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from providers.catalog.discovery import Discovery
from providers.catalog.factory import NO_SERVERS, ProfileSettings, build_profiles, build_providers
from providers.catalog.loader import catalog_hash, load_catalog, load_shipped
from providers.catalog.probes import Prober
from providers.catalog.references import catalog_notes
from providers.catalog.schema import CatalogFile
from providers.catalog.status import ProfileCommands
from providers.cli.mcp import McpServer
from providers.cli.profile import Profile
from providers.cli.provider import CliProvider, Machinery


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A catalog joined with an operator's settings: valid as a whole, not yet in service."""

    catalog: CatalogFile
    profiles: Mapping[str, Profile]


def load_selection(
    catalog: Path | None,
    settings: Mapping[str, ProfileSettings],
    mcp_servers: Mapping[str, McpServer] = NO_SERVERS,
) -> Selection:
    """The catalog at *catalog* (None: the shipped one) with *settings* by profile id, and the node's MCP servers.

    Raises:
        CatalogInvalid: the catalog cannot be used, or the settings do not fit it.
    """
    loaded = load_shipped() if catalog is None else load_catalog(catalog)
    return Selection(catalog=loaded, profiles=build_profiles(loaded, settings, mcp_servers))


class Agents:
    """What of a selection is in service on this host. ``discovery`` stays the same object over reloads."""

    def __init__(self, selection: Selection, machinery: Machinery, prober: Prober) -> None:
        self._machinery, self._prober, self.selection = machinery, prober, selection
        self.discovery = Discovery(
            selection.catalog,
            selection.profiles,
            prober,
            machinery.inherited,
            catalog_hash=catalog_hash(selection.catalog),
        )

    def build(self, selection: Selection) -> list[CliProvider]:
        """One provider per profile, in ID order; nothing is started."""
        stanzas = {provider.id: provider for provider in selection.catalog.providers}
        commands = {
            profile.id: ProfileCommands(
                stanzas[profile.provider_id], profile, self._prober, self.discovery, self._machinery.inherited
            )
            for profile in selection.profiles.values()
        }
        return build_providers(selection.profiles, self._machinery, commands)

    def adopt(self, selection: Selection) -> None:
        """From now on *selection* is in service; a readiness that was taken with another catalog is forgotten."""
        self.selection = selection
        self.discovery.adopt(selection.catalog, selection.profiles, catalog_hash=catalog_hash(selection.catalog))

    def notes(self) -> list[str]:
        """What an operator should know of the catalog, a sentence each."""
        return catalog_notes(self.selection.catalog)
