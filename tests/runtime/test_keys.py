from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest

from runtime.keys import made_ns, new_ulid, request_digest
from runtime.types import RUN_ID, RunRequest, SessionMode

BASE = RunRequest(
    run_id="r1", adapter="cli", target="agent", session_id="s1", session_mode=SessionMode.REQUIRE_EXISTING, workspace="/w",
    policy={"a": [1, {"b": None}]}, input="hi", timeout=timedelta(seconds=5), metadata={"k": "v", "l": "w"},
)  # fmt: skip
OTHER: dict[str, Any] = {
    "adapter": "cly", "target": "agents", "session_id": "s2", "session_mode": SessionMode.CREATE_IF_MISSING,
    "fork_from": "s0",
    "background": True, "workspace": "/w2", "policy": {"a": [1, {"b": 0}]}, "input": "hi ", "timeout": timedelta(seconds=6),
    "metadata": {"k": "w", "l": "v"},
}  # fmt: skip


@pytest.mark.req("E-12")
def test_every_field_but_the_key_itself_makes_another_request() -> None:
    changed = {name: request_digest(replace(BASE, **{name: value})) for name, value in OTHER.items()}

    assert set(changed) | {"run_id"} == {field.name for field in fields(RunRequest)}
    assert len({*changed.values(), request_digest(BASE)}) == len(OTHER) + 1


@pytest.mark.req("E-12")
def test_the_run_id_is_no_part_of_what_was_asked() -> None:
    """So a caller that let the host make the id can repeat its request under it."""
    assert request_digest(replace(BASE, run_id="")) == request_digest(BASE)


@pytest.mark.req("E-12")
def test_a_field_that_came_later_changes_no_digest_of_those_who_do_not_use_it() -> None:
    """A digest is stored for a month; the same request must stay the same over an upgrade."""
    simple = RunRequest(target="agent", input="hi")

    assert request_digest(simple) == "506002b610d0d7a2311c637d1e5b05e66465f068401c3d278489ddaa73d585b6"


@pytest.mark.req("E-12")
def test_the_order_of_keys_makes_no_difference() -> None:
    turned = replace(BASE, metadata={"l": "w", "k": "v"}, policy={"b": 1, "a": {"d": 1, "c": 2}})
    straight = replace(BASE, policy={"a": {"c": 2, "d": 1}, "b": 1})

    assert request_digest(turned) == request_digest(straight)


@pytest.mark.req("E-12")
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"input": "ab", "workspace": ""}, {"input": "a", "workspace": "b"}),
        ({"metadata": {"a": "b,c"}}, {"metadata": {"a": "b", "c": ""}}),
        ({"policy": {"a": "1"}}, {"policy": {"a": 1}}),
        ({"session_mode": None}, {"session_mode": ""}),
        ({"timeout": None}, {"timeout": timedelta(0)}),
        ({"timeout": timedelta(microseconds=1)}, {"timeout": timedelta(microseconds=2)}),
    ],
)
def test_neighbours_are_told_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert request_digest(replace(BASE, **one)) != request_digest(replace(BASE, **other))


def test_the_digest_is_a_fixed_one() -> None:
    """It is stored: another encoding would make every repeated request after an upgrade a conflict."""
    assert (
        request_digest(RunRequest(target="demo", input="hi"))
        == "0f6021f42d3093a584bfa6d1b0de8e82545fa9bfd005e8c7b76616742b122875"
    )


def test_a_run_key_is_an_id_that_sorts_by_time() -> None:
    early, late = new_ulid(1_700_000_000_000), new_ulid(1_700_000_000_001)

    assert early < late
    assert len(early) == 26
    assert RUN_ID.fullmatch(early)
    assert RUN_ID.fullmatch(early.lower())


def test_run_keys_of_one_moment_differ() -> None:
    assert len({new_ulid(1) for _ in range(1000)}) == 1000


def test_a_key_tells_when_it_was_made_and_anything_else_looks_young() -> None:
    assert made_ns(new_ulid(1_700_000_000_123)) == 1_700_000_000_123_000_000
    assert made_ns("lost+found") > 4_000_000_000_000_000_000
