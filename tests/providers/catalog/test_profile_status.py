"""The status of a profile: figures where the CLI has them, else the last readiness, exactly as it was."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from providers.catalog.agents import Agents, Selection
from providers.catalog.discovery import Discovery
from providers.catalog.factory import ProfileSettings, build_profiles
from providers.catalog.probes import Prober
from providers.catalog.status import ProfileCommands, StatusProbeFailed
from providers.cli.command import CannotStart
from providers.cli.environment import SecretSource
from providers.cli.statuses import StatusUnreadable
from runtime.provider import CommandHandler, CommandRequest
from runtime.status import Availability, UsageWindow
from tests.support.catalogs import PROBED, calls, cli, content, loaded

LIMITS = (
    '{"id":3,"result":{"rateLimits":{"primary":{"usedPercent":0,"windowDurationMins":300,"resetsAt":1796072138},'
    '"secondary":null}}}'
)
STATUS = {"format": "codex_rate_limits", "args": ["status"], "input": ['{"id":3}'], "timeout_s": 30}
IDS = {"provider_id": "alpha", "model_id": "alpha-one", "profile_id": "alpha-main"}

Commands = Callable[..., tuple[ProfileCommands, Discovery]]


@pytest.fixture
def commands(prober: Prober, inherited: dict[str, str], discover: Callable[..., Discovery]) -> Commands:
    def make(
        *, settings: dict[str, ProfileSettings] | None = None, **provider: Any
    ) -> tuple[ProfileCommands, Discovery]:
        made = content(provider={**PROBED, **provider})
        discovery, catalog = discover(made, settings=settings), loaded(made)
        profile = build_profiles(catalog, settings or {})["alpha-main"]
        return ProfileCommands(catalog.providers[0], profile, prober, discovery, inherited), discovery

    return make


@pytest.mark.req("CAT-38", "CAT-37", "CAT-39", "RT-28")
async def test_figures_are_joined_with_the_last_readiness(commands: Commands, clis: Path) -> None:
    cli(clis, "alpha-cli", status=f"read -r question; test \"$question\" = '{{\"id\":3}}' && echo '{LIMITS}'")
    handler, discovery = commands(status=STATUS)
    await discovery.probe()

    status = await handler.status()

    assert status.windows == (
        UsageWindow(
            name="primary", used_percent=0.0, duration_minutes=300, resets_at=datetime.fromtimestamp(1796072138, UTC)
        ),
    )
    facts = dict(status.metadata)
    assert facts.pop("readiness_taken_at") == discovery.snapshot.results["alpha-main"].taken_at.isoformat()
    assert facts == {
        **IDS, "readiness": "ready", "version": "1.4.2", "status_probe": "reported",
        "catalog_hash": discovery.snapshot.catalog_hash,
    }  # fmt: skip


@pytest.mark.req("CAT-39", "CAT-40", "RT-29")
@pytest.mark.parametrize("auth", ["echo Logged in", "echo Not logged in", "exit 9"])
async def test_without_a_status_surface_the_readiness_is_repeated_as_it_was(
    commands: Commands, clis: Path, auth: str
) -> None:
    cli(clis, "alpha-cli", auth=auth)
    handler, discovery = commands()
    (verified,) = await discovery.probe()
    asked = calls(clis, "alpha-cli")

    status = await handler.status()

    assert (status.availability, status.windows) == (Availability.UNAVAILABLE, ())
    assert status.reason == "alpha has no status surface"
    assert status.metadata["status_probe"] == "readiness_fallback"
    assert status.metadata["readiness"] == verified.readiness.value
    assert {key: status.metadata[key] for key in IDS} == IDS
    assert calls(clis, "alpha-cli") == asked


@pytest.mark.req("CAT-40")
async def test_before_any_discovery_the_readiness_is_unknown(commands: Commands, clis: Path) -> None:
    cli(clis, "alpha-cli")
    handler, _ = commands()

    status = await handler.status()

    assert status.availability is Availability.UNAVAILABLE
    assert status.reason == "alpha has no status surface, and its readiness was never probed"
    assert status.metadata == {**IDS, "status_probe": "readiness_fallback", "readiness": "unknown"}


@pytest.mark.req("CAT-38", "RT-29", "RT-27")
@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("true", StatusUnreadable),
        ("echo 'Nutzung: 40 %'", StatusUnreadable),
        ('echo \'{"id":3,"result":{"rateLimits":{"primary":{"usedPer\'', StatusUnreadable),
        ("echo sk-canary-0123456789 >&2; exit 4", StatusProbeFailed),
        ("yes canary", StatusProbeFailed),
        ("sleep 60", StatusProbeFailed),
    ],
)
async def test_a_status_that_fails_is_a_typed_error_and_no_fallback(
    commands: Commands, clis: Path, probe_processes: Callable[[], list[int]], script: str, error: type[Exception]
) -> None:
    cli(clis, "alpha-cli", status=script)
    handler, discovery = commands(status={**STATUS, "timeout_s": 0.5 if script == "sleep 60" else 30})
    await discovery.probe()

    with pytest.raises(error) as failed:
        await handler.status()

    assert "sk-canary" not in str(failed.value)
    assert probe_processes() == []


@pytest.mark.req("CAT-38")
async def test_a_cli_that_answers_and_stays_has_answered(commands: Commands, clis: Path) -> None:
    cli(clis, "alpha-cli", status=f"echo '{LIMITS}'; sleep 60")
    handler, _ = commands(status=STATUS)

    assert (await handler.status()).availability is Availability.REPORTED


@pytest.mark.req("RT-25")
async def test_a_status_of_a_cli_that_is_not_installed_is_an_error(commands: Commands) -> None:
    handler, _ = commands(status=STATUS)

    with pytest.raises(CannotStart):
        await handler.status()


@pytest.mark.req("CAT-32", "E-10")
async def test_a_secret_reaches_the_cli_and_no_answer(
    commands: Commands, clis: Path, inherited: dict[str, str]
) -> None:
    inherited["MY_SOURCE"] = "plain-word-canary"
    cli(clis, "alpha-cli", status='test -n "$ALPHA_KEY" || exit 5; echo "for $ALPHA_KEY"; exit 4')
    settings = {"alpha-main": ProfileSettings(secrets={"ALPHA_KEY": SecretSource(env="MY_SOURCE")})}
    handler, _ = commands(settings=settings, status=STATUS)

    with pytest.raises(StatusProbeFailed, match=r"exit code 4: for \[redacted\]"):
        await handler.status()


@pytest.mark.req("RT-25")
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (CommandRequest(name="reboot"), "unsupported"),
        (CommandRequest(name="Status"), "unsupported"),
        (CommandRequest(name="status", arguments={"deep": True}), "invalid_request"),
    ],
)
async def test_what_is_not_a_known_command_is_a_failure(
    commands: Commands, request_: CommandRequest, code: str
) -> None:
    handler, _ = commands()

    response = await handler.command(request_)

    assert response.failure is not None
    assert (response.failure.code, response.status) == (code, None)


@pytest.mark.req("RT-25", "CAT-37")
async def test_a_status_command_round_trips(commands: Commands, clis: Path) -> None:
    cli(clis, "alpha-cli")
    handler, _ = commands()

    response = await handler.command(CommandRequest(name="status"))

    assert response.failure is None
    assert response.status is not None
    assert response.metadata == IDS


@pytest.mark.req("RT-25")
async def test_every_built_provider_takes_commands(prober: Prober, inherited: dict[str, str]) -> None:
    catalog = loaded(content(provider=PROBED))
    selection = Selection(catalog=catalog, profiles=build_profiles(catalog, {}))
    machinery = cast(Any, SimpleNamespace(inherited=inherited))  # nothing is run, so nothing else is needed

    (provider,) = Agents(selection, machinery, prober).build(selection)

    assert isinstance(provider, CommandHandler)
    response = await provider.command(CommandRequest(name="status"))
    assert response.status is not None
    assert response.status.metadata["readiness"] == "unknown"
