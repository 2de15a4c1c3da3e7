"""The admitted way to a provider: only from a verified readiness of exactly this profile and this catalog.

Runs that come over the wire use :func:`providers.catalog.factory.build_providers` and need none of this; unattended work
does. What was built stays built: a readiness that gets worse is for the next one to meet.
"""

from __future__ import annotations

from providers.catalog.factory import ProfileSettings, build_profile
from providers.catalog.loader import catalog_hash
from providers.catalog.readiness import ReadinessResult, readiness_error
from providers.catalog.schema import CatalogFile
from providers.cli.dialects import load_dialect
from providers.cli.provider import CliProvider, Machinery


class AdmissionRefused(Exception):
    """The readiness shown is not of this profile in this catalog; nothing was built. Probe the profile and try again."""


def build_admitted(
    catalog: CatalogFile,
    profile_id: str,
    settings: ProfileSettings,
    machinery: Machinery,
    readiness: ReadinessResult | None,
) -> CliProvider:
    """The provider of *profile_id*, admitted by *readiness*. No process is started.

    Raises:
        CatalogInvalid: there is no such profile; nothing is put in its place.
        AdmissionRefused: *readiness* is missing, or of another profile, provider, model or catalog.
        ReadinessError: the profile is not ready, as the subclass says.
    """
    profile = build_profile(catalog, profile_id, settings)
    if readiness is None:
        raise AdmissionRefused(f"profile {profile_id!r} was never probed")
    if readiness.ids() != profile.labels():
        raise AdmissionRefused(f"the readiness of profile {readiness.profile_id!r} does not admit {profile_id!r}")
    if readiness.catalog_hash != catalog_hash(catalog):
        raise AdmissionRefused(f"the readiness of profile {profile_id!r} was taken with another catalog")
    if not readiness.is_ready:
        raise readiness_error(readiness)
    return CliProvider(profile, load_dialect(profile.dialect), machinery)
