"""Discovery: what of the catalog can be used on this machine, asked of the CLIs themselves, all at once.

Profiles that would ask the same CLI in the same environment share the answers, and each gets a result of its own. All
probes of a CLI start together; the first failing step decides: binary, version, authentication, model. A discovery that is
cancelled leaves the last results as they were, with their own times.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeVar

from providers.catalog.advice import next_step
from providers.catalog.confinement import is_supported
from providers.catalog.login import Asks, child_environment, login_step
from providers.catalog.probes import ProbeOutput
from providers.catalog.readiness import Readiness, ReadinessResult, ReadinessSnapshot
from providers.catalog.schema import CatalogFile, ModelProbe, ProfileStanza, ProviderStanza
from providers.catalog.steps import Step, model_step, version_step
from providers.catalog.values import Capability
from providers.cli.command import CannotStart, find_binary, native_binary
from providers.cli.environment import SecretUnavailable, resolve_secrets
from providers.cli.profile import Profile
from runtime.clock import boot_time_s
from runtime.failure import Conflict, NotFound
from runtime.redact import Redactor

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """One CLI in one environment, and the profiles that would use it so."""

    provider: ProviderStanza
    profile: Profile
    """Any of them: command, environment and secrets are the same."""
    stanzas: tuple[ProfileStanza, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The steps of one subject, in their order; ``models`` is the output of the list, None when none is declared."""

    binary: Step
    version: Step = field(default_factory=Step)
    authentication: Step = field(default_factory=Step)
    models: ProbeOutput | None = None
    redact: Redactor = field(default_factory=Redactor)


class Discovery:
    """The readiness of one host's profiles. One discovery at a time; used on one loop."""

    def __init__(
        self, catalog: CatalogFile, profiles: Mapping[str, Profile], prober: Asks, inherited: Mapping[str, str],
        *, catalog_hash: str, now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self._catalog, self._profiles, self._prober, self._inherited = catalog, profiles, prober, inherited
        self._now, self._last = now, datetime.min.replace(tzinfo=UTC)
        self._targets = {model.id: model.target for model in catalog.models}
        self._alone = asyncio.Lock()  # two discoveries at once would ask every CLI twice
        self._asked_at: dict[str, float] = {}
        self._listeners: list[Callable[[ReadinessSnapshot], None]] = []
        self.snapshot = ReadinessSnapshot(catalog_hash=catalog_hash, results={})

    def adopt(self, catalog: CatalogFile, profiles: Mapping[str, Profile], *, catalog_hash: str) -> None:
        """From now on ask about *catalog*; what was found with another one, or with other settings, is forgotten."""
        same = catalog_hash == self.snapshot.catalog_hash
        kept = {one for one in profiles if same and self._profiles.get(one) == profiles[one]}
        self._catalog, self._profiles = catalog, profiles
        self._targets = {model.id: model.target for model in catalog.models}
        self._asked_at = {one: at for one, at in self._asked_at.items() if one in kept}
        results = {one: result for one, result in self.snapshot.results.items() if one in kept}
        self._publish(ReadinessSnapshot(catalog_hash=catalog_hash, results=results))

    def on_change(self, listener: Callable[[ReadinessSnapshot], None]) -> None:
        """Call *listener* on the loop after each discovery."""
        self._listeners.append(listener)

    async def probe(self, profile_ids: Iterable[str] = (), *, max_age_s: float = 0.0) -> list[ReadinessResult]:
        """The readiness of *profile_ids* (none: of all), in ID order, asked now unless a result is younger than *max_age_s*.

        Raises:
            NotFound: no such profile in the catalog; nothing was asked.
            Conflict: a reload replaced the catalog meanwhile.
            asyncio.CancelledError: nothing of the probes is left, and no result was changed.
        """
        wanted = self._check(profile_ids)
        entered = boot_time_s()
        async with self._alone:
            since = entered - max_age_s
            stale = [one for one in wanted if self._asked_at.get(one, float("-inf")) < since]
            if stale:
                await self._renew(stale)
        return [self.snapshot.results[one] for one in wanted]

    def _check(self, profile_ids: Iterable[str]) -> list[str]:
        known = [profile.id for profile in self._catalog.profiles]
        wanted = sorted(set(profile_ids)) or known
        for one in wanted:
            if one not in known:
                raise NotFound(
                    f"profile {one!r} is not in the agent catalog; it has {', '.join(known)}", profile_id=one
                )
        return wanted

    async def _renew(self, wanted: list[str]) -> None:
        asked_at, catalog = boot_time_s(), self._catalog
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._examine(subject)) for subject in self._subjects(wanted)]
        if catalog is not self._catalog:
            raise Conflict("the catalog was replaced while it was being probed; probe again")
        results = {result.profile_id: result for task in tasks for result in task.result()}
        self._asked_at |= dict.fromkeys(results, asked_at)
        self._publish(
            ReadinessSnapshot(catalog_hash=self.snapshot.catalog_hash, results={**self.snapshot.results, **results})
        )

    def _publish(self, snapshot: ReadinessSnapshot) -> None:
        self.snapshot = snapshot
        for listener in tuple(self._listeners):
            listener(snapshot)

    def _subjects(self, wanted: list[str]) -> list[_Subject]:
        providers = {provider.id: provider for provider in self._catalog.providers}
        found: dict[object, list[ProfileStanza]] = {}
        for stanza in (p for p in self._catalog.profiles if p.id in wanted):
            profile = self._profiles[stanza.id]
            sources = sorted((name, one.env, one.file) for name, one in profile.secrets.items())
            key = (stanza.provider, tuple(sorted(profile.env.items())), tuple(sources))
            found.setdefault(key, []).append(stanza)
        return [
            _Subject(provider=providers[group[0].provider], profile=self._profiles[group[0].id], stanzas=tuple(group))
            for group in found.values()
        ]

    async def _examine(self, subject: _Subject) -> list[ReadinessResult]:
        try:
            found = await self._ask(subject)
        except Exception as error:
            log.exception("discovery failed", extra={"provider": subject.provider.id})
            detail = f"discovery itself failed ({type(error).__name__})"
            found = _Found(binary=Step(failed=Readiness.PROBE_ERROR, detail=detail))
        return [self._result(subject, stanza, found) for stanza in subject.stanzas]

    async def _ask(self, subject: _Subject) -> _Found:
        provider, profile = subject.provider, subject.profile
        environment = child_environment(profile, self._inherited)
        try:
            binary = native_binary(find_binary(profile.command[0], environment["PATH"]), profile.native)
        except CannotStart:
            detail = f"{profile.command[0]} is not on the node's PATH, or cannot be executed"
            return _Found(binary=Step(failed=Readiness.MISSING_BINARY, detail=detail))
        try:
            secrets = resolve_secrets(profile.secrets, self._inherited)
        except SecretUnavailable as error:
            return _Found(binary=Step(failed=Readiness.PROBE_ERROR, detail=str(error)))
        command, env, redact = (binary, *profile.command[1:]), environment | secrets, Redactor(secrets.values())
        version, authentication, models = await _together(
            self._version(provider, command, env, redact),
            login_step(self._prober, provider, command, env, redact, secrets=frozenset(secrets)),
            self._models(provider.models, command, env),
        )
        return _Found(
            binary=Step(value=binary), version=version, authentication=authentication, models=models, redact=redact
        )

    async def _version(
        self, provider: ProviderStanza, command: tuple[str, ...], env: Mapping[str, str], redact: Redactor
    ) -> Step:
        probe = provider.version
        if probe is None:
            return Step(failed=Readiness.PROBE_ERROR, detail=f"the catalog declares no version probe for {provider.id}")
        output = await self._prober.run((*command, *probe.args), env=env, timeout_s=probe.timeout_s)
        return version_step(probe, output, redact, name=provider.id)

    async def _models(
        self, probe: ModelProbe | None, command: tuple[str, ...], env: Mapping[str, str]
    ) -> ProbeOutput | None:
        if probe is None:
            return None
        return await self._prober.run((*command, *probe.args), env=env, timeout_s=probe.timeout_s)

    # -- results ------------------------------------------------------------------------------------------------------

    def _result(self, subject: _Subject, stanza: ProfileStanza, found: _Found) -> ReadinessResult:
        steps = [found.binary, found.version, found.authentication, self._model(subject, stanza, found)]
        failed = next((step for step in steps if step.failed is not None), None)
        readiness = Readiness.READY if failed is None or failed.failed is None else failed.failed
        capabilities, lost = self._capabilities(subject, stanza)
        notices = [step.notice for step in steps if step.notice] if failed is None else []
        return ReadinessResult(
            profile_id=stanza.id, provider_id=stanza.provider, model_id=stanza.model, readiness=readiness,
            taken_at=self._stamp(), catalog_hash=self.snapshot.catalog_hash, version=found.version.value,
            detail=failed.detail if failed else "", diagnostic=failed.diagnostic if failed else "",
            notices=(*notices, *lost), capabilities=capabilities,
            next_step="" if failed is None else next_step(readiness, subject.provider, stanza),
        )  # fmt: skip

    def _model(self, subject: _Subject, stanza: ProfileStanza, found: _Found) -> Step:
        """Without a declared list, the catalog's own declaration is the basis."""
        probe, target = subject.provider.models, self._targets[stanza.model]
        if probe is None or found.models is None:
            return Step(value=target)
        return model_step(probe, found.models, found.redact, name=subject.provider.id, target=target)

    def _capabilities(self, subject: _Subject, stanza: ProfileStanza) -> tuple[tuple[str, ...], tuple[str, ...]]:
        declared = tuple(capability.value for capability in stanza.capabilities)
        path = child_environment(subject.profile, self._inherited)["PATH"]
        if stanza.confinement is None or is_supported(stanza.confinement, path=path):
            return declared, ()
        lost = Capability.WRITABLE_ROOT_CONFINEMENT.value
        sentence = f"{stanza.confinement} does not work on this machine: {stanza.id} cannot run unattended here"
        return tuple(one for one in declared if one not in (lost, Capability.UNATTENDED.value)), (sentence,)

    def _stamp(self) -> datetime:
        """Now, but never earlier than before, whatever the wall clock does."""
        self._last = max(self._now(), self._last)
        return self._last


async def _together(
    version: Awaitable[Step], authentication: Awaitable[Step], models: Awaitable[ProbeOutput | None]
) -> tuple[Step, Step, ProbeOutput | None]:
    """All three at once; when one raises, or this is cancelled, the others are gone when this returns."""
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_awaited(version))
        second = group.create_task(_awaited(authentication))
        third = group.create_task(_awaited(models))
    return first.result(), second.result(), third.result()


async def _awaited(work: Awaitable[T]) -> T:
    return await work
