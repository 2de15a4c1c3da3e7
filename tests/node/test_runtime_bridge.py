from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given
from hypothesis import strategies as st

from node import bridge_parts, bridge_views
from node import runtime_bridge as bridge
from node.pb import node_pb2
from runtime.events import (
    MESSAGE_ID,
    Activity,
    EventType,
    FailureRecord,
    Notice,
    PermissionRequest,
    Plan,
    PlanEntry,
    RateLimit,
    RuntimeEvent,
    ToolCall,
    ToolResult,
    Usage,
)
from runtime.failure import DecodeError, Failure, FailureCode, InvalidRequest, decode_failure, encode_failure
from runtime.types import RunRequest, SessionMode, parse_session_mode

ACTIVITIES: tuple[Activity, ...] = (
    ToolCall(call_id="c1", name="read", input_json='{"a":1}'),
    ToolResult(call_id="c1", output="text", is_error=True),
    Plan(entries=(PlanEntry(text="first", status="completed"), PlanEntry(text="second"))),
    Plan(),
    RateLimit(status="warning", window="5h", used_percent=0.0, resets_at=1_700_000_000),
    RateLimit(status="ok"),
    PermissionRequest(
        request_id="q1", tool="Bash", input_json="{}", reason="outside", expires_at_ns=1_700_000_000_000_000_000
    ),
    PermissionRequest(request_id="q2", tool="", input_json="{}", reason="Which colour?", kind="question"),
    PermissionRequest(request_id="q3", tool="", kind="of_a_later_build"),
    Notice(code="retrying", message="once more"),
)


def test_what_an_older_node_was_asked_is_about_a_tool() -> None:
    older = node_pb2.PermissionRequest(request_id="q1", tool="Bash")

    told = bridge_parts.activity_from_wire(node_pb2.Activity(permission_request=older))

    assert told == PermissionRequest(request_id="q1", tool="Bash", kind="tool")


def test_no_answer_is_another_thing_than_an_empty_one() -> None:
    none, empty, full = (node_pb2.RespondPermissionRequest() for _ in range(3))
    empty.answer.SetInParent()
    full.answer.update({"colour": "blue", "sizes": ["s"], "count": 2, "is_gift": False})

    told = [bridge_views.content_from_wire(each) for each in (none, empty, full)]

    assert told == [None, {}, {"colour": "blue", "sizes": ["s"], "count": 2, "is_gift": False}]


def event(**fields: Any) -> RuntimeEvent:
    given_fields: dict[str, Any] = {
        "run_id": "r1",
        "type": EventType.DELTA,
        "sequence": 1,
        "time_ns": 1_700_000_000_123_456_789,
    }
    return RuntimeEvent(**(given_fields | fields))


def sent(what: RuntimeEvent, **encoder: Any) -> node_pb2.RunEvent:
    (encoded,) = bridge.EventEncoder(node_id="n1", **encoder).encode(what)
    return node_pb2.RunEvent.FromString(encoded)


# --- requests

FULL = RunRequest(
    run_id="r1",
    adapter="cli",
    target="claude-code",
    session_id="s1",
    session_mode=SessionMode.REQUIRE_EXISTING,
    background=True,
    workspace="/srv/tree",
    policy={"iop": {"silence_timeout_s": 30, "ratio": 0.5}, "deep": [{"a": [1, None, True, "x"]}], "empty": {}},
    input="say hi",
    timeout=timedelta(seconds=90, microseconds=250),
    metadata={"k": "v", "": ""},
)


@pytest.mark.req("NB-02", "RT-06", "RT-34")
@pytest.mark.parametrize("request_", [FULL, RunRequest(target="demo")], ids=["every field", "as typed by hand"])
def test_a_request_arrives_as_it_was_sent(request_: RunRequest) -> None:
    message = node_pb2.RunRequest.FromString(bridge.request_to_wire(request_).SerializeToString())

    assert bridge.request_from_wire(message) == request_


@pytest.mark.req("NB-02")
def test_no_field_of_the_request_is_left_behind() -> None:
    """A field added to the wire must be translated, or named here as one that is not the runtime's."""
    of_the_stream = {"include_activity", "after_sequence"}

    assert {f.name for f in node_pb2.RunRequest.DESCRIPTOR.fields} - of_the_stream == set(RunRequest.__slots__)


@pytest.mark.req("NB-02", "RT-08", "RT-09", "RT-10")
def test_every_session_mode_of_the_wire_has_its_meaning() -> None:
    names: dict[Any, str] = {number: name for name, number in node_pb2.SessionMode.items()}

    modes = {
        name: bridge.request_from_wire(node_pb2.RunRequest(target="t", session_mode=number)).session_mode
        for number, name in names.items()
    }

    assert modes == {
        "SESSION_MODE_UNSPECIFIED": None,
        "SESSION_MODE_CREATE_IF_MISSING": "create_if_missing",
        "SESSION_MODE_REQUIRE_EXISTING": "require_existing",
        "SESSION_MODE_FORK": "fork",
    }


@pytest.mark.req("NB-02", "RT-10")
def test_an_unknown_session_mode_is_named_in_the_refusal() -> None:
    message = node_pb2.RunRequest.FromString(
        node_pb2.RunRequest(target="t", session_id="s").SerializeToString() + b"\x28\x07"
    )

    mode = bridge.request_from_wire(message).session_mode

    assert mode is not None
    with pytest.raises(InvalidRequest, match="SESSION_MODE_7"):
        parse_session_mode(mode)


@pytest.mark.req("RT-10")
def test_a_session_without_a_mode_is_refused_with_the_way_out() -> None:
    with pytest.raises(InvalidRequest, match="SESSION_MODE_CREATE_IF_MISSING or SESSION_MODE_REQUIRE_EXISTING"):
        bridge.request_from_wire(node_pb2.RunRequest(target="t", session_id="s"))


@pytest.mark.req("RT-07", "NB-02")
@pytest.mark.parametrize(
    ("seconds", "nanos", "expected"),
    [
        (0, 0, timedelta(0)),
        (1, 500_000_000, timedelta(seconds=1.5)),
        (-2, -1000, timedelta(seconds=-2, microseconds=-1)),
        (0, 1, timedelta(microseconds=1)),
        (0, -1, timedelta(microseconds=-1)),
    ],
)
def test_a_timeout_keeps_its_value_and_its_sign(seconds: int, nanos: int, expected: timedelta) -> None:
    """Rounded away from zero: one nanosecond must not become "no deadline"."""
    message = node_pb2.RunRequest(target="t", timeout=Duration(seconds=seconds, nanos=nanos))

    assert bridge.request_from_wire(message).timeout == expected


@pytest.mark.req("RT-07")
@pytest.mark.parametrize(("seconds", "nanos"), [(1, -1), (-1, 1), (0, 1_000_000_000), (1 << 62, 0)])
def test_a_timeout_that_is_no_duration_is_refused(seconds: int, nanos: int) -> None:
    message = node_pb2.RunRequest(target="t", timeout=Duration(seconds=seconds, nanos=nanos))

    with pytest.raises(InvalidRequest, match="timeout"):
        bridge.request_from_wire(message)


@pytest.mark.req("RT-34")
def test_whole_numbers_of_a_policy_are_integers() -> None:
    policy = Struct()
    policy.update({"n": 3, "f": 2.5, "big": 1e300})

    found = bridge.request_from_wire(node_pb2.RunRequest(target="t", policy=policy)).policy

    assert found == {"n": 3, "f": 2.5, "big": 1e300}
    assert [type(found[key]) for key in ("n", "f", "big")] == [int, float, float]


@pytest.mark.req("RT-34")
@pytest.mark.parametrize("value", [Value(number_value=float("nan")), Value(number_value=float("inf")), Value()])
def test_a_policy_value_without_meaning_is_refused_by_name(value: Value) -> None:
    message = node_pb2.RunRequest(target="t")
    message.policy.fields["a"].list_value.values.append(value)

    with pytest.raises(InvalidRequest, match=r"policy\.a\[0\]"):
        bridge.request_from_wire(message)


@pytest.mark.req("RT-34")
@pytest.mark.parametrize("value", [2**53 + 1, {1, 2}, b"x"])
def test_a_policy_that_would_arrive_changed_is_not_sent(value: Any) -> None:
    with pytest.raises(InvalidRequest, match="policy"):
        bridge.request_to_wire(RunRequest(target="t", policy={"a": value}))


@pytest.mark.req("NB-06")
def test_a_request_with_half_a_surrogate_pair_is_not_sent() -> None:
    with pytest.raises(InvalidRequest, match="surrogates"):
        bridge.request_to_wire(RunRequest(target="t", input="\ud800"))


# --- events


@pytest.mark.req("NB-05", "RT-13", "BAN-16")
@pytest.mark.parametrize("type_", list(EventType))
def test_every_event_type_keeps_its_word(type_: EventType) -> None:
    activity = ACTIVITIES[0] if type_ is EventType.ACTIVITY else None

    message = sent(event(type=type_, activity=activity))

    assert message.type == type_.value
    assert bridge.event_from_wire(message).type is type_


@pytest.mark.req("NB-05")
def test_an_unknown_runtime_type_cannot_be_sent() -> None:
    with pytest.raises(bridge_parts.Untranslatable, match="progress"):
        sent(event(type="progress"))


@pytest.mark.req("NB-05")
def test_an_unknown_wire_type_is_a_visible_failure() -> None:
    with pytest.raises(bridge_parts.Untranslatable, match="progress"):
        bridge.event_from_wire(node_pb2.RunEvent(type="progress", sequence=3))


@pytest.mark.req("NB-05")
def test_an_unknown_activity_is_a_visible_failure() -> None:
    with pytest.raises(bridge_parts.Untranslatable):
        bridge.event_from_wire(node_pb2.RunEvent(type="activity", activity=node_pb2.Activity()))


@pytest.mark.req("RT-13", "NB-05")
@pytest.mark.parametrize("activity", ACTIVITIES, ids=lambda a: type(a).__name__)
def test_an_activity_survives_the_wire(activity: Activity) -> None:
    message = node_pb2.Activity.FromString(bridge_parts.activity_to_wire(activity).SerializeToString())

    assert bridge_parts.activity_from_wire(message) == activity


@pytest.mark.req("NB-05")
def test_every_case_of_the_activity_has_a_runtime_value() -> None:
    cases = {field.name for field in node_pb2.Activity.DESCRIPTOR.fields}

    assert cases == {bridge_parts.activity_to_wire(activity).WhichOneof("kind") for activity in ACTIVITIES}


@pytest.mark.req("NB-06")
def test_each_text_stays_in_its_own_field() -> None:
    failure = FailureRecord(code="refused", message="no", retryable=False)

    texts = {
        type_: (message.delta, message.message, message.error)
        for type_, message in {
            "delta": sent(event(delta="d")),
            "complete": sent(event(type=EventType.COMPLETE, message="m")),
            "error": sent(event(type=EventType.ERROR, error="e", failure=failure)),
            "start": sent(event(type=EventType.START)),
        }.items()
    }

    assert texts == {"delta": ("d", "", ""), "complete": ("", "m", ""), "error": ("", "", "e"), "start": ("", "", "")}


@pytest.mark.req("NB-07", "RT-29")
@pytest.mark.parametrize(
    "usage",
    [None, Usage(), Usage(input_tokens=0, cost_usd=0.0), Usage(**dict.fromkeys(Usage.__struct_fields__, 5))],
    ids=["none", "empty", "zeros", "all"],
)
def test_absent_usage_is_not_zero_usage(usage: Usage | None) -> None:
    message = sent(event(type=EventType.COMPLETE, usage=usage))

    assert message.HasField("usage") is (usage is not None)
    assert bridge.event_from_wire(message).usage == usage


@pytest.mark.req("NB-07")
def test_a_count_that_no_counter_reached_does_not_break_the_stream() -> None:
    """The terminal of a run must be readable for ever, whatever number the agent printed."""
    message = sent(event(type=EventType.COMPLETE, usage=Usage(input_tokens=2**70, output_tokens=2)))

    assert bridge.event_from_wire(message).usage == Usage(output_tokens=2)


@pytest.mark.req("NB-08", "RT-18")
@pytest.mark.parametrize("time_ns", [0, 1, 999_999_999, 1_700_000_000_123_456_789, 4_102_444_800_000_000_001])
def test_the_timestamp_is_exact(time_ns: int) -> None:
    message = sent(event(time_ns=time_ns))

    assert message.timestamp.ToNanoseconds() == time_ns
    assert bridge.event_from_wire(message).time_ns == time_ns


@pytest.mark.req("NB-09", "RT-33")
def test_identities_stand_on_every_event() -> None:
    encoder = bridge.EventEncoder(node_id="n1")
    run = [
        event(type=EventType.START, sequence=1, session_id="s1", background=True),
        event(type=EventType.DELTA, sequence=2, session_id="s1", background=True, delta="x"),
        event(type=EventType.COMPLETE, sequence=3, session_id="s1", background=True, message="x"),
    ]

    messages = [node_pb2.RunEvent.FromString(piece) for one in run for piece in encoder.encode(one)]

    assert [(m.run_id, m.session_id, m.background, m.node_id) for m in messages] == [("r1", "s1", True, "n1")] * 3


@pytest.mark.req("NB-10", "NB-11")
@pytest.mark.parametrize("code", list(FailureCode))
def test_every_failure_is_prose_in_error_and_typed_in_failure(code: FailureCode) -> None:
    message = sent(event(type=EventType.ERROR, failure=FailureRecord.of(Failure(code=code))))

    assert message.error.strip()
    assert message.failure.code == code.value


@pytest.mark.req("NB-10")
def test_an_error_without_a_reason_still_says_something() -> None:
    assert sent(event(type=EventType.ERROR)).error.strip()


@pytest.mark.req("NB-11")
def test_no_field_can_be_read_as_a_failure_envelope() -> None:
    envelope = encode_failure(Failure(code=FailureCode.REFUSED, message="no")).decode()
    failure = FailureRecord(code="refused", message=envelope, retryable=False)

    message = sent(event(type=EventType.ERROR, error=envelope, failure=failure))

    for text in (message.error, message.failure.message):
        with pytest.raises(DecodeError):
            decode_failure(text.encode())
        with pytest.raises(json.JSONDecodeError):
            json.loads(text)


@pytest.mark.req("FAIL-04")
def test_a_failure_of_the_future_keeps_its_code() -> None:
    record = FailureRecord(code="quota_v9", message="spent", retryable=True, metadata={"k": "v"})

    assert bridge_parts.failure_from_wire(bridge_parts.failure_to_wire(record)) == record


@pytest.mark.req("NB-06")
def test_text_that_no_utf8_can_hold_is_replaced() -> None:
    bad = event(delta="a\ud800b", metadata={MESSAGE_ID: "m\udfff"})

    message = sent(bad)

    assert (message.delta, dict(message.metadata)) == ("a\ufffdb", {MESSAGE_ID: "m\ufffd"})


@pytest.mark.req("NB-06")
@pytest.mark.parametrize("text", ["x" * (1 << 20), "é" * (1 << 19)], ids=["ascii", "two bytes"])
def test_a_message_of_one_mebibyte_is_sent(text: str) -> None:
    message = sent(event(type=EventType.COMPLETE, message=text, metadata={"k": "v"}))

    assert message.message == text
    assert dict(message.metadata) == {"k": "v"}


@pytest.mark.req("NB-06")
def test_a_longer_message_is_named_by_size_and_hash() -> None:
    text = "é" * (1 << 19) + "x"
    encoded = text.encode()

    message = sent(event(type=EventType.COMPLETE, message=text, metadata={"k": "v"}))

    assert message.message == ""
    assert dict(message.metadata) == {
        "k": "v",
        "message_bytes": str(len(encoded)),
        "message_sha256": hashlib.sha256(encoded).hexdigest(),
    }


@pytest.mark.req("NB-02")
def test_each_event_says_what_came_before_it_on_this_stream() -> None:
    encoder = bridge.EventEncoder(node_id="n1", after_sequence=4)

    covered = [
        (m.previous_sequence, m.sequence)
        for sequence in (5, 6, 9)  # 7 and 8 are merged into 9, or filtered out
        for m in map(node_pb2.RunEvent.FromString, encoder.encode(event(sequence=sequence)))
    ]

    assert covered == [(4, 5), (5, 6), (6, 9)]


# --- the encoder against the obvious way of doing it

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
metadata = st.dictionaries(st.sampled_from([MESSAGE_ID, "recovered", "ключ"]), text, max_size=3)
int64 = st.integers(0, 2**63 - 1)
usages = st.builds(
    Usage, input_tokens=st.none() | int64, output_tokens=st.none() | int64, cost_usd=st.none() | st.floats(0, 10)
)
failures = st.builds(FailureRecord, code=st.sampled_from(list(FailureCode)).map(str), message=text.map(lambda t: "m" + t),
                     retryable=st.booleans(), metadata=st.dictionaries(text, text, max_size=2))  # fmt: skip
events = st.builds(
    RuntimeEvent,
    run_id=st.sampled_from(["r1", "r2"]),
    type=st.sampled_from(list(EventType)),
    sequence=int64,
    time_ns=st.integers(0, 2**62),
    delta=text,
    message=text,
    error=text.map(lambda t: "e" + t),
    usage=st.none() | usages,
    failure=st.none() | failures,
    activity=st.none() | st.sampled_from(ACTIVITIES),
    metadata=metadata,
    session_id=st.sampled_from(["", "s1", "s2"]),
    background=st.booleans(),
)


def plainly(what: RuntimeEvent, previous: int) -> node_pb2.RunEvent:
    message = node_pb2.RunEvent(
        run_id=what.run_id,
        type=what.type.value,
        delta=what.delta,
        message=what.message,
        error=what.error,
        metadata=what.metadata,
        session_id=what.session_id,
        background=what.background,
        node_id="n1",
        sequence=what.sequence,
        previous_sequence=previous,
    )
    message.timestamp.FromNanoseconds(what.time_ns)
    if what.usage is not None:
        fields = {k: v for k, v in msgspec.structs.asdict(what.usage).items() if v is not None}
        message.usage.CopyFrom(node_pb2.Usage(**fields))
    if what.failure is not None:
        message.failure.CopyFrom(node_pb2.Failure(**msgspec.structs.asdict(what.failure)))
    if what.activity is not None:
        message.activity.CopyFrom(bridge_parts.activity_to_wire(what.activity))
    return message


@pytest.mark.req("NB-02", "NB-05", "NB-06", "NB-07", "NB-09")
@given(st.lists(events, max_size=8))
def test_the_encoder_writes_what_a_plain_message_would_say(stream: list[RuntimeEvent]) -> None:
    """Nothing of one event may leak into the next through the parts that are used again."""
    encoder = bridge.EventEncoder(node_id="n1", after_sequence=7)

    previous = 7
    for what in stream:
        (encoded,) = encoder.encode(what)
        assert node_pb2.RunEvent.FromString(encoded) == plainly(what, previous)
        previous = what.sequence


@pytest.mark.req("NB-02", "NB-07")
@given(events)
def test_an_event_arrives_as_it_was_sent(what: RuntimeEvent) -> None:
    (encoded,) = bridge.EventEncoder(node_id="n1").encode(what)

    assert bridge.event_from_wire(node_pb2.RunEvent.FromString(encoded)) == what


@pytest.mark.req("NB-02")
def test_no_field_of_the_event_is_left_behind() -> None:
    of_the_stream = {"node_id", "previous_sequence"}
    of_the_journal = {"offset", "index", "piece"}
    runtime = {"timestamp" if name == "time_ns" else name for name in RuntimeEvent.__struct_fields__}

    assert {f.name for f in node_pb2.RunEvent.DESCRIPTOR.fields} - of_the_stream == runtime - of_the_journal


@pytest.mark.req("NB-03")
def test_the_bridge_looks_nothing_up() -> None:
    """It reaches values and failures of the runtime, and no engine."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(bridge.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}

    assert {name for name in imported if name.startswith(("runtime", "providers"))} == {
        "runtime.events",
        "runtime.failure",
        "runtime.types",
    }
