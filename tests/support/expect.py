"""Recorded outputs of agents and the drafts they must become.

A case is a folder ``tests/providers/cli/transcripts/<dialect>/<case>/``: ``stdout.*`` is what the agent printed, byte for
byte; ``run.json`` says how its process ended and what it was asked to resume; ``stderr.txt`` is there when it said
something; ``expected.jsonl`` is what the decoder makes of it, one draft or noise a line, the terminal and the session id
last.

Expectations are written, never edited: with ``IOP_WRITE_EXPECTED=1`` in the environment a test run writes them anew. Read
the difference before you commit it; that reading is the test.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from providers.cli.dialect import Decoder, Line, Noise, ProcessEnd, Question, Reply, Told, TurnContext, Withdrawal
from providers.cli.dialects import load_dialect
from providers.cli.framing import Framing
from runtime.events import Draft
from runtime.redact import Redactor

TRANSCRIPTS = Path(__file__).parents[1] / "providers" / "cli" / "transcripts"
WRITE = "IOP_WRITE_EXPECTED"

Record = dict[str, object]


class Case:
    """One recorded run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dialect = folder.parent.name
        self.run: Record = json.loads((folder / "run.json").read_text())
        self.stdout = next(folder.glob("stdout.*")).read_bytes()

    def __repr__(self) -> str:
        return f"{self.dialect}/{self.folder.name}"

    @property
    def end(self) -> ProcessEnd:
        stderr = self.folder / "stderr.txt"
        code, signal = self.run.get("code"), self.run.get("signal")
        return ProcessEnd(
            code=code if isinstance(code, int) else None,
            signal=signal if isinstance(signal, int) else None,
            stderr=Redactor().diagnostic(stderr.read_bytes()) if stderr.exists() else "",
        )

    def decoder(self) -> Decoder:
        resumed, state = self.run.get("resumed_id"), self.run.get("state")
        context = TurnContext(
            resumed_id=resumed if isinstance(resumed, str) else None, state=state if isinstance(state, dict) else {}
        )
        return load_dialect(self.dialect).decoder(context)

    def replay(self, pieces: Sequence[bytes] | None = None) -> list[Record]:
        """What the run becomes, fed in *pieces* (at once if not given)."""
        decoder = self.decoder()
        found = _told([self.stdout] if pieces is None else pieces, decoder)
        return [*map(as_record, found), as_record(decoder.conclude(self.end)), session_record(decoder)]

    def expected(self, produced: list[Record]) -> list[Record]:
        """The reviewed expectation; *produced* becomes it when expectations are being written."""
        path = self.folder / "expected.jsonl"
        if os.environ.get(WRITE):
            path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in produced))
        return [json.loads(line) for line in path.read_text().split("\n") if line]


def cases(*dialects: str) -> list[Case]:
    """All cases, or those of *dialects*."""
    folders = sorted(path.parent for path in TRANSCRIPTS.glob("*/*/run.json"))
    return [Case(folder) for folder in folders if not dialects or folder.parent.name in dialects]


def decode(pieces: Sequence[bytes], decoder: Decoder) -> list[Draft | Noise]:
    """The drafts and noise of an output that is read in *pieces*."""
    return [each for each in _told(pieces, decoder) if isinstance(each, Draft | Noise)]


def _told(pieces: Sequence[bytes], decoder: Decoder) -> list[Told]:
    framing = Framing()
    return [found for item in _framed(framing, pieces) for found in _decoded(item, decoder)]


def _framed(framing: Framing, pieces: Sequence[bytes]) -> Iterator[Line | Noise]:
    for piece in pieces:
        yield from framing.feed(piece)
    yield from framing.finish()


def _decoded(item: Line | Noise, decoder: Decoder) -> Sequence[Told]:
    return [item] if isinstance(item, Noise) else decoder.decode(item)


def as_record(found: Told) -> Record:
    """*found* as JSON that is good to read: what is not told is left out."""
    if isinstance(found, Noise):
        return {"noise": found.kind, "detail": found.detail}
    if isinstance(found, Question):
        return {"question": _json(found.request), "at": [found.offset, found.index]}
    if isinstance(found, Reply):
        return {"reply": found.data.decode(), "key": found.key}
    if isinstance(found, Withdrawal):
        return {"withdrawn": found.request_id}
    record: Record = {"type": found.type.value}
    if found.text:
        record["text"] = found.text
    if found.metadata:
        record["metadata"] = dict(found.metadata)
    if found.usage is not None:
        record["usage"] = _json(found.usage)
    if found.activity is not None:
        record["activity"] = _json(found.activity)
    if (failure := found.failure) is not None:
        record["failure"] = {"code": failure.code.value, "retryable": failure.retryable} | {
            "metadata": dict(failure.metadata)
        }
    if found.offset >= 0:
        record["at"] = [found.offset, found.index]
    return record


def _json(value: msgspec.Struct) -> object:
    return msgspec.json.decode(msgspec.json.encode(value))


def session_record(decoder: Decoder) -> Record:
    """What the decoder knows beside the terminal."""
    return {"native_id": decoder.native_id, "has_ended": decoder.has_ended}
