"""What a prompt tells the scripted model to do.

A directive in the last user message of a request chooses the answer:

    [[mock:NAME key=value key=value]]      NAME may be left out: [[mock words=5]]

NAME picks an entry of SCENARIOS; the keys that follow override it. Values are URL-decoded (%20 for a space), so that a
directive never needs quotes. Without a directive the answer is a short sentence. Every plain answer starts with
``turn N:``, N being the number of user messages in the request: so a test sees that a resume carried its history.

    words=20          words in the answer              chunks=5      chunks it is sent in
    bytes=N           answer of N bytes instead        emoji=1       words of emoji, CJK, RTL
    reply=TEXT        this text, word for word         delay=0.2     seconds between chunks
    think=N           N words of thinking first        first_delay=S seconds before the first byte
    tool=shell        call a tool before answering: shell, write, read, or a tool's own name
    cmd=...           the shell command                path=... content=...   for write and read
    args=JSON         the tool's arguments, verbatim   calls=N       this many tool calls, in turn
    say=TEXT          text sent before the tool call   parallel=N    N calls in one answer
    timeout_ms=N      the shell tool's own time-out, where it takes one
    status=401        HTTP error instead of an answer  retry_after=S adds the header
    etype=...         error type in the error body     message=...   error message
    fail_first=N      only the first N requests with this directive fail, then it answers
    drop=K            cut the connection after K chunks of text
    stall=K           stop sending after K chunks, connection left open
    error_event=K     an error event in the stream after K chunks
    split_utf8=1      writes cut inside multi-byte characters and inside event lines
    stop=max_tokens   the stop reason (max_tokens, refusal; each API's own word is used)
    in_tokens=N out_tokens=N               usage to report
    limits=1          rate-limit headers on the answer; limit_status=rejected
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Mapping
from urllib.parse import unquote

Options = Mapping[str, str | int | float]

QUESTION = {
    "question": "Which colour?",
    "header": "Colour",
    "options": [{"label": "green", "description": "calm"}, {"label": "blue", "description": "cold"}],
    "multiSelect": False,
}
SCENARIOS: Mapping[str, Options] = {
    "plain": {"words": 12, "chunks": 4},
    "think": {"think": 20, "words": 12, "chunks": 4},
    "shell": {"tool": "shell", "cmd": "echo tool-says-hi"},
    "write": {"tool": "write", "path": "mock-out.txt", "content": "written by the mock\n"},
    "question": {"tool": "AskUserQuestion", "args": json.dumps({"questions": [QUESTION]})},
    "sleep": {"tool": "shell", "cmd": "sleep 300"},
    "slow": {"words": 120, "chunks": 120, "delay": 0.5},
    "e401": {"status": 401},
    "e403": {"status": 403},
    "e404": {"status": 404},
    "e429": {"status": 429},
    "e429ra": {"status": 429, "retry_after": 2},
    "e500": {"status": 500},
    "e503": {"status": 503},
    "overloaded": {"status": 529},
    "flaky": {"status": 500, "fail_first": 2},
    "drop": {"words": 20, "chunks": 10, "drop": 3},
    "stall": {"words": 20, "chunks": 10, "stall": 3},
    "sse_error": {"words": 20, "chunks": 10, "error_event": 3},
    "huge": {"bytes": 2_000_000, "chunks": 50},
    "huge1": {"bytes": 2_000_000, "chunks": 1},
    "emoji": {"emoji": 1, "words": 24, "chunks": 24, "split_utf8": 1},
    "truncated": {"words": 12, "stop": "max_tokens"},
    "refusal": {"words": 3, "stop": "refusal"},
}

WORDS = [
    "alpha",
    "bravo",
    "charlie",
    "delta",
    "echo",
    "foxtrot",
    "golf",
    "hotel",
    "india",
    "juliet",
    "kilo",
    "lima",
    "mike",
]
EMOJI = ["👩‍👩‍👧‍👦", "🇯🇵", "日本語", "שלום", "café", "🫠", "é", "𝔘𝔫𝔦", "\u200bzw", "Ω≈ç√"]
DIRECTIVE = re.compile(r"\[\[mock(?::([\w.-]+))?((?:\s+[\w]+=[^\s\]]*)*)\s*\]\]")


class Dropped(Exception):
    """The connection is to be cut here."""


class Overloaded(Exception):
    """The stream is to tell an error here and end."""


class Plan:
    """What one request is answered with."""

    def __init__(self, options: Options | None = None, directive: str = "") -> None:
        self.options = dict(options or {})
        self.directive = directive

    @classmethod
    def of(cls, prompt: str, scenarios: Mapping[str, Options] | None = None) -> Plan:
        """The plan in *prompt*: its last directive, with *scenarios* beside the built-in ones."""
        found = list(DIRECTIVE.finditer(prompt))
        if not found:
            return cls()
        name, pairs = found[-1].groups()
        table = {**SCENARIOS, **(scenarios or {})}
        options = dict(table.get(name, {"reply": f"no scenario named {name}"})) if name else {}
        for pair in pairs.split():
            key, value = pair.split("=", 1)
            options[key] = unquote(value)
        return cls(options, found[-1][0])

    def has(self, key: str) -> bool:
        return key in self.options

    def text(self, key: str, default: str = "") -> str:
        return str(self.options.get(key, default))

    def number(self, key: str, default: float = 0.0) -> float:
        return float(self.options.get(key, default))

    def count(self, key: str, default: int = 0) -> int:
        return int(self.number(key, default))

    def answer(self, turn: int) -> str:
        """The text of the answer to the *turn*-th user message."""
        if self.has("reply"):
            return self.text("reply")
        if size := self.count("bytes"):
            return "".join(f"{i:06d} {WORDS[i % len(WORDS)]} " for i in range(size // 8))[:size]
        pool = EMOJI if self.count("emoji") else WORDS
        return f"turn {turn}: " + " ".join(pool[i % len(pool)] for i in range(self.count("words", 12)))

    def thinking(self) -> str:
        return " ".join(f"thought-{i}" for i in range(self.count("think")))

    async def paced(self, text: str) -> AsyncIterator[str]:
        """*text* in its chunks, with the delays and the faults that the plan asks for."""
        for number, piece in enumerate(pieces(text, self.count("chunks", 4)) if text else []):
            await self._fault(number)
            if number and self.number("delay"):
                await asyncio.sleep(self.number("delay"))
            yield piece

    async def _fault(self, number: int) -> None:
        if self._is_due("drop", number):
            raise Dropped
        if self._is_due("stall", number):
            await asyncio.sleep(3600)
        if self._is_due("error_event", number):
            raise Overloaded

    def _is_due(self, key: str, number: int) -> bool:
        return self.has(key) and self.count(key) == number


def pieces(text: str, count: int) -> list[str]:
    """*text* in at most *count* pieces of equal size; at least one."""
    count = max(1, min(count, len(text) or 1))
    size = -(-len(text) // count)
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]
