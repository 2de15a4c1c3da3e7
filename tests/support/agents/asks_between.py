"""An agent that asks while no turn is under way, and hears nothing else until it is told: ``asks_between.py LANGUAGE``.

LANGUAGE is ``claude``, ``codex`` or ``acp``. The words of a prompt say what comes after the turn: ``leave`` asks whether a
tool may be used, ``other`` asks what no host serves, ``within`` asks for leave before the turn ends and does not wait;
``split`` writes the first half of the question together with the end of the turn; ``wrong`` breaks the language,
``much`` prints two megabytes. ``slow`` is a turn that waits for the file ``go`` in the working directory; so does what
comes after a turn, and ``asked`` says that it was printed. With the argument ``early`` the agent asks for leave as soon as
it is opened.

A turn's answer is what the agent was told in reply to its last question; that, and what it is told in vain, is written to
``answers``. A turn that comes while the agent waits for a reply ends the process.
"""

import json
import os
import sys
import time
from typing import Any

LANGUAGE = sys.argv[1]
Message = dict[str, Any]
ID = "cred-7"
REFUSED = {"subtype": "error"}


def write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def take() -> Message:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    return dict(json.loads(line))


# Of each language: a turn's text, its end with an answer, a question, what an answer says.


def turn_text(message: Message) -> str | None:
    if LANGUAGE == "claude":
        return str(message["message"]["content"]) if message["type"] == "user" else None
    if message.get("method") not in ("turn/start", "session/prompt"):
        return None
    return str((message["params"].get("input") or message["params"].get("prompt"))[0]["text"])


def end(message: Message, told: str) -> str:
    if LANGUAGE == "claude":
        begin = {"type": "system", "subtype": "init", "session_id": "s-1"}
        result = {"type": "result", "subtype": "success", "is_error": False, "result": told, "session_id": "s-1"}
        return lines(begin, result)
    if LANGUAGE == "codex":
        turn, of = {"id": f"turn-{message['id']}"}, {"threadId": "th-1", "turnId": f"turn-{message['id']}"}
        item = {"type": "agentMessage", "id": "m", "text": told}
        return lines(
            {"id": message["id"], "result": {"turn": turn}},
            {"method": "item/completed", "params": {**of, "item": item}},
            {"method": "turn/completed", "params": {"threadId": "th-1", "turn": {**turn, "status": "completed"}}},
        )
    text = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": told}}
    update = {"method": "session/update", "params": {"sessionId": "s-1", "update": text}}
    return lines(update, {"id": message["id"], "result": {"stopReason": "end_turn"}})


def question(kind: str) -> str:
    if LANGUAGE == "claude":
        asked = (
            {"subtype": "can_use_tool", "tool_name": "Bash", "input": {}} if kind != "other" else {"subtype": "hook"}
        )
        return lines({"type": "control_request", "request_id": ID, "request": asked})
    if LANGUAGE == "codex":
        method = "item/commandExecution/requestApproval" if kind != "other" else "item/tool/requestUserInput"
        return lines({"id": ID, "method": method, "params": {"threadId": "th-1", "itemId": "i", "command": "rm"}})
    if kind == "other":
        return lines({"id": ID, "method": "fs/read_text_file", "params": {"sessionId": "s-1", "path": "/etc/passwd"}})
    options = [{"optionId": "yes", "kind": "allow_once"}, {"optionId": "no", "kind": "reject_once"}]
    params = {"sessionId": "s-1", "toolCall": {"toolCallId": "c"}, "options": options}
    return lines({"id": ID, "method": "session/request_permission", "params": params})


def told_by(message: Message) -> str | None:
    if LANGUAGE == "claude":
        if message["type"] != "control_response" or message["response"]["request_id"] != ID:
            return None
        return str(message["response"].get("response", {}).get("behavior", "refused"))
    if message.get("id") != ID:
        return None
    if "error" in message:
        return "refused"
    return str(message["result"].get("decision") or message["result"]["outcome"].get("optionId", "cancelled"))


def lines(*messages: Message) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


def opened(message: Message) -> Message | None:
    """The answer to a step of the opening; a session that is loaded tells its history first."""
    thread = {"thread": {"id": "th-1"}}
    known: dict[str, Message] = {
        "initialize": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True}}, "thread/start": thread,
        "thread/resume": thread, "session/new": {"sessionId": "s-1"}, "session/load": {},
    }  # fmt: skip
    if message.get("method") == "session/load":
        earlier = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "earlier"}}
        write(lines({"method": "session/update", "params": {"sessionId": "s-1", "update": earlier}}))
    return known.get(str(message.get("method")))


def wait_for_go() -> None:
    while not os.path.exists("go"):
        time.sleep(0.01)
    os.remove("go")


def printed() -> None:
    with open("asked.new", "w"):
        pass
    os.rename("asked.new", "asked")


def note(told: str) -> None:
    with open("answers", "a") as log:
        log.write(f"{told}\n")


def after(kind: str, rest: str) -> str:
    """What the agent does between two turns; what it was told."""
    if kind != "within":
        wait_for_go()
        write(rest)
        printed()
    return reply()


def reply() -> str:
    """What is told in reply to the question."""
    if (told := told_by(take())) is None:
        sys.stderr.write("agent: a turn came before the answer\n")
        os._exit(3)
    note(told)
    return told


def prepared(kind: str) -> tuple[str, str]:
    """What is printed with the end of a turn, and what after it."""
    text = question(kind)
    return (text[:40], text[40:]) if kind == "split" else ("", text)


def noise(kind: str) -> str:
    if kind == "wrong":
        return lines({"id": "nobody's", "result": {}})
    return lines({"method": "_note", "type": "note", "params": {"text": "x" * 1000}}) * 2000


def main() -> None:
    told = "nothing"
    while True:
        message = take()
        if told_by(message) is not None:
            note("again")
        if (result := opened(message)) is not None:
            is_early = "early" in sys.argv and message["method"] in ("thread/start", "session/new")
            write(lines({"id": message["id"], "result": result}) + (question("leave") if is_early else ""))
            told = reply() if is_early else told
        if (kind := turn_text(message)) is None:
            continue
        if kind == "slow":
            wait_for_go()
            write(end(message, told))
        elif kind in ("wrong", "much"):
            write(end(message, told))
            wait_for_go()
            write(noise(kind))
            printed()
        elif kind in ("leave", "other", "within", "split"):
            first, rest = prepared(kind)
            write(question(kind) + end(message, told) if kind == "within" else end(message, told) + first)
            told = after(kind, rest)
        else:
            write(end(message, told))


main()
