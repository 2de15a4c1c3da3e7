"""One YAML document as plain values, and the line on which each of them stands.

YAML is lax where a catalog must not be: a repeated key wins silently, an alias multiplies, a tag constructs, a second
document is forgotten. The document is built from the parser's events, so each of these is refused where it stands, before
anything is built of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

LIMIT_BYTES = 1 << 20
DEPTH_LIMIT = 24
"""A catalog is six levels deep; the limit keeps a hostile one off the stack."""

Path = tuple[str | int, ...]

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the pure parser takes eight times as long
_RESOLVER = yaml.SafeLoader("")
_TAG = "tag:yaml.org,2002:"
_TYPED = {_TAG + kind for kind in ("bool", "int", "float", "null")}


class NotADocument(Exception):
    """The text is not the one document it should be; ``problems`` are lines (from 1) and what is wrong there."""

    def __init__(self, *problems: tuple[int, str]) -> None:
        super().__init__("; ".join(f"line {line}: {message}" for line, message in problems))
        self.problems = problems


@dataclass(slots=True)
class Document:
    """The value and, by path, the lines (from 1) of everything in it; a mapping's member stands where its key does."""

    value: Any = None
    lines: dict[Path, int] = field(default_factory=dict)

    def line(self, path: Path) -> int:
        """The line of *path*, or of what is nearest above it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read_document(data: bytes) -> Document:
    """The one document in *data*: UTF-8, with or without a byte order mark.

    Raises:
        NotADocument: no document or several, not YAML, too large or deep, an alias, a tag, or a repeated key.
    """
    if len(data) > LIMIT_BYTES:
        raise NotADocument((1, f"has {len(data)} bytes; the limit is {LIMIT_BYTES}"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NotADocument((data[: error.start].count(b"\n") + 1, "is not UTF-8")) from error
    try:
        return _only(yaml.parse(text, Loader=_PARSER))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise NotADocument((line, f"is not YAML: {error.problem or error.context}")) from error
    except yaml.reader.ReaderError as error:
        raise NotADocument((text[: error.position].count("\n") + 1, f"is not YAML: {error.reason}")) from error
    except yaml.YAMLError as error:
        raise NotADocument((1, "is not YAML")) from error


def _only(events: Iterator[Any]) -> Document:
    document: Document | None = None
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if document is not None:
                raise NotADocument((_line(event), "a second document begins; a catalog is exactly one"))
            document = Document()
            builder = _Builder(events, document)
            document.value = builder.node(next(events), ())
            if builder.repeated:
                raise NotADocument(*builder.repeated)
    if document is None or document.value is None:
        raise NotADocument((1, "is empty; a catalog has version, providers, models and profiles"))
    return document


class _Builder:
    """Builds one document's value from its events."""

    def __init__(self, events: Iterator[Any], document: Document) -> None:
        self._events, self._lines = events, document.lines
        self.repeated: list[tuple[int, str]] = []

    def node(self, event: Any, path: Path) -> Any:
        _refuse_cleverness(event)
        if len(path) > DEPTH_LIMIT:
            raise NotADocument((_line(event), f"is nested deeper than {DEPTH_LIMIT} levels"))
        self._lines.setdefault(path, _line(event))
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        return self._mapping(path) if isinstance(event, yaml.MappingStartEvent) else self._sequence(path)

    def _sequence(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            found.append(self.node(event, (*path, len(found))))
        return found

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in found:
                first = self._lines[(*path, key)]
                self.repeated.append(
                    (_line(event), f"key {shown((*path, key))} is repeated; line {first} has it already")
                )
            else:
                self._lines[(*path, key)] = _line(event)
            found[key] = None  # taken, also while its own value is being built
            found[key] = self.node(next(self._events), (*path, key))
        return found

    def _key(self, event: Any) -> str:
        _refuse_cleverness(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise NotADocument((_line(event), "a key must be text"))
        return str(event.value)


def _refuse_cleverness(event: Any) -> None:
    if isinstance(event, yaml.AliasEvent):
        raise NotADocument((_line(event), f"alias *{event.anchor} is not allowed; write the value out"))
    if getattr(event, "tag", None) not in (None, "!"):
        raise NotADocument((_line(event), "tags are not allowed"))


def _scalar(event: Any) -> Any:
    if not event.implicit[0]:
        return event.value  # quoted
    tag = _RESOLVER.resolve(  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
        yaml.ScalarNode, event.value, (True, False)
    )
    if tag not in _TYPED:
        return event.value
    try:
        return _RESOLVER.construct_object(yaml.ScalarNode(tag, event.value), deep=True)
    except ValueError as error:
        raise NotADocument((_line(event), f"{event.value[:40]!r} is no number that can be read")) from error


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def shown(path: Path) -> str:
    """A path as people write it: ``providers[0].command``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the file"
