"""Account identity in diagnostics: gone, while the reason stays readable."""

from __future__ import annotations

import time

import pytest

from providers.catalog.identity import without_identity


@pytest.mark.req("CAT-32", "FAIL-08")
@pytest.mark.parametrize(
    "text",
    [
        "mail canary@example.com failed",
        "<canary.smith+tag@mail.example.co.uk>",
        '{"email":"canary@localhost","orgName":"Canary Corp"}',
        "organization: Canary Corp",
        "Organisation name = Canary Corp",
        "accountUuid: canary-1234",
        "user_id='canary-9'",
        "Logged in as Canary Smith",
        "signed-in to Canary Corp",
        "team=canary, code=5",
    ],
)
def test_an_account_is_not_named(text: str) -> None:
    assert "canary" not in without_identity(text).lower()


@pytest.mark.req("CAT-32")
@pytest.mark.parametrize(
    "text",
    [
        "error: unknown option '--version'",
        "Is this a folder you trust?",
        "connect ECONNREFUSED 127.0.0.1:443",
        "user not found",
        "Your organization has disabled this model",
    ],
)
def test_a_reason_stays_as_it_is(text: str) -> None:
    assert without_identity(text) == text


def test_a_megabyte_takes_no_time() -> None:
    began = time.process_time()

    for text in ("a" * 1_000_000, "user: " * 150_000, "a@" * 500_000, "org " * 250_000, "logged in as" * 80_000):
        without_identity(text)

    assert time.process_time() - began < 20
