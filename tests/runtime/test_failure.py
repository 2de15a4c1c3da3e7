from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime import failure as module
from runtime.failure import (
    ENVELOPE_LIMIT_BYTES,
    RETRYABLE,
    CapacityExhausted,
    DeadlineExceeded,
    DecodeError,
    Failure,
    FailureCode,
    FailureError,
    InvalidRequest,
    RunCancelled,
    decode_failure,
    default_message,
    encode_failure,
    failure_from_exception,
)

GOLDEN = {
    "unknown": False,
    "cancelled": False,
    "deadline_exceeded": True,
    "invalid_request": False,
    "target_not_found": False,
    "session_not_found": False,
    "session_busy": True,
    "capacity_exhausted": True,
    "unsupported": False,
    "process_failed": False,
    "output_invalid": False,
    "refused": False,
    "lost": False,
    "provider_unreachable": True,
    "delivery_unknown": False,
    "budget_exhausted": False,
    "silence_timeout": True,
    "interrupted": False,
    "conflict": False,
    "not_found": False,
    "workspace_busy": True,
    "auth_required": False,
    "rate_limited": True,
    "quota_exhausted": False,
    "model_unavailable": False,
    "provider_overloaded": True,
    "output_limit": False,
    "storage_full": True,
    "unauthenticated": False,
    "permission_denied": False,
    "draining": True,
    "cursor_out_of_range": False,
    "internal": False,
}
"""Code and default of ``retryable``, as the specification has them; a change here is a change of the contract."""


def envelope(**fields: Any) -> bytes:
    whole = {"v": 1, "code": "internal", "message": "m", "retryable": False, "metadata": {}} | fields
    return json.dumps(whole).encode()


@pytest.mark.req("FAIL-02", "E-4", "FAIL-06", "FAIL-07")
def test_the_codes_and_their_retryable_are_the_golden_list() -> None:
    assert {code.value: Failure(code=code).retryable for code in FailureCode} == GOLDEN
    assert {code.value for code in RETRYABLE} == {code for code, retryable in GOLDEN.items() if retryable}


@pytest.mark.req("FAIL-02")
def test_codes_are_lower_snake_case() -> None:
    assert all(code.value == code.name.lower() and code.value.replace("_", "").isalpha() for code in FailureCode)


@pytest.mark.req("FAIL-01")
def test_a_failure_is_a_value_of_four_parts() -> None:
    one = Failure(code=FailureCode.REFUSED, message="no", retryable=True, metadata={"a": "b"})
    same = Failure(code=FailureCode.REFUSED, message="no", retryable=True, metadata={"a": "b"})

    assert (one.code, one.message, one.retryable, dict(one.metadata)) == (FailureCode.REFUSED, "no", True, {"a": "b"})
    assert (one, hash(one)) == (same, hash(same))


@pytest.mark.req("FAIL-01")
@pytest.mark.parametrize("code", FailureCode)
@pytest.mark.parametrize("empty", ["", "  \n"])
def test_an_empty_message_becomes_the_codes_own(code: FailureCode, empty: str) -> None:
    message = Failure(code=code, message=empty).message

    assert message == default_message(code) == code.value.replace("_", " ")


@pytest.mark.req("FAIL-01")
def test_metadata_cannot_be_changed_and_does_not_follow_its_source() -> None:
    source = {"a": "b"}
    made = Failure(code=FailureCode.LOST, metadata=source)
    source["a"] = "c"

    assert dict(made.metadata) == {"a": "b"}
    with pytest.raises(TypeError):
        made.metadata["a"] = "c"  # type: ignore[index]


@pytest.mark.req("FAIL-03")
@pytest.mark.parametrize("code", FailureCode)
@pytest.mark.parametrize("retryable", [True, False])
def test_every_code_survives_the_envelope(code: FailureCode, retryable: bool) -> None:
    before = Failure(code=code, message="grüße", retryable=retryable, metadata={"k": "v", "ü": ""})

    assert decode_failure(encode_failure(before)) == before


@pytest.mark.req("FAIL-03", "FAIL-11")
@given(
    message=st.text(max_size=200),
    metadata=st.dictionaries(st.text(max_size=10).filter(lambda k: not k.startswith("original_code")), st.text()),
)
def test_any_text_survives_the_envelope(message: str, metadata: dict[str, str]) -> None:
    before = Failure(code=FailureCode.INTERNAL, message=message, metadata=metadata)
    encoded = encode_failure(before)

    assert decode_failure(encoded) == before
    assert encode_failure(decode_failure(encoded)) == encoded


@pytest.mark.req("FAIL-03")
def test_the_envelope_names_its_version() -> None:
    assert json.loads(encode_failure(Failure(code=FailureCode.LOST)))["v"] == 1


@pytest.mark.req("FAIL-03")
def test_an_unknown_version_keeps_what_it_says() -> None:
    found = decode_failure(envelope(v=9, code="lost", message="m", metadata={"k": "v"}))

    assert found == Failure(code=FailureCode.LOST, message="m", metadata={"k": "v", "envelope_version": "9"})


@pytest.mark.req("FAIL-03")
@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"null", b"[]", b"{}", b'"cancelled"', b"\xff\xfe", envelope(code=7), envelope(metadata={"k": 1}),
        envelope(metadata=None), envelope(retryable="no"), envelope(v="1"), b"{}" + envelope(), b"complete",
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_a_typed_error_and_never_a_success(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_failure(data)


@pytest.mark.req("FAIL-04")
def test_a_code_of_the_future_is_unknown_and_kept() -> None:
    found = decode_failure(envelope(code="quota_v9", message="window spent", retryable=True, metadata={"k": "v"}))

    assert found == Failure(
        code=FailureCode.UNKNOWN,
        message="window spent",
        retryable=True,
        metadata={"k": "v", "original_code": "quota_v9"},
    )


@pytest.mark.req("FAIL-04")
@pytest.mark.parametrize("metadata", [{}, {"k": "v"}, {"original_code": "clash"}])
def test_encoding_a_code_of_the_future_again_loses_nothing(metadata: dict[str, str]) -> None:
    before = envelope(code="quota_v9", message="window spent", retryable=True, metadata=metadata)

    again = encode_failure(decode_failure(before))

    assert json.loads(again) == json.loads(before)
    assert decode_failure(again) == decode_failure(before)


def wrapped(inner: BaseException) -> Exception:
    try:
        try:
            raise inner
        except BaseException as cause:
            raise RuntimeError("a library gave up") from cause
    except RuntimeError as outer:
        return outer


def beside(inner: BaseException) -> Exception:
    try:
        try:
            raise inner
        except BaseException:
            raise ValueError("while handling it")  # noqa: B904  # without "from", on purpose
    except ValueError as outer:
        return outer


@pytest.mark.req("FAIL-05", "FAIL-06")
@pytest.mark.parametrize("around", [lambda e: e, wrapped, beside])
@pytest.mark.parametrize("kind", [RunCancelled, asyncio.CancelledError])
def test_cancellation_of_any_kind_is_cancelled(kind: type[BaseException], around: Any) -> None:
    found = failure_from_exception(around(kind()))

    assert (found.code, found.retryable) == (FailureCode.CANCELLED, False)


@pytest.mark.req("FAIL-07")
@pytest.mark.parametrize("around", [lambda e: e, wrapped, beside])
def test_the_run_deadline_is_deadline_exceeded(around: Any) -> None:
    found = failure_from_exception(around(DeadlineExceeded("too late")))

    assert found == Failure(code=FailureCode.DEADLINE_EXCEEDED, message="too late", retryable=True)


@pytest.mark.req("FAIL-07", "E-15")
@pytest.mark.parametrize("error", [TimeoutError("a socket"), OSError(110, "timed out")])
def test_another_time_out_is_not_the_run_deadline(error: Exception) -> None:
    assert failure_from_exception(error).code is FailureCode.INTERNAL


@pytest.mark.req("FAIL-10")
def test_an_unclassified_error_is_internal_and_says_its_kind() -> None:
    found = failure_from_exception(ZeroDivisionError("division by zero"))

    assert found == Failure(
        code=FailureCode.INTERNAL, message="unexpected ZeroDivisionError: division by zero", retryable=False
    )


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.req("FAIL-10")
def test_an_error_that_cannot_speak_is_still_described() -> None:
    found = failure_from_exception(Unspeakable())

    assert found == Failure(code=FailureCode.INTERNAL, message="unexpected Unspeakable")


def test_a_chain_that_bites_its_tail_ends() -> None:
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one

    assert failure_from_exception(one).message == "unexpected ValueError: one"


SECRETS = (
    "hunter2hunter2", "sk-ant-REDACTME0123456789", "eyJhbGciOiJI.eyJzdWIiOiIx.sig", "build.corp", "10.1.2.3", "alice",
    "ghp_0123456789abcdef0123", "AKIA0123456789ABCDEF",
)  # fmt: skip
HOSTILE = (
    "GET https://alice:hunter2hunter2@api.example/v1 failed",
    "headers: Authorization: Bearer sk-ant-REDACTME0123456789",
    "cannot connect to build.corp:8443 (10.1.2.3)",
    "token eyJhbGciOiJI.eyJzdWIiOiIx.sig was refused",
    "api_key=hunter2hunter2&x=1",
    "git push https://ghp_0123456789abcdef0123@github.example",
    "AKIA0123456789ABCDEF is over its quota",
    "x" * 5000 + " Bearer sk-ant-REDACTME0123456789",
)


@pytest.mark.req("FAIL-08")
@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize(
    "make",
    [
        lambda text: failure_from_exception(RuntimeError(text)),
        lambda text: failure_from_exception(wrapped(InvalidRequest(text, detail=text))),
        lambda text: Failure(code=FailureCode.PROCESS_FAILED, message=text, metadata={"stderr": text}),
        lambda text: decode_failure(envelope(message=text, metadata={"k": text})),
        lambda text: FailureError.of(Failure(code=FailureCode.LOST, message=text, metadata={"k": text})).failure,
    ],
)
def test_a_failure_never_holds_what_a_hostile_error_said(make: Any, text: str) -> None:
    found = encode_failure(make(text)).decode()

    assert [secret for secret in SECRETS if secret in found] == []


@pytest.mark.req("FAIL-08")
def test_the_text_of_a_failure_is_bounded() -> None:
    found = Failure(code=FailureCode.INTERNAL, message="m" * 100_000, metadata={"k": "v" * 100_000})

    assert (len(found.message), len(found.metadata["k"])) == (4096, 1024)


@pytest.mark.req("FAIL-08")
def test_a_secret_across_the_cut_is_gone_as_a_whole() -> None:
    """Cutting first would leave half a token that nothing recognises."""
    text = "x" * (4096 - 20) + " Bearer sk-ant-REDACTME0123456789"

    assert "sk-ant" not in Failure(code=FailureCode.INTERNAL, message=text).message


@pytest.mark.req("FAIL-11")
def test_equal_failures_are_equal_bytes() -> None:
    one = Failure(code=FailureCode.LOST, message="ü", metadata={"b": "2", "a": "1"})
    same = Failure(code=FailureCode.LOST, message="ü", metadata={"a": "1", "b": "2"})

    assert encode_failure(one) == encode_failure(same)
    assert encode_failure(one) == (
        '{"code":"lost","message":"ü","metadata":{"a":"1","b":"2"},"retryable":false,"v":1}'.encode()
    )


@pytest.mark.req("FAIL-11")
@pytest.mark.parametrize("metadata", [{"k": 1}, {"k": None}, {1: "v"}])
def test_metadata_that_is_no_text_cannot_be_made(metadata: Any) -> None:
    with pytest.raises(TypeError, match="must be a string"):
        Failure(code=FailureCode.LOST, metadata=metadata)


def test_only_a_failure_can_be_encoded() -> None:
    with pytest.raises(TypeError, match="only a Failure"):
        encode_failure(RuntimeError("another family"))  # type: ignore[arg-type]


@pytest.mark.req("FAIL-12")
def test_an_oversized_envelope_is_refused_by_size() -> None:
    data = envelope(message="m" * ENVELOPE_LIMIT_BYTES)

    with pytest.raises(DecodeError, match=str(ENVELOPE_LIMIT_BYTES)):
        decode_failure(data)


@pytest.mark.req("FAIL-12")
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_is_a_typed_error(opening: bytes) -> None:
    data = b'{"metadata":' + opening * 10_000

    with pytest.raises(DecodeError):
        decode_failure(data)


@pytest.mark.req("FAIL-12")
@pytest.mark.parametrize(
    "data",
    [
        b'{"v":1,"code":"internal","code":"cancelled","message":"m","retryable":false,"metadata":{}}',
        b'{"v":1,"code":"internal","message":"m","retryable":false,"metadata":{"k":"a","k":"b"}}',
    ],
)
def test_a_repeated_key_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match="repeats the key"):
        decode_failure(data)


def kinds() -> list[type[FailureError]]:
    found = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, FailureError)]
    return [kind for kind in found if kind is not FailureError]


@pytest.mark.req("FAIL-01", "RT-05")
@pytest.mark.parametrize("kind", kinds())
def test_every_exception_carries_the_failure_of_its_code(kind: type[FailureError]) -> None:
    error = kind("said", where="here")

    assert error.failure == Failure(code=kind.code, message="said", metadata={"where": "here"})
    assert str(error) == "said"


def test_an_exception_of_a_failure_carries_exactly_that() -> None:
    failure = Failure(code=FailureCode.RATE_LIMITED, message="later", metadata={"retry_after_s": "3"})

    assert FailureError.of(failure).failure is failure
    assert failure_from_exception(CapacityExhausted.of(failure)) is failure
