"""Whether a profile can be used, found out before anything is run: five answers, and the errors they stand for.

A :class:`ReadinessError` is pre-flight. It is another family than the failures of runs and never travels as one: a run that
was accepted ends with a failure code, and a readiness says nothing about a run or a session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

DIAGNOSTIC_LIMIT = 400


class Readiness(StrEnum):
    """What discovery found; the first failing step decides: binary, version, authentication, model."""

    READY = "ready"
    """Every declared step passed."""
    MISSING_BINARY = "missing_binary"
    """The CLI is not on PATH, or cannot be executed; nothing was started."""
    UNAUTHENTICATED = "unauthenticated"
    """The CLI says that nobody is logged in, or no login was found."""
    UNSUPPORTED_MODEL = "unsupported_model"
    """The CLI does not list the profile's model."""
    PROBE_ERROR = "probe_error"
    """A step did not give an answer: time-out, failure, no sense, a version that is too old, or no way to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessResult:
    """One profile's readiness. ``detail`` is a sentence, ``diagnostic`` a redacted, bounded end of what the CLI printed.

    ``capabilities`` are the declared ones that hold on this machine, ``notices`` what is worth knowing of a ready one.
    ``taken_at`` is aware UTC and never earlier than that of the result before.
    """

    profile_id: str
    provider_id: str
    model_id: str
    readiness: Readiness
    taken_at: datetime
    catalog_hash: str
    version: str = ""
    detail: str = ""
    diagnostic: str = ""
    notices: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    next_step: str = ""
    """What an operator may type next; empty for a ready one."""

    @property
    def is_ready(self) -> bool:
        return self.readiness is Readiness.READY

    def ids(self) -> dict[str, str]:
        """The official ids, as metadata."""
        return {"provider_id": self.provider_id, "model_id": self.model_id, "profile_id": self.profile_id}


class ReadinessError(Exception):
    """A profile is not ready; nothing was started. ``result`` says which, and why."""

    def __init__(self, result: ReadinessResult) -> None:
        super().__init__(f"profile {result.profile_id!r} is not ready ({result.readiness}): {result.detail}")
        self.result = result


class ErrBinaryMissing(ReadinessError):
    """The CLI is not installed where the host looks; install it, or correct PATH."""


class ErrAuthenticationRequired(ReadinessError):
    """Somebody has to log in: ``iop-node login PROFILE``."""


class ErrModelUnsupported(ReadinessError):
    """The CLI does not offer the model; choose another profile, or update the CLI."""


class ErrProbeFailed(ReadinessError):
    """It could not be found out; ``result.diagnostic`` may say more. Probe again."""


_ERRORS: Mapping[Readiness, type[ReadinessError]] = {
    Readiness.MISSING_BINARY: ErrBinaryMissing,
    Readiness.UNAUTHENTICATED: ErrAuthenticationRequired,
    Readiness.UNSUPPORTED_MODEL: ErrModelUnsupported,
    Readiness.PROBE_ERROR: ErrProbeFailed,
}


def readiness_error(result: ReadinessResult) -> ReadinessError:
    """The error that a non-ready *result* stands for.

    Raises:
        ValueError: it is ready, and stands for none.
    """
    if result.is_ready:
        raise ValueError(f"profile {result.profile_id!r} is ready; there is no error to make of it")
    return _ERRORS[result.readiness](result)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessSnapshot:
    """The last results of a host, by profile id. Each result has its own time: some may have been taken anew."""

    catalog_hash: str
    results: Mapping[str, ReadinessResult]

    def get(self, profile_id: str) -> ReadinessResult | None:
        """The last result of the profile; None when it was never probed."""
        return self.results.get(profile_id)
