from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo  # type: ignore[import-untyped]  # no stubs exist
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from node import wire_errors
from node.pb import node_pb2
from node.wire_errors import (
    RETRY_AFTER_S,
    STATUS,
    ErrorGuard,
    Malformed,
    deserializer,
    failure_of,
    guarded,
    status_of,
)
from runtime.failure import RETRYABLE, Failure, FailureCode, InvalidRequest, SessionBusy

# --- the table


@pytest.mark.req("NB-16", "FAIL-02")
@pytest.mark.parametrize("code", list(FailureCode))
def test_every_failure_code_has_a_status_that_is_an_error(code: FailureCode) -> None:
    assert STATUS[code] is not grpc.StatusCode.OK


@pytest.mark.req("NB-16")
def test_the_codes_that_callers_rely_on() -> None:
    relied_on = {
        "invalid_request": "INVALID_ARGUMENT",
        "target_not_found": "NOT_FOUND",
        "session_not_found": "NOT_FOUND",
        "not_found": "NOT_FOUND",
        "session_busy": "FAILED_PRECONDITION",
        "workspace_busy": "FAILED_PRECONDITION",
        "conflict": "ALREADY_EXISTS",
        "capacity_exhausted": "RESOURCE_EXHAUSTED",
        "storage_full": "RESOURCE_EXHAUSTED",
        "cursor_out_of_range": "OUT_OF_RANGE",
        "draining": "UNAVAILABLE",
        "unauthenticated": "UNAUTHENTICATED",
        "permission_denied": "PERMISSION_DENIED",
        "unsupported": "UNIMPLEMENTED",
        "cancelled": "CANCELLED",
        "deadline_exceeded": "DEADLINE_EXCEEDED",
        "internal": "INTERNAL",
        "unknown": "UNKNOWN",
    }

    assert {code: STATUS[FailureCode(code)].name for code in relied_on} == relied_on


@pytest.mark.req("FAIL-01", "FAIL-03")
@pytest.mark.parametrize("code", list(FailureCode))
def test_a_failure_survives_its_status(code: FailureCode) -> None:
    failure = Failure(code=code, message="näher", metadata={"field": "target"})

    found = failure_of(status_of(failure))

    assert found is not None
    kept = {key: value for key, value in found.metadata.items() if key != "retry_after_s"}
    assert (found.code, found.message, kept) == (code, "näher", {"field": "target"})


@pytest.mark.req("FAIL-01")
def test_the_details_name_the_code_and_the_domain() -> None:
    info = ErrorInfo()

    status_of(Failure(code=FailureCode.CONFLICT)).details[0].Unpack(info)

    assert (info.reason, info.domain) == ("conflict", "iop.node")


@pytest.mark.req("FAIL-04")
def test_a_code_of_the_future_is_kept_as_text() -> None:
    status = status_of(Failure(code=FailureCode.CONFLICT))
    status.details[0].Pack(ErrorInfo(reason="quota_v9", domain="iop.node"))

    found = failure_of(status)

    assert found is not None
    assert (found.code, found.metadata["original_code"]) == (FailureCode.UNKNOWN, "quota_v9")


@pytest.mark.req("FAIL-04")
def test_a_status_from_elsewhere_is_no_failure_of_a_node() -> None:
    status = status_of(Failure(code=FailureCode.CONFLICT))
    status.details[0].Pack(ErrorInfo(reason="conflict", domain="proxy.example"))

    assert failure_of(status) is None


@pytest.mark.req("NB-16")
def test_a_wait_is_advised_where_it_helps_and_only_there() -> None:
    advised = {code for code in FailureCode if _advice(Failure(code=code)) is not None}

    assert advised == set(RETRY_AFTER_S)
    assert advised <= RETRYABLE


@pytest.mark.req("NB-16")
def test_the_wait_that_a_failure_tells_is_the_one_advised() -> None:
    told = Failure(code=FailureCode.RATE_LIMITED, metadata={"retry_after_s": "7.5"})
    garbled = Failure(code=FailureCode.RATE_LIMITED, metadata={"retry_after_s": "soon"})

    assert _advice(told) == Duration(seconds=7, nanos=500_000_000)
    assert _advice(garbled) == Duration(seconds=30)


def _advice(failure: Failure) -> Duration | None:
    retry = RetryInfo()
    found = any(detail.Unpack(retry) for detail in status_of(failure).details)
    return retry.retry_delay if found else None


# --- the guard, over a real server


Behave = Callable[[Any, Any], Any]


@asynccontextmanager
async def serving(behave: Behave, *, streams: bool = False) -> AsyncIterator[Any]:
    """A server with one guarded method, and the method as its client sees it. Bytes go through as they are."""
    make = grpc.unary_stream_rpc_method_handler if streams else grpc.unary_unary_rpc_method_handler
    handler = make(behave, deserializer(node_pb2.RunRequest), lambda value: value)
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    generic = grpc.method_handlers_generic_handler("t.T", {"Do": guarded(handler)})
    server.add_generic_rpc_handlers((generic,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel.unary_stream("/t.T/Do") if streams else channel.unary_unary("/t.T/Do")
    finally:
        await server.stop(0)


async def failing(behave: Behave, request: bytes = b"", *, streams: bool = False) -> grpc.aio.AioRpcError:
    async with serving(behave, streams=streams) as call, asyncio.timeout(60):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if streams:
                async for _ in call(request):
                    pass
            else:
                await call(request)
    return caught.value


async def refuse(request: Any, context: Any) -> bytes:
    raise SessionBusy("session s1 is busy", session_id="s1")


async def refuse_midway(request: Any, context: Any) -> AsyncIterator[bytes]:
    yield b"one"
    raise SessionBusy("session s1 is busy", session_id="s1")


async def refuse_after_write(request: Any, context: Any) -> None:
    await context.write(b"one")
    raise SessionBusy("session s1 is busy", session_id="s1")


@pytest.mark.req("NB-16")
@pytest.mark.parametrize(
    ("behave", "streams"),
    [(refuse, False), (refuse_midway, True), (refuse_after_write, True)],
    ids=[
        "unary",
        "generator",
        "writer",
    ],
)
async def test_a_failure_reaches_the_caller_typed(behave: Behave, streams: bool) -> None:
    error = await failing(behave, streams=streams)

    status = rpc_status.from_call(error)
    assert (error.code(), error.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "session s1 is busy")
    assert status is not None
    found = failure_of(status)
    assert found is not None
    assert (found.code, found.metadata["session_id"]) == (FailureCode.SESSION_BUSY, "s1")


@pytest.mark.req("FAIL-10", "FAIL-08")
@pytest.mark.parametrize("streams", [False, True])
async def test_an_unexpected_exception_tells_the_caller_an_id_and_the_log_the_rest(
    streams: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: Any, context: Any) -> bytes:
        raise RuntimeError("secret path /etc/passwd")

    with caplog.at_level(logging.ERROR, logger="node.wire_errors"):
        error = await failing(broken, streams=streams)

    assert error.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in (error.details() or "")
    (record,) = [one for one in caplog.records if one.name == "node.wire_errors"]
    assert record.getMessage() == error.details()
    assert record.exc_info is not None
    assert "secret path" in str(record.exc_info[1])


@pytest.mark.req("NB-16", "FAIL-05")
@pytest.mark.parametrize("streams", [False, True])
async def test_a_stray_cancellation_does_not_hang_the_caller(streams: bool) -> None:
    """Unguarded, no status is ever sent and the caller waits for ever."""

    async def stray(request: Any, context: Any) -> bytes:
        inner = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(inner.cancel)
        await inner
        return b""

    error = await failing(stray, streams=streams)

    assert error.code() is grpc.StatusCode.INTERNAL


@pytest.mark.req("NB-16")
@pytest.mark.parametrize("streams", [False, True])
async def test_the_cancellation_of_the_call_passes_through(streams: bool) -> None:
    began, ended = asyncio.Event(), asyncio.Event()
    raised: list[BaseException] = []

    async def wait(request: Any, context: Any) -> bytes:
        began.set()
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            raised.append(error)
            raise
        finally:
            ended.set()
        return b""

    async with serving(wait, streams=streams) as method, asyncio.timeout(60):
        call = method(b"")
        reading = asyncio.ensure_future(call.read() if streams else call)
        await began.wait()
        call.cancel()
        await ended.wait()
        with pytest.raises(asyncio.CancelledError):
            await reading

    assert [type(error) for error in raised] == [asyncio.CancelledError]


@pytest.mark.req("NB-19")
async def test_a_generator_is_finished_in_its_own_frame_when_its_reader_leaves() -> None:
    """Left to grpc.aio, ``finally`` of a generator cancelled in a write runs when the garbage collector comes by."""
    finished = asyncio.Event()

    async def flood(request: Any, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 65536
        finally:
            finished.set()

    async with serving(flood, streams=True) as method, asyncio.timeout(60):
        call = method(b"")
        await call.read()
        call.cancel()
        await finished.wait()


@pytest.mark.req("NB-16")
async def test_a_handler_that_aborts_itself_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def abort(request: Any, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "its own words")
        return b""

    error = await failing(abort)

    assert (error.code(), error.details()) == (grpc.StatusCode.OUT_OF_RANGE, "its own words")
    assert [record for record in caplog.records if record.name == "node.wire_errors"] == []


@pytest.mark.req("NB-16")
async def test_an_answer_passes_through() -> None:
    async def answer(request: Any, context: Any) -> bytes:
        return b"fine " + bytes(request.target, "utf-8")

    async with serving(answer) as call:
        assert await call(node_pb2.RunRequest(target="t").SerializeToString()) == b"fine t"


@pytest.mark.req("FAIL-08", "NB-16")
async def test_the_largest_failure_fits_into_a_callers_trailers() -> None:
    """A client refuses trailers over 8 KiB and would see RESOURCE_EXHAUSTED instead of the reason."""

    async def verbose(request: Any, context: Any) -> bytes:
        raise InvalidRequest("ü" * 4000, **{f"key{n}": "ü" * 1000 for n in range(20)})

    error = await failing(verbose)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("üüü")


@pytest.mark.req("PKG-06")
async def test_services_of_others_work_under_the_guard() -> None:
    """Reflection is a stream both ways, health a single answer; both are what operators probe with."""
    server = grpc.aio.server(interceptors=[ErrorGuard()], options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    reflection.enable_server_reflection((health.SERVICE_NAME,), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with asyncio.timeout(60), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            state = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            question = reflection_pb2.ServerReflectionRequest(list_services="")
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([question]))
            (answer,) = [one async for one in call]
    finally:
        await server.stop(0)

    assert state.status == health_pb2.HealthCheckResponse.SERVING
    assert [service.name for service in answer.list_services_response.service] == [health.SERVICE_NAME]


# --- requests that cannot be read

TARGET_NOT_UTF8 = b"\x1a\x02\xff\xfe"  # field 3
METADATA_NOT_UTF8 = b"\x5a\x06\x0a\x01k\x12\x01\xff"  # field 11, an entry whose value is not UTF-8


@pytest.mark.req("NB-02", "NB-06")
@pytest.mark.parametrize(
    ("data", "named"),
    [
        (TARGET_NOT_UTF8, "target"),
        (METADATA_NOT_UTF8, "metadata.value"),
        (b"\xff", "not a iop.node.v1.RunRequest"),
        (b"\x1a\x7fshort", "not a iop.node.v1.RunRequest"),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused_by_name(data: bytes, named: str) -> None:
    async def never(request: Any, context: Any) -> bytes:
        raise AssertionError("the handler must not see it")

    error = await failing(never, data)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named in (error.details() or "")
    assert ("UTF-8" in (error.details() or "")) is (data in (TARGET_NOT_UTF8, METADATA_NOT_UTF8))


@pytest.mark.req("NB-02")
def test_a_readable_request_is_read() -> None:
    request = node_pb2.RunRequest(target="t", metadata={"k": "ü"})

    assert deserializer(node_pb2.RunRequest)(request.SerializeToString()) == request
    assert isinstance(deserializer(node_pb2.RunRequest)(b"\xff"), Malformed)


async def test_a_caller_that_is_gone_is_no_error_of_the_node(caplog: pytest.LogCaptureFixture) -> None:
    """Neither when a write to it breaks, nor when there is nobody left to tell."""

    class Gone:
        async def abort_with_status(self, status: Any) -> None:
            raise grpc.aio.InternalError("failed to send")

    async def writes(request: Any, context: Any) -> None:
        raise grpc.aio.InternalError("failed to write")

    with caplog.at_level(logging.INFO, logger="node.wire_errors"):
        await wire_errors._guard(writes)(b"", Gone())

    assert {record.levelname for record in caplog.records} == {"INFO"}
