"""What a caller is told when a call fails: one total table from failure codes to gRPC statuses, and the guard around
every handler.

A status that is not OK means that no run was accepted; how an accepted run ended is told by its events. Statuses are
rich: ``google.rpc.ErrorInfo`` carries the failure code as its reason (domain ``iop.node``) and the failure's metadata,
and ``RetryInfo`` stands where a wait helps. gRPC left to itself would send the text of any exception to the caller, and
would send nothing at all, ever, when a handler ends with a cancellation that is not the call's own. The guard prevents
both.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo  # type: ignore[import-untyped]  # no stubs exist
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs exist
from grpc_status import rpc_status

from runtime.failure import Failure, FailureCode, FailureError

logger = logging.getLogger(__name__)

DOMAIN = "iop.node"
RETRY_AFTER = "retry_after_s"
"""Failure metadata that overrides the advised wait, in seconds."""

# The details travel in HTTP/2 trailers, of which a client takes 8 KiB by default; text is percent-encoded there, up to
# three times its size, and the details hold it once more.
_MESSAGE_BYTES = 1000
_METADATA_BYTES = 2000

_Code, _Status = FailureCode, grpc.StatusCode

STATUS: dict[FailureCode, grpc.StatusCode] = {
    _Code.UNKNOWN: _Status.UNKNOWN,
    _Code.CANCELLED: _Status.CANCELLED,
    _Code.DEADLINE_EXCEEDED: _Status.DEADLINE_EXCEEDED,
    _Code.INVALID_REQUEST: _Status.INVALID_ARGUMENT,
    _Code.TARGET_NOT_FOUND: _Status.NOT_FOUND,
    _Code.SESSION_NOT_FOUND: _Status.NOT_FOUND,
    # Busy is FAILED_PRECONDITION: the caller waits for another run to end. UNAVAILABLE would make gRPC's own retry
    # policies hammer the node, ABORTED would advise to repeat a larger transaction.
    _Code.SESSION_BUSY: _Status.FAILED_PRECONDITION,
    _Code.WORKSPACE_BUSY: _Status.FAILED_PRECONDITION,
    _Code.CAPACITY_EXHAUSTED: _Status.RESOURCE_EXHAUSTED,
    _Code.UNSUPPORTED: _Status.UNIMPLEMENTED,
    # How an execution went wrong halfway; no caller's request is to blame, and neither is the node.
    _Code.PROCESS_FAILED: _Status.ABORTED,
    _Code.OUTPUT_INVALID: _Status.ABORTED,
    _Code.SILENCE_TIMEOUT: _Status.ABORTED,
    _Code.INTERRUPTED: _Status.ABORTED,
    _Code.REFUSED: _Status.FAILED_PRECONDITION,
    _Code.LOST: _Status.DATA_LOSS,
    _Code.PROVIDER_UNREACHABLE: _Status.UNAVAILABLE,
    _Code.PROVIDER_OVERLOADED: _Status.UNAVAILABLE,
    _Code.DELIVERY_UNKNOWN: _Status.UNKNOWN,
    _Code.BUDGET_EXHAUSTED: _Status.RESOURCE_EXHAUSTED,
    _Code.CONFLICT: _Status.ALREADY_EXISTS,
    _Code.NOT_FOUND: _Status.NOT_FOUND,
    # The agent is not logged in; UNAUTHENTICATED would speak of the caller.
    _Code.AUTH_REQUIRED: _Status.FAILED_PRECONDITION,
    _Code.RATE_LIMITED: _Status.RESOURCE_EXHAUSTED,
    _Code.QUOTA_EXHAUSTED: _Status.RESOURCE_EXHAUSTED,
    _Code.MODEL_UNAVAILABLE: _Status.FAILED_PRECONDITION,
    _Code.OUTPUT_LIMIT: _Status.RESOURCE_EXHAUSTED,
    _Code.STORAGE_FULL: _Status.RESOURCE_EXHAUSTED,
    _Code.UNAUTHENTICATED: _Status.UNAUTHENTICATED,
    _Code.PERMISSION_DENIED: _Status.PERMISSION_DENIED,
    _Code.DRAINING: _Status.UNAVAILABLE,
    _Code.CURSOR_OUT_OF_RANGE: _Status.OUT_OF_RANGE,
    _Code.INTERNAL: _Status.INTERNAL,
}

RETRY_AFTER_S: dict[FailureCode, float] = {
    _Code.SESSION_BUSY: 1,
    _Code.WORKSPACE_BUSY: 1,
    _Code.CAPACITY_EXHAUSTED: 1,
    _Code.DRAINING: 2,  # about what the next node needs to serve
    _Code.PROVIDER_UNREACHABLE: 5,
    _Code.PROVIDER_OVERLOADED: 10,
    _Code.RATE_LIMITED: 30,
    _Code.STORAGE_FULL: 60,  # somebody has to make room
}
"""The wait that helps, where one does; a retryable failure that is not listed is worth repeating at once."""

Behaviour = Callable[[Any, Any], Any]


def status_of(failure: Failure) -> Status:
    """*failure* as a rich status, small enough for any client's limit on trailers."""
    code: int = STATUS[failure.code].value[0]
    status = Status(code=code, message=_clip(failure.message, _MESSAGE_BYTES))
    status.details.add().Pack(
        ErrorInfo(reason=failure.code.value, domain=DOMAIN, metadata=_fitting(failure.metadata.items()))
    )
    wait_s = _advised_wait_s(failure)
    if wait_s is not None:
        retry = RetryInfo()
        retry.retry_delay.FromNanoseconds(round(wait_s * 1e9))
        status.details.add().Pack(retry)
    return status


def failure_of(status: Status) -> Failure | None:
    """The failure that a node put into *status*; None when the status came from elsewhere (gRPC itself, a proxy)."""
    info, retry = ErrorInfo(), RetryInfo()
    if not any(detail.Unpack(info) for detail in status.details) or info.domain != DOMAIN:
        return None
    metadata = dict(info.metadata)
    if any(detail.Unpack(retry) for detail in status.details):
        metadata.setdefault(RETRY_AFTER, f"{retry.retry_delay.ToNanoseconds() / 1e9:g}")
    if info.reason in _Code._value2member_map_:
        return Failure(code=_Code(info.reason), message=status.message, metadata=metadata)
    metadata["original_code"] = info.reason
    return Failure(code=_Code.UNKNOWN, message=status.message, retryable=RETRY_AFTER in metadata, metadata=metadata)


def _advised_wait_s(failure: Failure) -> float | None:
    if not failure.retryable:
        return None
    try:
        return min(max(float(failure.metadata[RETRY_AFTER]), 0), 86_400)
    except (KeyError, ValueError):
        return RETRY_AFTER_S.get(failure.code)


def _clip(text: str, limit: int) -> str:
    encoded = text.encode("utf-8", "replace")
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", "ignore") + "…"


def _fitting(items: Any) -> dict[str, str]:
    """The entries that fit, shortened where one is long; a name that does not fit is left out."""
    kept: dict[str, str] = {}
    left = _METADATA_BYTES
    for key, value in items:
        room = left - len(key.encode("utf-8", "replace"))
        if room < 16:
            break
        kept[key] = _clip(value, room)
        left = room - len(kept[key].encode())
    return kept


# --- requests that cannot be read


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands in for a request whose bytes are not one; ``reason`` is the sentence for its sender."""

    reason: str


def deserializer(message_class: type[Message]) -> Callable[[bytes], Message | Malformed]:
    """Reads a request and never raises: gRPC would answer an exception here with INTERNAL and no word of the cause."""

    def read(data: bytes) -> Message | Malformed:
        try:
            return message_class.FromString(data)
        except DecodeError:
            return Malformed(_what_is_wrong(message_class.DESCRIPTOR, data))

    return read


def _what_is_wrong(descriptor: Any, data: bytes) -> str:
    try:
        field = next(_not_utf8(descriptor, data), None)
    except DecodeError:
        field = None
    if field is None:
        return f"the bytes are not a {descriptor.full_name} message"
    return f"{field} of {descriptor.full_name} is not valid UTF-8; text must be UTF-8"


def _not_utf8(descriptor: Any, data: bytes) -> Iterator[str]:
    """Names of the text fields in *data* that hold something else. Read as an empty message, every field is unknown."""
    fields: Any = UnknownFieldSet(Empty.FromString(data))  # iterable, which its stub does not say
    for unknown in fields:
        field = descriptor.fields_by_number.get(unknown.field_number)
        if field is None or not isinstance(unknown.data, bytes):
            continue
        if field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(unknown.data):
            yield field.name
        elif field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
            yield from (f"{field.name}.{name}" for name in _not_utf8(field.message_type, unknown.data))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# --- the guard


class ErrorGuard(grpc.aio.ServerInterceptor):
    """Puts :func:`guarded` around every handler of a server, other people's services included."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        return None if handler is None else guarded(handler)


def guarded(handler: Any) -> Any:
    """*handler*, so that each call ends with a status the caller can use.

    A :class:`FailureError` becomes its status; a :class:`Malformed` request INVALID_ARGUMENT; any other exception, and
    a cancellation that is not the call's own, INTERNAL with an id under which the log has the traceback. The call's own
    cancellation passes through.

    Args:
        handler: a ``grpc.RpcMethodHandler`` whose behaviour is a coroutine function or an async generator function;
            anything else is returned as it is.
    """
    name, make = _KINDS[bool(handler.request_streaming), bool(handler.response_streaming)]
    behaviour = getattr(handler, name)
    if inspect.isasyncgenfunction(behaviour):
        behaviour = _writing(behaviour)
    if not inspect.iscoroutinefunction(behaviour):
        return handler
    return make(_guard(behaviour), handler.request_deserializer, handler.response_serializer)


_KINDS: dict[tuple[bool, bool], tuple[str, Callable[..., Any]]] = {
    (False, False): ("unary_unary", grpc.unary_unary_rpc_method_handler),
    (False, True): ("unary_stream", grpc.unary_stream_rpc_method_handler),
    (True, False): ("stream_unary", grpc.stream_unary_rpc_method_handler),
    (True, True): ("stream_stream", grpc.stream_stream_rpc_method_handler),
}


def _writing(generate: Callable[[Any, Any], AsyncIterator[Any]]) -> Behaviour:
    """A generator as a coroutine that writes: a cancelled write raises in its frame, and ``finally`` runs at once."""

    async def write(request: Any, context: Any) -> None:
        async with aclosing(generate(request, context)) as responses:  # type: ignore[type-var]
            async for response in responses:
                await context.write(response)

    return write


def _guard(behaviour: Behaviour) -> Behaviour:
    async def call(request: Any, context: Any) -> Any:
        if isinstance(request, Malformed):
            failure = Failure(code=FailureCode.INVALID_REQUEST, message=request.reason)
        else:
            try:
                return await behaviour(request, context)
            except FailureError as error:
                failure = error.failure
            except grpc.aio.AbortError:  # the handler has said it itself
                raise
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                failure = _internal(error)
            except (
                grpc.aio.InternalError
            ):  # of gRPC itself: the caller left in the middle of a write, which is no error
                logger.info("a stream broke while it was written")
                failure = Failure(code=FailureCode.INTERNAL, message="the stream broke while it was written")
            except Exception as error:
                failure = _internal(error)
        try:
            await context.abort_with_status(rpc_status.to_status(status_of(failure)))
        except grpc.aio.InternalError:
            logger.info("the caller left before it could be told: %s", failure.code)

    return call


def _internal(error: BaseException) -> Failure:
    error_id = secrets.token_hex(6)
    logger.error("internal error %s", error_id, exc_info=error, extra={"error_id": error_id})
    return Failure(code=FailureCode.INTERNAL, message=f"internal error {error_id}", metadata={"error_id": error_id})
