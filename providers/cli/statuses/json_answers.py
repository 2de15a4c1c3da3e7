"""JSON objects among the lines that a CLI prints when it is asked something; everything else is passed over."""

from __future__ import annotations

import msgspec

from providers.cli.json_fields import JsonObject
from providers.cli.terminal_text import skip_blank, without_sequences

LINES_LIMIT = 10_000


def json_objects(text: str) -> list[JsonObject]:
    """The objects, one per line, in order; lines end in LF, CR LF or CR."""
    found: list[JsonObject] = []
    for line in without_sequences(text).splitlines()[:LINES_LIMIT]:
        begin = skip_blank(line)
        if line[begin : begin + 1] == "{":
            try:
                value = msgspec.json.decode(line[begin:].rstrip())
            except (msgspec.DecodeError, RecursionError):
                continue
            found.append(value)
    return found
