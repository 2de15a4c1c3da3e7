from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from runtime.failure import Conflict, CursorOutOfRange, FailureCode, FailureError, InvalidRequest
from runtime.records import RunRecord, RunState
from runtime.resolve import (
    Unsupported,
    check_mcp_servers,
    check_policy,
    check_request,
    check_same,
    check_workspace,
    parse_policy,
    run_not_found,
)
from runtime.types import ExecutionSpec, RunRequest, SessionMode

LIMIT = 1000


def refusal_of(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as refusal:
        check_request(RunRequest(**({"target": "agent"} | fields)), max_input_bytes=LIMIT)
    return refusal.value


REFUSED: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"run_id": "../up"}, "run_id", ("run_id", "'../up'", "use 1 to 128 of")),
    ({"run_id": "x" * 129}, "run_id", ("run_id", "'xxx", "use 1 to 128 of")),
    ({"run_id": "a\nb"}, "run_id", ("run_id", "'a\\nb'", "beginning with a letter or digit")),
    ({"session_id": "-rf", "session_mode": "require_existing"}, "session_id", ("session_id", "'-rf'", "use 1 to 128 of")),
    ({"session_id": "s", "session_mode": None}, "session_mode", ("session_mode is not set", "create_if_missing", "require")),
    ({"session_mode": "branch"}, "session_mode", ("session_mode", "'branch'", "use one of create_if_missing")),
    ({"session_mode": "fork"}, "fork_from", ("fork needs fork_from",)),
    ({"fork_from": "s0"}, "fork_from", ("fork_from is given with session_mode create_if_missing",)),
    ({"session_mode": ""}, "session_mode", ("session_mode", "''", "use one of create_if_missing")),
    ({"session_mode": "require_existing"}, "session_id", ("require_existing", "needs a session_id")),
    ({"timeout": timedelta(seconds=-3)}, "timeout", ("timeout", "-3.0 s", "use 0 for none")),
    ({"timeout": timedelta(days=366)}, "timeout", ("timeout", "366 days", "the longest is 365")),
    ({"input": "x" * (LIMIT + 1)}, "input", ("input", "1001 bytes", "limit is 1000", "files in the workspace")),
    ({"input": "ä" * (LIMIT // 2 + 1)}, "input", ("1002 bytes",)),
    ({"workspace": "relative/path"}, "workspace", ("workspace", "'relative/path'", "not an absolute path")),
    ({"workspace": "/nul\0"}, "workspace", ("workspace", "'/nul\\x00'", "not an absolute path")),
    ({"workspace": "/no/such/place"}, "workspace", ("workspace", "'/no/such/place'", "does not exist on this node")),
    ({"workspace": "/dev/null"}, "workspace", ("workspace", "'/dev/null'", "is not a directory")),
    ({"metadata": {"k": 1}}, "metadata", ("metadata", "'k'", "must be a string", "int")),
]  # fmt: skip


@pytest.mark.req("NB-03", "RT-07", "RT-10")
@pytest.mark.parametrize(
    ("fields", "culprit", "said"), REFUSED, ids=[f"{c}-{n}" for n, (_, c, _) in enumerate(REFUSED)]
)
def test_a_bad_request_is_refused_by_thing_value_and_way_out(
    fields: dict[str, Any], culprit: str, said: tuple[str, ...]
) -> None:
    failure = refusal_of(**fields).failure

    assert (failure.code, failure.retryable, failure.metadata["field"]) == (FailureCode.INVALID_REQUEST, False, culprit)
    assert [part for part in said if part not in failure.message] == []


@pytest.mark.req("RT-08", "RT-09")
@pytest.mark.parametrize(
    ("session_id", "mode", "resolved"),
    [
        ("", None, SessionMode.CREATE_IF_MISSING),
        ("", "create_if_missing", SessionMode.CREATE_IF_MISSING),
        ("s", "create_if_missing", SessionMode.CREATE_IF_MISSING),
        ("s", "require_existing", SessionMode.REQUIRE_EXISTING),
    ],
)
def test_the_mode_is_the_one_sent_or_the_only_one_possible(
    session_id: str, mode: str | None, resolved: SessionMode
) -> None:
    request = RunRequest(target="agent", session_id=session_id, session_mode=mode)

    assert check_request(request, max_input_bytes=LIMIT) is resolved


@pytest.mark.req("RT-07")
def test_a_request_at_every_limit_is_taken(tmp_path: Path) -> None:
    request = RunRequest(
        target="agent", run_id="x" * 128, timeout=timedelta(days=365), input="x" * LIMIT, workspace=str(tmp_path)
    )

    check_request(request, max_input_bytes=LIMIT)


def test_an_empty_workspace_means_the_default() -> None:
    check_workspace("")


@pytest.mark.parametrize(
    ("policy", "silence_s"),
    [
        ({}, None), ({"other": {"iop": 1}}, None), ({"iop": {}}, None), ({"iop": {"silence_timeout_s": 3}}, 3.0),
        ({"iop": {"silence_timeout_s": 0.5}}, 0.5),
    ],
)  # fmt: skip
def test_the_hosts_own_part_of_the_policy(policy: dict[str, Any], silence_s: float | None) -> None:
    assert parse_policy(RunRequest(target="t", policy=policy).policy).silence_timeout_s == silence_s


@pytest.mark.parametrize(
    ("policy", "field", "said"),
    [
        ({"iop": 3}, "policy.iop", "must be an object"),
        ({"iop": [1]}, "policy.iop", "must be an object"),
        ({"iop": {"silence": 3}}, "policy.iop.silence", "is unknown; known: silence_timeout_s, budget, mcp_servers"),
        *(
            ({"iop": {"silence_timeout_s": value}}, "policy.iop.silence_timeout_s", "must be a positive number")
            for value in (0, -1, "3", True, None, float("nan"), float("inf"), [3])
        ),
    ],
)
def test_a_bad_part_of_the_policy_is_named(policy: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refusal:
        parse_policy(RunRequest(target="t", policy=policy).policy)

    assert refusal.value.failure.metadata["field"] == field


@pytest.mark.req("RT-34")
def test_what_the_provider_does_not_declare_is_refused() -> None:
    check_policy({"iop": {}, "model": "m"}, frozenset({"model"}), target="agent")

    with pytest.raises(
        InvalidRequest, match=r"policy.effort is not understood by target 'agent'; declared: model"
    ) as no:
        check_policy({"model": "m", "effort": 1}, frozenset({"model"}), target="agent")
    assert no.value.failure.metadata["field"] == "policy.effort"


def record(*, spec: ExecutionSpec | None) -> RunRecord:
    return RunRecord(
        ulid="u", principal="local", run_id="r1", digest="d1", spec=spec, session_id="s", accepted_ns=1, boot_id="b",
        state=RunState.ERROR,
    )  # fmt: skip


SPEC = ExecutionSpec(run_id="r1", adapter="a", target="t")


@pytest.mark.req("E-12")
@pytest.mark.parametrize("spec", [SPEC, None])
def test_the_same_id_with_another_request_is_a_conflict(spec: ExecutionSpec | None) -> None:
    with pytest.raises(Conflict, match="'r1' exists with another request; use a new run_id"):
        check_same(record(spec=spec), "d2")


@pytest.mark.req("E-12")
def test_the_same_request_again_is_the_same_run() -> None:
    check_same(record(spec=SPEC), "d1")


@pytest.mark.req("E-12")
def test_of_a_trimmed_run_only_the_outcome_is_told() -> None:
    with pytest.raises(CursorOutOfRange, match="ended as error") as refusal:
        check_same(record(spec=None), "d1")

    assert dict(refusal.value.failure.metadata) == {"run_id": "r1", "outcome": "error"}


def test_an_unknown_run_is_not_found_by_name() -> None:
    refusal: FailureError = run_not_found("r9")

    assert refusal.failure.code is FailureCode.NOT_FOUND
    assert "'r9'" in refusal.failure.message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_does_not_have_is_refused_with_its_place(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"policy\.agent\.limits\[1\] is"):
        check_request(RunRequest(target="t", policy={"agent": {"limits": [1, value]}}), max_input_bytes=100)


@pytest.mark.parametrize("policy", [{}, {"iop": {"mcp_servers": []}}])
@pytest.mark.parametrize("served", [None, frozenset[str](), frozenset({"a"})])
def test_a_request_without_servers_is_served_by_everyone(policy: dict[str, Any], served: frozenset[str] | None) -> None:
    check_mcp_servers(policy, served, target="agent")


def test_servers_that_a_target_can_be_given_are_named() -> None:
    policy = {"iop": {"mcp_servers": ["b", "a"]}}
    check_mcp_servers(policy, frozenset({"a", "b", "c"}), target="agent")

    assert parse_policy(policy).mcp_servers == ("b", "a")
    with pytest.raises(Unsupported, match=r"'agent' cannot be given MCP servers; leave out policy\.iop\.mcp_servers"):
        check_mcp_servers(policy, None, target="agent")
    with pytest.raises(InvalidRequest, match=r"names 'b', which node\.yaml does not declare; declared: a, c"):
        check_mcp_servers(policy, frozenset({"c", "a"}), target="agent")
    with pytest.raises(InvalidRequest, match=r"declared: none"):
        check_mcp_servers(policy, frozenset(), target="agent")


@pytest.mark.parametrize("value", ["a", 3, True, None, {"a": 1}, [1], [""], ["a", "a"], [["a"]]])
def test_what_is_no_list_of_names_is_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="give a list of different names") as refusal:
        parse_policy(RunRequest(target="t", policy={"iop": {"mcp_servers": value}}).policy)

    assert refusal.value.failure.metadata["field"] == "policy.iop.mcp_servers"
