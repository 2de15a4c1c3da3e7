"""From catalog to provider: what is filled in, what stays as it was, and what is admitted."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from providers.catalog.admitted import AdmissionRefused, build_admitted
from providers.catalog.factory import ProfileSettings, build_profile, build_profiles, build_providers
from providers.catalog.loader import CatalogInvalid, catalog_hash
from providers.catalog.readiness import (
    ErrAuthenticationRequired,
    ErrBinaryMissing,
    ErrModelUnsupported,
    ErrProbeFailed,
    Readiness,
    ReadinessError,
    ReadinessResult,
    readiness_error,
)
from providers.cli.command import build_command
from providers.cli.environment import SecretSource
from providers.cli.provider import CliProvider, Machinery
from runtime.failure import FailureError, encode_failure, failure_from_exception
from tests.support.catalogs import Content, content, loaded, many, script

NOBODY = cast(Machinery, None)
"""A provider that is only built needs no machinery: it would fail at once if it started anything."""

ERRORS = {
    Readiness.MISSING_BINARY: ErrBinaryMissing,
    Readiness.UNAUTHENTICATED: ErrAuthenticationRequired,
    Readiness.UNSUPPORTED_MODEL: ErrModelUnsupported,
    Readiness.PROBE_ERROR: ErrProbeFailed,
}


def result(made: Content, **changes: Any) -> ReadinessResult:
    """A ready result of the first profile, with *changes*."""
    catalog = loaded(made)
    stanza = catalog.profiles[0]
    ready = ReadinessResult(
        profile_id=stanza.id, provider_id=stanza.provider, model_id=stanza.model, readiness=Readiness.READY,
        taken_at=datetime(2026, 1, 1, tzinfo=UTC), catalog_hash=catalog_hash(catalog),
    )  # fmt: skip
    return replace(ready, **changes)


# --- filling in


@pytest.mark.req("CAT-13", "CAT-14", "CAT-07", "RT-36")
def test_the_model_is_filled_into_first_and_later_command_lines(tmp_path: Any) -> None:
    binary = script(tmp_path, "alpha-cli", "true")
    made = content(
        profile={"args": ["-m", "{{model}}", "x={{model}};{{model}}"], "resume_args": ["-m{{model}}", "--resume", "{{session}}"]}
    )  # fmt: skip
    made["providers"][0]["command"] = ["alpha-cli", "run"]
    profile = build_profile(loaded(made), "alpha-main", ProfileSettings())

    first = build_command(profile, native_id=None, path=str(tmp_path))
    later = build_command(profile, native_id="n-1", path=str(tmp_path))

    assert first.argv == (str(binary), "run", "-m", "one", "x=one;one")
    assert later.argv == (str(binary), "run", "-mone", "--resume", "n-1")


@pytest.mark.req("CAT-14")
def test_a_target_that_looks_like_a_placeholder_is_filled_once() -> None:
    made = content(profile={"args": ["{{model}}", "plain"]})
    made["models"][0]["target"] = "a{{model}}b"

    assert build_profile(loaded(made), "alpha-main", ProfileSettings()).args == ("a{{model}}b", "plain")


@pytest.mark.req("CAT-15")
async def test_building_never_changes_the_catalog() -> None:
    made = many(a={}, b={}, c={})
    for profile in made["profiles"]:
        profile["args"] = ["{{model}}"]
    catalog = loaded(made)
    before = copy.deepcopy(catalog)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(asyncio.to_thread(build_profiles, catalog, {}))

    assert catalog == before
    with pytest.raises(Exception, match="frozen"):
        catalog.profiles[0].id = "other"


@pytest.mark.req("CAT-13")
def test_a_profile_may_speak_another_format_than_its_provider() -> None:
    made = content(profile={"output_format": "claude_stream_json"})

    assert build_profile(loaded(made), "alpha-main", ProfileSettings()).dialect == "claude_stream_json"


def test_the_operators_settings_win() -> None:
    made = content(provider={"env": {"A": "1", "B": "2"}, "silence_timeout_s": 9})
    settings = ProfileSettings(
        env={"B": "3"}, secrets={"KEY": SecretSource(env="X")}, max_concurrency=0, default_workspace="/w"
    )

    profile = build_profile(loaded(made), "alpha-main", settings)

    assert (profile.env, profile.silence_timeout_s, profile.default_workspace) == ({"A": "1", "B": "3"}, 9, "/w")


@pytest.mark.req("BAN-12")
def test_settings_for_a_profile_that_is_not_there_are_refused() -> None:
    with pytest.raises(CatalogInvalid, match="settings name profile 'alpha', which is not in the agent catalog"):
        build_profiles(loaded(content()), {"alpha": ProfileSettings()})


@pytest.mark.req("CAT-35", "CAT-36", "CAT-37")
async def test_every_profile_becomes_the_one_provider_with_its_id_as_target() -> None:
    profiles = build_profiles(loaded(many(a={}, b={"dialect": "claude_stream_json"})), {})

    built = build_providers(profiles, NOBODY, {})

    assert [type(provider) for provider in built] == [CliProvider, CliProvider]
    assert CliProvider.__subclasses__() == []
    capabilities = [await provider.capabilities() for provider in built]
    assert [found.targets for found in capabilities] == [("a",), ("b",)]
    assert capabilities[0].labels == {"provider_id": "a", "model_id": "a", "profile_id": "a"}


# --- admission


@pytest.mark.req("CAT-34", "BAN-14", "BAN-15")
async def test_a_ready_result_of_this_profile_admits_it() -> None:
    made = content()

    provider = build_admitted(loaded(made), "alpha-main", ProfileSettings(), NOBODY, result(made))

    assert (await provider.capabilities()).targets == ("alpha-main",)


@pytest.mark.req("CAT-34", "BAN-15", "CAT-31")
@pytest.mark.parametrize("readiness", ERRORS)
def test_a_profile_that_is_not_ready_is_not_built(readiness: Readiness) -> None:
    made = content()

    with pytest.raises(ReadinessError) as refused:
        build_admitted(loaded(made), "alpha-main", ProfileSettings(), NOBODY, result(made, readiness=readiness))

    assert type(refused.value) is ERRORS[readiness]
    assert refused.value.result.readiness is readiness


@pytest.mark.req("CAT-34", "BAN-14")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"profile_id": "alpha-other"}, "the readiness of profile 'alpha-other' does not admit 'alpha-main'"),
        ({"provider_id": "beta"}, "does not admit"),
        ({"model_id": "alpha-two"}, "does not admit"),
        ({"catalog_hash": "0" * 16}, "was taken with another catalog"),
    ],
)
def test_a_result_of_another_profile_or_catalog_admits_nothing(changes: dict[str, str], sentence: str) -> None:
    made = content()

    with pytest.raises(AdmissionRefused, match=sentence):
        build_admitted(loaded(made), "alpha-main", ProfileSettings(), NOBODY, result(made, **changes))


@pytest.mark.req("CAT-34", "E-16")
def test_without_a_result_nothing_is_built() -> None:
    with pytest.raises(AdmissionRefused, match="was never probed"):
        build_admitted(loaded(content()), "alpha-main", ProfileSettings(), NOBODY, None)


@pytest.mark.req("BAN-12", "E-16")
def test_the_only_profile_is_no_default() -> None:
    made = content()

    with pytest.raises(CatalogInvalid, match="profile 'other' is not in the agent catalog; it has alpha-main"):
        build_admitted(loaded(made), "other", ProfileSettings(), NOBODY, result(made))


@pytest.mark.req("BAN-15")
async def test_a_later_downgrade_is_for_the_next_one() -> None:
    made = content()
    provider = build_admitted(loaded(made), "alpha-main", ProfileSettings(), NOBODY, result(made))

    with pytest.raises(ErrProbeFailed):
        build_admitted(
            loaded(made), "alpha-main", ProfileSettings(), NOBODY, result(made, readiness=Readiness.PROBE_ERROR)
        )

    assert (await provider.capabilities()).targets == ("alpha-main",)


# --- the errors


@pytest.mark.req("CAT-31")
@pytest.mark.parametrize("readiness", ERRORS)
def test_each_state_has_its_error_also_as_a_cause(readiness: Readiness) -> None:
    found = result(content(), readiness=readiness, detail="why")

    try:
        try:
            raise readiness_error(found)
        except ReadinessError as error:
            raise RuntimeError("wrapped") from error
    except RuntimeError as wrapped:
        cause = wrapped.__cause__

    assert type(cause) is ERRORS[readiness]
    assert str(cause) == f"profile 'alpha-main' is not ready ({readiness}): why"


@pytest.mark.req("CAT-31")
def test_ready_is_no_error() -> None:
    with pytest.raises(ValueError, match="is ready; there is no error"):
        readiness_error(result(content()))


@pytest.mark.req("FAIL-09", "E-13")
@pytest.mark.parametrize("readiness", ERRORS)
def test_a_readiness_error_is_no_failure_of_a_run(readiness: Readiness) -> None:
    error = readiness_error(result(content(), readiness=readiness))

    assert not isinstance(error, FailureError)
    with pytest.raises(TypeError, match="only a Failure can be encoded, found Err"):
        encode_failure(cast(Any, error))
    assert failure_from_exception(error).code not in {"auth_required", "model_unavailable", "provider_unreachable"}
