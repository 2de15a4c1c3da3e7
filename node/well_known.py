"""Protobuf's well-known types as the plain values of Python, without a change of meaning on the way.

A Struct makes a double of every number and a Duration counts in nanoseconds, so both directions check instead of
rounding in silence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.struct_pb2 import Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from runtime.failure import InvalidRequest
from runtime.types import thaw

NS_PER_S = 1_000_000_000
_EXACT_INT = 1 << 53  # beyond it, doubles skip integers


def timestamp_to_wire(time_ns: int) -> Timestamp:
    """UTC nanoseconds since the epoch, exactly."""
    seconds, nanos = divmod(time_ns, NS_PER_S)
    return Timestamp(seconds=seconds, nanos=nanos)


def timestamp_from_wire(message: Timestamp) -> int:
    """UTC nanoseconds since the epoch, exactly."""
    return message.seconds * NS_PER_S + message.nanos


def datetime_from_wire(message: Timestamp) -> datetime:
    """Aware UTC, to the microsecond, for people."""
    return message.ToDatetime(tzinfo=UTC)


def duration_from_wire(message: Duration, *, where: str) -> timedelta:
    """Exact to the microsecond; finer parts are rounded away from zero, so that no timeout turns into "none".

    Raises:
        InvalidRequest: the parts have different signs, or no timedelta can hold it.
    """
    seconds, nanos = message.seconds, message.nanos
    if abs(nanos) >= NS_PER_S or seconds > 0 > nanos or seconds < 0 < nanos:
        raise InvalidRequest(f"{where} of {seconds} s and {nanos} ns is not a duration", field=where)
    micros = math.copysign(-(-abs(nanos) // 1000), nanos)
    try:
        return timedelta(seconds=seconds, microseconds=micros)
    except OverflowError:
        raise InvalidRequest(f"{where} of {seconds} s is beyond any clock; use 0 for none", field=where) from None


def struct_from_wire(message: Struct, *, where: str) -> dict[str, Any]:
    """*message* as a plain dict; whole numbers become ints, as they were before a Struct made doubles of them.

    Raises:
        InvalidRequest: a value is unset or not finite; the message names it, beginning with *where*.
    """
    return {key: _value_from_wire(value, f"{where}.{key}") for key, value in message.fields.items()}


def _value_from_wire(value: Value, where: str) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "struct_value":
        return struct_from_wire(value.struct_value, where=where)
    if kind == "list_value":
        return [_value_from_wire(item, f"{where}[{index}]") for index, item in enumerate(value.list_value.values)]
    if kind == "number_value":
        return _number_from_wire(value.number_value, where)
    if kind == "null_value":
        return None
    if kind is None:
        raise InvalidRequest(f"{where} holds no value; leave it out or say null", field=where)
    return getattr(value, kind)


def _number_from_wire(number: float, where: str) -> int | float:
    if not math.isfinite(number):
        raise InvalidRequest(f"{where} is {number}; use a finite number", field=where)
    return int(number) if number.is_integer() and abs(number) <= _EXACT_INT else number


def struct_to_wire(value: Mapping[str, Any], *, where: str) -> Struct:
    """*value* as a Struct that reads back as the same value.

    Raises:
        InvalidRequest: it would not, for a large integer or something JSON does not know.
    """
    message, plain = Struct(), thaw(value)
    try:
        message.update(plain)
        same = struct_from_wire(message, where=where) == plain
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{where} cannot be sent: {error}", field=where) from error
    if not same:
        raise InvalidRequest(f"{where} would arrive changed; integers go up to 2^53", field=where)
    return message
