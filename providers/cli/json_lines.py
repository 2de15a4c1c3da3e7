"""The lines that a JSON dialect's fast path could not take: what of them is still JSON, and what is noise.

A dialect decodes each line with msgspec first, which takes every line that is one valid UTF-8 JSON object and nothing
else. The rest comes here, where damage stays local: bad bytes and halves of surrogate pairs become U+FFFD, control
sequences and a byte order mark outside of the JSON are dropped (an escape *inside* a string is payload and survives),
objects glued together are taken apart, and what is no JSON object is one bounded, scrubbed :class:`Noise`. Nothing is
carried from line to line, so one bad line cannot poison the next.

A line is JSON from its first visible character or not at all: looking for a ``{`` further in would let any log line
that quotes a frame forge it. For the same reason nothing is looked for inside an object that is torn.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from providers.cli.dialect import Noise
from providers.cli.json_fields import JsonObject, storable
from providers.cli.terminal_text import skip_blank
from runtime.events import replacing_invalid
from runtime.redact import clip, scrub

TEXT_LIMIT_BYTES = 64 * 1024
"""The bound of a tool's input and output, of design §6."""
NOISE_LIMIT = 300
_SCRUBBED = 4096  # looked at for secrets before the cut at NOISE_LIMIT; the rest of a long line is never shown

# strict=False: a raw tab or escape inside a string is a mistake of the writer's, not a reason to lose the frame
_SCANNER = json.JSONDecoder(strict=False)


def noise(kind: str, text: str) -> Noise:
    """A diagnostic about *text*, redacted and at most 300 characters."""
    return Noise(kind=kind, detail=clip(scrub(replacing_invalid(text[:_SCRUBBED])), NOISE_LIMIT))


def recover(data: bytes) -> Iterator[JsonObject | Noise]:
    """The JSON objects of a damaged or crowded line in order, and noise for what is none; blank lines give nothing."""
    text, damage = _text(data)
    position = skip_blank(text)
    if damage and text.startswith("{", position):
        yield damage
    while position < len(text):
        try:
            value, position = _object(text, position)
        except (ValueError, RecursionError):
            yield noise("torn" if text[position] == "{" else "not_json", text[position : position + _SCRUBBED])
            return
        yield value
        position = skip_blank(text, position)


def bounded(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """*text* fit for every store, at most *limit_bytes* of UTF-8, cut at a character and with a mark where it was
    cut.
    """
    text = storable(text)
    if len(text) * 4 <= limit_bytes or len(raw := text.encode()) <= limit_bytes:
        return text
    mark = f"… [{len(raw)} bytes]"
    return raw[: limit_bytes - len(mark.encode())].decode(errors="ignore") + mark


def _text(data: bytes) -> tuple[str, Noise | None]:
    try:
        return data.decode(), None
    except UnicodeDecodeError as error:
        return data.decode(errors="replace"), noise(
            "invalid_utf8", f"bytes replaced, the first at {error.start} of the line"
        )


def _object(text: str, position: int) -> tuple[JsonObject, int]:
    if text[position] != "{":
        raise ValueError("not an object")
    value, end = _SCANNER.raw_decode(text, position)
    return {replacing_invalid(key): _clean(each) for key, each in value.items()}, end


def _clean(value: object) -> object:
    """*value* with every text in it fit for every store."""
    if isinstance(value, str):
        return replacing_invalid(value)
    if isinstance(value, dict):
        return {replacing_invalid(key): _clean(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_clean(each) for each in value]
    return value
