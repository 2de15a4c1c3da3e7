"""Reads the catalog file, strictly: every mistake is named with file, line, key and the value found, all in one report."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError

from providers.catalog import schema
from providers.catalog.document import Document, NotADocument, read_document, shown
from providers.catalog.references import check_references
from providers.catalog.schema import CatalogFile
from runtime.failure import FailureCode, FailureError
from runtime.redact import MASK, clip, scrub

FILE_NAME = "iop-agent.providers.yaml"
_REPORTED = 12
_SHOWN_CHARS = 80


class CatalogInvalid(FailureError):
    """The catalog file cannot be used; the message names file, line, place, value and what is wanted."""

    code = FailureCode.INVALID_REQUEST


class _Named(Protocol):
    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=_Named)
Problem = tuple[int, str]
"""A line (from 1), and what is wrong there."""


def load_shipped() -> CatalogFile:
    """The catalog that ships with the package."""
    return parse_catalog(files("providers.catalog").joinpath(FILE_NAME).read_bytes(), name=FILE_NAME)


def load_catalog(path: Path) -> CatalogFile:
    """The catalog at *path*.

    Raises:
        CatalogInvalid: it cannot be read, or is not a catalog.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CatalogInvalid(f"catalog {path} cannot be read: {error.strerror}") from error
    return parse_catalog(data, name=str(path))


def parse_catalog(data: bytes, *, name: str) -> CatalogFile:
    """The catalog in *data*, checked as a whole and brought into ID order (by code point).

    Raises:
        CatalogInvalid: it is none; every problem found is in the message.
    """
    try:
        document = read_document(data)
    except NotADocument as error:
        raise _invalid(name, error.problems) from error
    problems = list(_secrets(data, document))
    try:
        catalog = CatalogFile.model_validate(document.value)
    except ValidationError as error:
        raise _invalid(name, problems + _explained(error, document)) from None
    problems += [(document.line(path), message) for path, message in check_references(catalog)]
    if problems:
        raise _invalid(name, problems)
    return CatalogFile(
        version=catalog.version,
        providers=_ordered(catalog.providers),
        models=_ordered(catalog.models),
        profiles=_ordered(catalog.profiles),
    )


def catalog_hash(catalog: CatalogFile) -> str:
    """Names what *catalog* says; equal catalogs, however they were written, have equal hashes."""
    return hashlib.sha256(catalog.model_dump_json().encode()).hexdigest()[:16]


def _ordered(items: Iterable[N]) -> tuple[N, ...]:
    return tuple(sorted(items, key=lambda item: item.id))


def _invalid(name: str, problems: Iterable[Problem]) -> CatalogInvalid:
    found = sorted(dict.fromkeys(problems))
    lines = [f"{name}, line {line}: {message}" for line, message in found[:_REPORTED]]
    if len(found) > _REPORTED:
        lines.append(f"and {len(found) - _REPORTED} more")
    return CatalogInvalid("\n".join(lines))


# --- secrets: found wherever they stand, comments included, and never repeated in the message


def _secrets(data: bytes, document: Document) -> Iterator[Problem]:
    named = set()
    for path, text in _texts(document.value, ()):
        if _holds_secret(text):
            named.add(document.line(path))
            yield document.line(path), f"{shown(path)} looks like a credential; name a source for it in node.yaml"
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), 1):
        if number not in named and _holds_secret(line):
            yield number, "this line holds what looks like a credential; it does not belong here, nor in a comment"


def _holds_secret(text: str) -> bool:
    return MASK in scrub(text) and MASK not in text


def _texts(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


# --- mistakes of shape


def _explained(error: ValidationError, document: Document) -> list[Problem]:
    found = []
    for one in error.errors(include_url=False):
        path = tuple(one["loc"])
        found.append((document.line(path), f"{shown(path)}: {_message(one, path)}"))
    return found


def _message(one: Any, path: tuple[str | int, ...]) -> str:
    if one["type"] == "extra_forbidden":
        near = difflib.get_close_matches(str(path[-1]), _field_names(), n=1)
        if near == [path[-1]]:
            return "is not known here; it belongs into another place"
        return "is not known here" + (f"; did you mean {near[0]}?" if near else "")
    message = str(one["msg"]).removeprefix("Value error, ").replace("a valid tuple", "a list")
    if one["type"] == "missing":
        return "is missing"
    if not isinstance(one["input"], str | int | float | bool | None):
        kind = "a mapping" if isinstance(one["input"], dict) else "a list"
        return message if one["type"] == "value_error" else f"{message} (found {kind})"
    is_word = isinstance(one["input"], bool) and one["type"] == "string_type"
    hint = "; YAML reads this word as true or false, quote it" if is_word else ""
    return f"{message} (found {clip(scrub(repr(one['input'])), _SHOWN_CHARS)}{hint})"


def _field_names() -> list[str]:
    models = [m for m in vars(schema).values() if isinstance(m, type) and issubclass(m, BaseModel)]
    return sorted({name for model in models for name in model.model_fields})
