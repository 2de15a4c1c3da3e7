"""The commands of a profile: ``status`` asks its CLI for usage and quota and joins the answer with the last readiness.

A CLI without a status surface has no figures: the answer then repeats the last verified readiness, says so
(``status_probe=readiness_fallback``), and never makes it better than it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from providers.catalog.discovery import Discovery
from providers.catalog.login import Asks, child_environment
from providers.catalog.probes import Ended, ProbeOutput
from providers.catalog.schema import ProviderStanza, StatusProbe
from providers.catalog.steps import failed_probe, plain
from providers.cli.command import find_binary, native_binary
from providers.cli.environment import resolve_secrets
from providers.cli.profile import Profile
from providers.cli.statuses import StatusUnreadable, load_status
from runtime.failure import Failure, FailureCode, FailureError
from runtime.provider import CommandRequest, CommandResponse
from runtime.redact import Redactor
from runtime.status import AgentUsageStatus, unavailable

STATUS = "status"
STATUS_PROBE = "status_probe"
FALLBACK = "readiness_fallback"
REPORTED = "reported"


class StatusProbeFailed(FailureError):
    """The CLI did not answer; nothing is known of its usage."""

    code = FailureCode.PROCESS_FAILED


class ProfileCommands:
    """Answers the commands of one profile; needs no execution slot, and is bounded by its probe's time-out."""

    def __init__(
        self, provider: ProviderStanza, profile: Profile, prober: Asks, discovery: Discovery,
        inherited: Mapping[str, str], *, now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:  # fmt: skip
        self._provider, self._profile, self._prober = provider, profile, prober
        self._discovery, self._inherited, self._now = discovery, inherited, now

    async def command(self, request: CommandRequest) -> CommandResponse:
        """``status`` is the one command there is."""
        if request.name != STATUS:
            return _refused(FailureCode.UNSUPPORTED, f"command {request.name[:80]!r} is unknown; known: {STATUS}")
        if request.arguments:
            return _refused(FailureCode.INVALID_REQUEST, f"command {STATUS} takes no arguments")
        status = await self.status()
        return CommandResponse(status=status, metadata=self._profile.labels())

    async def status(self) -> AgentUsageStatus:
        """Usage and quota, with ids, readiness and version of the last discovery in ``metadata``.

        Raises:
            FailureError: the CLI could not be asked, or its answer could not be read.
        """
        probe = self._provider.status
        if probe is None:
            reason = f"{self._provider.id} has no status surface"
            return self._merged(unavailable(reason, taken_at=self._now()), probe=FALLBACK)
        return self._merged(await self._ask(probe), probe=REPORTED)

    async def _ask(self, probe: StatusProbe) -> AgentUsageStatus:
        env = child_environment(self._profile, self._inherited)
        secrets = resolve_secrets(self._profile.secrets, self._inherited)
        binary = native_binary(find_binary(self._profile.command[0], env["PATH"]), self._profile.native)
        output = await self._prober.run(
            (binary, *self._profile.command[1:], *probe.args), env=env | secrets, timeout_s=probe.timeout_s,
            stdin="".join(f"{line}\n" for line in probe.input).encode(),
            has_answered=lambda said: self._read(probe, said) is not None,
        )  # fmt: skip
        return self._parse(probe, output, Redactor(secrets.values()))

    def _parse(self, probe: StatusProbe, output: ProbeOutput, redact: Redactor) -> AgentUsageStatus:
        """A CLI that exits badly may have answered before."""
        if output.ended is not Ended.TOO_MUCH_OUTPUT and (found := self._read(probe, output.stdout)) is not None:
            return found
        if output.has_succeeded:
            raise StatusUnreadable(f"{self._provider.id} answered nothing that is a status of format {probe.format}")
        step = failed_probe(f"the status command of {self._provider.id}", output, redact, timeout_s=probe.timeout_s)
        raise StatusProbeFailed(f"{step.detail}: {step.diagnostic}" if step.diagnostic else step.detail)

    def _read(self, probe: StatusProbe, said: bytes) -> AgentUsageStatus | None:
        try:
            return load_status(probe.format).parse(plain(said), captured_at=self._now())
        except StatusUnreadable:
            return None

    def _merged(self, status: AgentUsageStatus, *, probe: str) -> AgentUsageStatus:
        """The last readiness beside the figures; its keys win. Without one, the readiness is unknown and stays so."""
        found = self._discovery.snapshot.get(self._profile.id)
        facts = {STATUS_PROBE: probe, "readiness": "unknown"}
        if found is not None:
            facts |= {
                "readiness": found.readiness.value, "readiness_taken_at": found.taken_at.isoformat(),
                "readiness_detail": found.detail, "version": found.version, "catalog_hash": found.catalog_hash,
            }  # fmt: skip
        elif probe == FALLBACK:
            status = dataclasses.replace(status, reason=f"{status.reason}, and its readiness was never probed")
        facts = {key: value for key, value in facts.items() if value}
        return dataclasses.replace(status, metadata={**status.metadata, **facts, **self._profile.labels()})


def _refused(code: FailureCode, message: str) -> CommandResponse:
    return CommandResponse(failure=Failure(code=code, message=message))
