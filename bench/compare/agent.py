"""The agent of every comparison: ``agent.py FORMAT BEGUN``; a prompt is ``LINES DELAY_MS``.

It says that many numbered words, one write each, in the format that the program under test expects: ``claude`` and
``lines`` read one prompt from stdin, ``acp`` speaks JSON-RPC until stdin ends. Each prompt adds a line with the process id
to the file BEGUN, so that double execution cannot hide.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator


def say(frame: object) -> None:
    os.write(1, json.dumps(frame, separators=(",", ":")).encode() + b"\n")


def begin(path: str) -> None:
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def words(prompt: str) -> Iterator[str]:
    count, delay_ms = prompt.split()[:2]
    for number in range(int(count)):
        yield f"{number} "
        if float(delay_ms):
            time.sleep(float(delay_ms) / 1000)


def claude(prompt: str) -> None:
    say({"type": "system", "subtype": "init", "session_id": "compare", "model": "none", "tools": []})
    text = []
    say({"type": "stream_event", "event": {"type": "message_start", "message": {"id": "m1"}}})
    for word in words(prompt):
        delta = {"type": "text_delta", "text": word}
        say({"type": "stream_event", "event": {"type": "content_block_delta", "index": 0, "delta": delta}})
        text.append(word)
    say({"type": "result", "subtype": "success", "is_error": False, "result": "".join(text), "session_id": "compare"})


def lines(prompt: str) -> None:
    for word in words(prompt):
        os.write(1, f"{word}\n".encode())


def acp(begun: str) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        method, number = request.get("method"), request.get("id")
        if method == "initialize":
            result: object = {"protocolVersion": 1, "agentCapabilities": {}, "authMethods": []}
        elif method == "session/new":
            result = {"sessionId": "compare"}
        elif method == "session/prompt":
            begin(begun)
            for word in words(request["params"]["prompt"][0]["text"]):
                update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": word}}
                params = {"sessionId": "compare", "update": update}
                say({"jsonrpc": "2.0", "method": "session/update", "params": params})
            result = {"stopReason": "end_turn"}
        else:
            continue
        say({"jsonrpc": "2.0", "id": number, "result": result})


def main() -> None:
    kind, begun = sys.argv[1], sys.argv[2]
    if kind == "acp":
        acp(begun)
        return
    prompt = sys.stdin.read()
    begin(begun)
    {"claude": claude, "lines": lines}[kind](prompt)


if __name__ == "__main__":
    main()
