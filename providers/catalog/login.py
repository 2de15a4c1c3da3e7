"""Whether a CLI is logged in, and the vendor's own way to log in, both in exactly the environment a run would have."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from providers.catalog.patterns import MATCH_TIMEOUT_S, find_plain, match_command, match_input, matched
from providers.catalog.probes import Ended, ProbeOutput
from providers.catalog.readiness import Readiness
from providers.catalog.schema import AuthProbe, ProviderStanza
from providers.catalog.steps import Step, auth_step, failed_probe, plain
from providers.cli.environment import base_environment
from providers.cli.profile import Profile
from runtime.redact import Redactor


class Asks(Protocol):
    """What is needed of a :class:`~providers.catalog.probes.Prober`."""

    async def run(
        self, argv: tuple[str, ...], *, env: Mapping[str, str], timeout_s: float, stdin: bytes = b"",
        has_answered: Callable[[bytes], bool] | None = None,
    ) -> ProbeOutput: ...  # fmt: skip


def child_environment(profile: Profile, inherited: Mapping[str, str]) -> dict[str, str]:
    """What a child of *profile* sees, its secrets left out."""
    return base_environment(inherited) | dict(profile.env)


async def login_step(
    prober: Asks, provider: ProviderStanza, command: tuple[str, ...], env: Mapping[str, str], redact: Redactor,
    *, secrets: frozenset[str],
) -> Step:  # fmt: skip
    """Whether *command* is logged in, by the rule its stanza declares; *secrets* are the operator's, already in *env*."""
    name, auth = provider.id, provider.auth
    if auth is None:
        detail = f"the catalog declares no authentication probe for {provider.id}"
        return Step(failed=Readiness.PROBE_ERROR, detail=detail)
    if not auth.required:
        return Step(value="none")
    if found := sorted(secrets & set(auth.secrets)):
        return Step(value=f"secret {found[0]}")
    if auth.args is None:
        return _by_files(auth, env.get("HOME", ""), name)
    return await _by_answer(prober, auth, (*command, *auth.args), env, redact, name)


def _by_files(auth: AuthProbe, home: str, name: str) -> Step:
    if home and any(os.path.isfile(os.path.join(home, file)) for file in auth.files):
        return Step(value="login file")
    return Step(failed=Readiness.UNAUTHENTICATED, detail=f"no login of {name} was found for the node's user")


async def _by_answer(
    prober: Asks, auth: AuthProbe, argv: tuple[str, ...], env: Mapping[str, str], redact: Redactor, name: str
) -> Step:
    output = await prober.run(argv, env=env, timeout_s=auth.timeout_s)
    if output.ended is not Ended.EXITED:
        return failed_probe(f"the login check of {name}", output, redact, timeout_s=auth.timeout_s)
    patterns = {"ready": auth.ready, "unauthenticated": auth.unauthenticated}
    declared = {key: pattern for key, pattern in patterns.items() if pattern is not None}
    text = f"{plain(output.stdout)}\n{plain(output.stderr)}"
    found = find_plain(declared, text)
    if found is None and (found := await _find(prober, declared, text)) is None:
        detail = f"the patterns for the login check of {name} could not be matched within {MATCH_TIMEOUT_S:g} s"
        return Step(failed=Readiness.PROBE_ERROR, detail=detail)
    return auth_step(found, output, redact, name=name)


async def _find(prober: Asks, patterns: Mapping[str, str], text: str) -> frozenset[str] | None:
    order = match_input(patterns, text)
    match = await prober.run(match_command(), env={}, timeout_s=MATCH_TIMEOUT_S, stdin=order)
    try:
        return matched(match.stdout) if match.has_succeeded else None
    except msgspec.DecodeError:
        return None
