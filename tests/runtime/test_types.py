from __future__ import annotations

from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from runtime.failure import InvalidRequest
from runtime.types import (
    Capabilities,
    ExecutionSpec,
    RunRequest,
    SessionMode,
    check_id,
    check_timeout,
    parse_session_mode,
    thaw,
)

ELEVEN = {
    "run_id", "adapter", "target", "session_id", "session_mode", "background", "workspace", "policy", "input", "timeout",
    "metadata",
}  # fmt: skip
NESTED = {"z": [1, {"deep": [True, None, 2.5]}], "a": {"iop": {"silence_timeout_s": 3}}, "": "empty key"}


def spec(**given: Any) -> ExecutionSpec:
    return ExecutionSpec(**({"run_id": "r1", "adapter": "scripted", "target": "agent"} | given))


@pytest.mark.req("RT-06", "RT-01")
def test_a_spec_has_the_eleven_fields_and_no_other() -> None:
    assert {field.name for field in fields(ExecutionSpec)} == ELEVEN


@pytest.mark.req("RT-06")
@pytest.mark.parametrize("name", ["run_id", "adapter", "target"])
def test_a_spec_without_an_identity_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as refusal:
        spec(**{name: ""})

    assert refusal.value.failure.metadata["field"] == name


@pytest.mark.req("RT-06")
def test_a_spec_knows_no_other_field() -> None:
    with pytest.raises(TypeError, match="node_id"):
        spec(node_id="n1")


@pytest.mark.req("RT-07")
def test_a_spec_does_not_follow_the_maps_it_was_made_of() -> None:
    policy: dict[str, Any] = {"tools": ["read"], "deep": {"a": 1}}
    metadata = {"k": "v"}

    made = spec(policy=policy, metadata=metadata)
    policy["tools"].append("write")
    policy["deep"]["a"] = 2
    metadata["k"] = "w"

    assert (thaw(made.policy), dict(made.metadata)) == ({"tools": ["read"], "deep": {"a": 1}}, {"k": "v"})


@pytest.mark.req("RT-07")
def test_a_spec_cannot_be_changed_by_who_has_it() -> None:
    made = spec(policy={"deep": {"a": [1]}}, metadata={"k": "v"})

    with pytest.raises(FrozenInstanceError):
        made.input = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        made.metadata["k"] = "w"  # type: ignore[index]
    with pytest.raises(TypeError):
        made.policy["deep"]["a"] = 1
    assert made.policy["deep"]["a"] == (1,)


@pytest.mark.req("RT-07")
@pytest.mark.parametrize("timeout", [timedelta(seconds=-1), timedelta(microseconds=-1), float("nan"), 5])
def test_a_timeout_that_no_clock_can_keep_is_refused(timeout: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        spec(timeout=timeout)

    assert refusal.value.failure.metadata["field"] == "timeout"


@pytest.mark.req("RT-07")
@pytest.mark.parametrize("timeout", [None, timedelta(0), timedelta(days=3)])
def test_no_timeout_and_any_length_are_allowed(timeout: timedelta | None) -> None:
    check_timeout(timeout)

    assert spec(timeout=timeout).timeout == timeout


@pytest.mark.req("RT-07")
@pytest.mark.parametrize("metadata", [{"k": 1}, {"k": None}, {1: "v"}, {"k": b"bytes"}])
def test_metadata_that_is_no_text_is_refused(metadata: Any) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        spec(metadata=metadata)

    assert refusal.value.failure.metadata["field"] == "metadata"


@pytest.mark.req("RT-07")
def test_a_large_input_is_kept_as_it_is() -> None:
    text = "ä" * 5_000_000

    assert spec(input=text).input is text


@pytest.mark.req("RT-34")
def test_a_nested_policy_survives_byte_for_byte() -> None:
    before = msgspec.json.encode(NESTED)

    made = spec(policy=RunRequest(target="agent", policy=NESTED).policy)

    assert msgspec.json.encode(thaw(made.policy)) == before


@pytest.mark.req("RT-08", "RT-09", "RT-10")
def test_the_modes_are_three() -> None:
    assert {mode.value for mode in SessionMode} == {"create_if_missing", "require_existing", "fork"}


@pytest.mark.req("RT-10")
@pytest.mark.parametrize("mode", ["", "branch", "CREATE_IF_MISSING", "create_if_missing ", "SESSION_MODE_7"])
def test_any_other_mode_is_an_error_that_lists_the_known(mode: str) -> None:
    with pytest.raises(InvalidRequest, match="create_if_missing, require_existing, fork") as refusal:
        parse_session_mode(mode)

    assert refusal.value.failure.metadata == {"field": "session_mode"}
    with pytest.raises(InvalidRequest):
        spec(session_mode=mode)


@pytest.mark.req("RT-03")
def test_a_limit_of_zero_means_the_hosts_own() -> None:
    assert Capabilities(targets=("agent",)).max_concurrency == 0
    with pytest.raises(InvalidRequest, match="max_concurrency is -1"):
        Capabilities(targets=("agent",), max_concurrency=-1)


@pytest.mark.req("RT-03")
def test_capabilities_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Capabilities(targets=("agent",)).max_concurrency = 5  # type: ignore[misc]


@pytest.mark.parametrize("value", ["good-id_01", "a", "0", "A.b-c_d", "x" * 128])
def test_an_id_of_safe_characters_is_taken(value: str) -> None:
    check_id(value, name="run_id")


HOSTILE = (
    "../../outside", "..", ".", "-rf", "--dangerously-skip-permissions", "line1\nline2", "nul\0byte", "", "a" * 129,
    "a" * 5000, "/absolute/path", "good\n", "a b", "ä", "a/b", "a'b", "\u202e", "_a", ".hidden",
)  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE)
def test_an_id_that_could_mean_something_else_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_id(value, name="session_id")

    failure = refusal.value.failure
    assert dict(failure.metadata) == {"field": "session_id"}
    assert failure.message.startswith("session_id")
    assert "use 1 to 128 of" in failure.message
    assert len(failure.message) < 400


@pytest.mark.req("RT-01")
@pytest.mark.parametrize("kind", [ExecutionSpec, RunRequest, Capabilities])
def test_no_field_is_named_after_a_wire_or_a_host(kind: type) -> None:
    names = {field.name for field in fields(kind)}

    assert not [name for name in names if any(word in name for word in ("node", "edge", "wire", "grpc", "proto"))]


def test_thaw_is_the_twin_of_freeze() -> None:
    frozen: Mapping[str, Any] = spec(policy=NESTED).policy

    assert thaw(frozen) == NESTED
