"""Reading fields of JSON that somebody else wrote: a field is there with the right type, or it was not told.

Vendors drop fields, send null for text and change types between versions; none of that may decide a run's fate. So
every reader here is total, never mistakes "absent" for zero or false, and gives only text that every store and wire
takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import TypeVar

import msgspec

from runtime.events import replacing_invalid

INT64 = 2**63  # beyond it a number is a mistake, and no store takes it
JsonObject = dict[str, object]
Struct = TypeVar("Struct", bound=msgspec.Struct)

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


def storable(value: str) -> str:
    """*value* as :func:`replacing_invalid` makes it, at no cost for the ASCII that most output is."""
    return value if value.isascii() and "\0" not in value else replacing_invalid(value)


def text(source: JsonObject, key: str) -> str:
    """The text at *key*; empty when there is none."""
    value = source.get(key)
    return storable(value) if isinstance(value, str) else ""


def text_or_none(source: JsonObject, key: str) -> str | None:
    """The text at *key*, told apart from an empty one."""
    return text(source, key) if isinstance(source.get(key), str) else None


def integer(source: JsonObject, key: str) -> int | None:
    """The whole number at *key*, also when it is written with a fraction of zero."""
    value = source.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < INT64 else None


def number(source: JsonObject, key: str) -> float | None:
    """The number at *key*."""
    value = source.get(key)
    if isinstance(value, float) and isfinite(value):
        return value
    whole = integer(source, key)
    return None if whole is None else float(whole)


def count(source: JsonObject, key: str) -> int | None:
    """The number of things at *key*: a whole number that is not negative."""
    value = integer(source, key)
    return value if value is not None and value >= 0 else None


def mapping(source: JsonObject, key: str) -> JsonObject:
    """The object at *key*; empty when there is none."""
    value = source.get(key)
    return value if isinstance(value, dict) else {}


def objects(source: JsonObject, key: str) -> Iterator[JsonObject]:
    """The objects in the list at *key*; what is no object is passed over."""
    value = source.get(key)
    return (each for each in value if isinstance(each, dict)) if isinstance(value, list) else iter(())


def texts(source: JsonObject, key: str) -> Iterator[str]:
    """The texts in the list at *key*."""
    value = source.get(key)
    return (replacing_invalid(each) for each in value if isinstance(each, str)) if isinstance(value, list) else iter(())


def identifier(source: JsonObject, key: str) -> str | None:
    """The id at *key*, as :func:`as_identifier` takes it."""
    return as_identifier(source.get(key))


def as_identifier(value: object) -> str | None:
    """*value* if it is an id that may be handed back on a command line: one that looks like no option and no path."""
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else None


def as_json(value: object) -> str:
    """*value*, which came from JSON, as JSON again."""
    try:
        return msgspec.json.encode(value).decode()
    except OverflowError:  # an integer of more than 64 bits
        return json.dumps(value, ensure_ascii=False)


def lenient(source: JsonObject, kind: type[Struct]) -> Struct:
    """A *kind* with those fields of *source* that have the right type; the others keep their defaults."""
    told = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in source:
            try:
                told[field.name] = msgspec.convert(source[field.encode_name], field.type)
            except msgspec.ValidationError:
                pass  # another type than expected is as good as not told
    return kind(**told)


def as_object(value: object) -> JsonObject:
    """*value* when it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
