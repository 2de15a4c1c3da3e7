"""A small agent that speaks the Agent Client Protocol, and, told so, speaks it badly.

The first word of a prompt says what the turn does (``tool``, ``permission``, ``slow`` …, see ``TURNS``); any other text is
answered with how many turns the session has seen, this one included. Sessions are kept below HOME, so that a fresh process
can load them. Arguments say what the agent is like: ``--no-load``, ``--forgets`` (it opens unknown sessions empty),
``--auth`` (it wants ``authenticate`` first), ``--version=2``, ``--options`` (model and mode can be chosen).
"""

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

FLAGS = set(sys.argv[1:])
HOME = os.path.join(os.environ.get("HOME", "."), ".acp-agent")
Message = dict[str, Any]
Turn = Callable[[list[str]], str | None]
LINES: queue.Queue[Message | None] = queue.Queue()


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def update(name: str, **more: Any) -> None:
    say(method="session/update", params={"sessionId": Agent.session, "update": {"sessionUpdate": name, **more}})


def chunk(text: str, kind: str = "agent_message_chunk") -> None:
    update(kind, content={"type": "text", "text": text})


class Cancelled(Exception):
    pass


class Agent:
    session = ""
    turns: tuple[str, ...] = ()
    prompt: Any = 0  # the id of the prompt under way
    asked = 0
    servers: Any = None


def read() -> None:
    for line in sys.stdin:
        LINES.put(json.loads(line))
    LINES.put(None)


def take(timeout: float | None = None) -> Message:
    """The next message of the client's; it may be the end, or a cancel."""
    message = LINES.get(timeout=timeout)
    if message is None:
        sys.exit(0)
    if message.get("method") == "session/cancel":
        raise Cancelled
    return message


def pause(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        try:
            take(left)
        except queue.Empty:
            return


def ask(method: str, **params: Any) -> Message:
    """A request to the client, and its answer; other messages meanwhile are lost, but a cancel is not."""
    Agent.asked += 1
    number = Agent.asked - 1
    say(id=number, method=method, params={"sessionId": Agent.session, **params})
    cancelled = False
    while True:
        try:
            message = take()
        except Cancelled:
            cancelled = True  # the answers to open questions come with it
            continue
        if message.get("id") == number and "method" not in message:
            if cancelled:
                raise Cancelled
            return message


def call(call_id: str, command: str, status: str = "pending") -> None:
    update("tool_call", toolCallId=call_id, title=command, kind="execute", status=status, rawInput={"command": command})


def called(call_id: str, output: str, status: str = "completed") -> None:
    content = [{"type": "content", "content": {"type": "text", "text": output}}]
    update("tool_call_update", toolCallId=call_id, status=status, content=content)


def plain(_: list[str]) -> None:
    chunk(f"turn {len(Agent.turns)}: ")
    chunk("hello")


def think(_: list[str]) -> None:
    chunk("let me see", kind="agent_thought_chunk")
    plain(_)


def plan(_: list[str]) -> None:
    update("plan", entries=[{"content": "first", "priority": "high", "status": "in_progress"}])
    plain(_)


def tool(_: list[str]) -> None:
    chunk("I will look. ")
    call("call-1", "echo hi", "in_progress")
    called("call-1", subprocess.run(["echo", "hi"], capture_output=True, text=True).stdout)
    plain(_)


def permission(words: list[str]) -> None:
    for number in range(int(words[0]) if words else 1):
        call_id = f"call-{number}"
        call(call_id, f"rm {number}")
        options = [
            {"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"},
        ]
        answer = ask("session/request_permission", toolCall={"toolCallId": call_id}, options=options)
        chosen = answer["result"]["outcome"].get("optionId", "cancelled")
        with open("answers.log", "a") as log:
            log.write(f"{chosen}\n")
        called(call_id, chosen, "completed" if chosen == "yes" else "failed")
        chunk(f"{chosen} ")


def form(_: list[str]) -> None:
    colour = {"type": "string", "enum": ["green", "blue"]}
    schema = {"type": "object", "properties": {"colour": colour}, "required": ["colour"]}
    answer = ask("elicitation/create", mode="form", message="Which colour?", requestedSchema=schema)["result"]
    chunk(f"turn {len(Agent.turns)}: {answer['action']} {answer.get('content', {}).get('colour', 'nothing')}")


def slow(words: list[str]) -> None:
    for number in range(int(words[0]) if words else 2000):
        chunk(f"word-{number} ")
        pause(0.05)


def holding(words: list[str]) -> None:
    """A tool that runs for long, in a session of its own, as agents start them; a cancel ends it."""
    call("call-1", "sleep 300", "in_progress")
    child = subprocess.Popen(["sleep", "300"], start_new_session=True)
    try:
        pause(300)
    finally:
        child.kill()
        child.wait()
        called("call-1", "cancelled", "failed")


def deaf(_: list[str]) -> None:
    """Neither a cancel nor a signal for its child: only the tree's end ends it."""
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    chunk("busy")
    while True:
        try:
            take()
        except Cancelled:
            pass


def unauthorized(_: list[str]) -> None:
    say(id=Agent.prompt, error={"code": 401, "message": '{"error":{"code":401,"message":"no such key"}}'})
    return


def garbage(_: list[str]) -> None:
    sys.stdout.write("Warning: something\n\n{not json\n\x1b[31mred\x1b[0m\n[1,2]\n{}\n")
    say(method="session/update", params={"update": 7})
    say(method="$/weather", params={})
    say(method="weather/update", params={})
    say(params={"a": None}, method="session/update")
    update("weather_update", sky="grey")
    plain(_)


def twice(_: list[str]) -> None:
    plain(_)
    say(id=Agent.prompt, result={"stopReason": "end_turn"})


def batch(_: list[str]) -> None:
    text = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "in a batch"}}
    told = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": Agent.session, "update": text}}
    answer = {"jsonrpc": "2.0", "id": Agent.prompt, "result": {"stopReason": "end_turn"}}
    sys.stdout.write(json.dumps([told, answer]) + "\n")
    sys.stdout.flush()
    return


def wrong_id(_: list[str]) -> None:
    plain(_)
    say(id="prompt", result={"stopReason": "end_turn"})
    return


def asks_much(_: list[str]) -> None:
    """What a client need not serve; each refusal is written down."""
    answers = [
        ask("fs/read_text_file", path="/etc/passwd"),
        ask("terminal/create", command="sh"),
        ask("weather/ask"),
    ]
    chunk(",".join(str(answer["error"]["code"]) for answer in answers))


def huge(words: list[str]) -> None:
    chunk("x" * int(words[0]))
    plain(words)


def dies(_: list[str]) -> None:
    chunk("I am ")
    sys.stderr.write("agent: out of luck\n")
    os._exit(3)


def stops(reason: str) -> Turn:
    def turn(_: list[str]) -> str:
        chunk("half an ans")
        return reason

    return turn


def mcp(_: list[str]) -> None:
    """The servers it was told of, the values of their variables by digest."""
    for server in Agent.servers:
        env = {each["name"]: hashlib.sha256(each["value"].encode()).hexdigest()[:12] for each in server["env"]}
        chunk(json.dumps({**server, "env": env}))


TURNS: dict[str, Turn] = {
    "think": think, "plan": plan, "tool": tool, "permission": permission, "form": form, "slow": slow, "holding": holding,
    "deaf": deaf, "401": unauthorized, "garbage": garbage, "twice": twice, "batch": batch, "wrong-id": wrong_id,
    "asks-much": asks_much, "huge": huge, "dies": dies, "max-tokens": stops("max_tokens"),
    "refuses": stops("refusal"), "odd-stop": stops("tired"), "empty": lambda _: None, "mcp": mcp,
}  # fmt: skip


def prompt(message: Message) -> None:
    Agent.prompt = message["id"]
    text = message["params"]["prompt"][0]["text"]
    Agent.turns = (*Agent.turns, text)
    keep()
    words = text.split()
    turn = TURNS.get(words[0] if words else "", plain)
    answers_itself = turn in (unauthorized, batch, wrong_id)
    try:
        reason = turn(words[1:]) or "end_turn"
    except Cancelled:
        reason = "cancelled"
    if not answers_itself:
        usage = {"inputTokens": 10, "outputTokens": 2, "totalTokens": 12}
        say(id=Agent.prompt, result={"stopReason": reason, "usage": usage})


def path(session: str) -> str:
    return os.path.join(HOME, session + ".json")


def keep() -> None:
    os.makedirs(HOME, exist_ok=True)
    with open(path(Agent.session), "w") as file:
        json.dump(Agent.turns, file)


def load(message: Message) -> None:
    Agent.session = message["params"]["sessionId"]
    if os.path.exists(path(Agent.session)):
        with open(path(Agent.session)) as file:
            Agent.turns = tuple(json.load(file))
    elif "--forgets" not in FLAGS:
        say(id=message["id"], error={"code": -32002, "message": f"Resource not found: {Agent.session}"})
        return
    for text in Agent.turns:
        chunk(text, kind="user_message_chunk")
        chunk("an answer", kind="agent_message_chunk")
    say(id=message["id"], result=offers())


def offers() -> Message:
    if "--options" not in FLAGS:
        return {}
    options = [
        {"id": "model", "name": "Model", "category": "model", "type": "select", "currentValue": "a", "options": []}
    ]
    modes = {"currentModeId": "ask", "availableModes": [{"id": "ask", "name": "Ask"}, {"id": "auto", "name": "Auto"}]}
    return {"configOptions": options, "modes": modes}


def new(message: Message) -> None:
    Agent.servers = message["params"]["mcpServers"]
    if "--auth" in FLAGS:
        say(id=message["id"], error={"code": -32000, "message": "Authentication required"})
        return
    Agent.session = uuid.uuid4().hex
    say(id=message["id"], result={"sessionId": Agent.session, **offers()})


def initialize(message: Message) -> None:
    capabilities = {"loadSession": "--no-load" not in FLAGS}
    told = {"agentInfo": {"name": "acp-agent", "version": "1"}, "agentCapabilities": capabilities}
    say(id=message["id"], result={"protocolVersion": 2 if "--version=2" in FLAGS else 1, **told, "authMethods": []})


def set_option(message: Message) -> None:
    with open("options.log", "a") as log:
        log.write(json.dumps(message["params"], sort_keys=True) + "\n")
    say(id=message["id"], result={"configOptions": []} if "config" in message["method"] else {})


METHODS: dict[str, Callable[[Message], None]] = {
    "initialize": initialize, "session/new": new, "session/load": load, "session/prompt": prompt,
    "session/set_mode": set_option, "session/set_config_option": set_option,
}  # fmt: skip

threading.Thread(target=read, daemon=True).start()
while True:
    try:
        asked = take()
    except Cancelled:
        continue  # no turn is under way
    if (method := METHODS.get(asked.get("method", ""))) is not None:
        method(asked)
    elif "method" in asked and "id" in asked:
        say(id=asked["id"], error={"code": -32601, "message": "Method not found"})
