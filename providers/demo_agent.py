"""A small agent CLI, `iop-demo-agent`, for the first run of a newcomer and for tests: no key, no network, no model.

It is a real child process with real failures. It reads one prompt from stdin and answers on stdout in the frames of Claude
Code's stream-json output (dialect ``claude_stream_json``), one write per line. Every answer begins with ``turn N:``, N being
the number of prompts of the session, so that a resumed run shows that it has its history.

    iop-demo-agent [--model NAME] [--resume ID [--fork-session] | --session-id ID] < prompt

With ``--input-format stream-json`` it serves a whole session (dialect ``claude_session``): each ``user`` message on stdin is
a turn, a control request ``interrupt`` ends the turn under way, and the end of stdin, after the turn under way, the process.

Sessions are small files in ``$IOP_DEMO_HOME`` (else ``~/.iop-demo-agent``). Claude's other common flags are accepted and
change nothing. A directive in the prompt chooses what happens; the last one counts, values are URL-decoded:

    [[demo:NAME key=value ...]]     NAME left out is a plain answer

    NAME      keys (defaults)            what happens
    --------  -------------------------  ----------------------------------------------------------------------------
              words= delay_ms=20 text=   an answer of that many words or of that text, word by word; without a
                                         directive it repeats the prompt's words, in about half a second
    think     thoughts=20 delay_ms=20    thinks first, then answers
    ask       tool=Bash withdraw_ms=0    asks for leave first (in a session only), and answers that it was allowed or denied;
              delay_ms=0                 with withdraw_ms it waits no longer than that, takes its question back, and goes on
    question  from=tool                  asks for a colour (in a session only), by a tool of its own or as a server does, and
                                         answers what it was told
    tool      cmd="echo hello"           runs a shell command as a child process, reports call and result, answers
    slow      words=120 delay_ms=500     a minute of answer
    silent    seconds=3600               says nothing for that long, then answers
    fail      kind=exit code=3           auth, rate, quota, overloaded, model, refusal: what Claude says of such an API
                                         error. exit: dies in mid-answer with a word on stderr. killed: by SIGKILL.
                                         garbage: no frame but the first. nothing: no output, exit 0. torn: a cut result
    flood     lines=1000 bytes=1000      that many deltas of that size, as fast as they can be written; told again whole,
                                         as Claude does, unless it is over 16 MiB
    stderr    bytes=1000000              as much on stderr, then an answer
    clobber                              a child shell re-opens stdout and stderr for writing in mid-answer
    stubborn  seconds=600                ignores SIGTERM and SIGINT, together with a child process of its own
    linger    seconds=600                stays alive after its result

SIGINT in mid-answer ends the turn as Claude does: a result with ``terminal_reason: aborted_streaming`` and exit code 0.
Start-up time is part of the tests that use it, so it imports little, and the rest where it is needed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:  # spares the start-up the import
    import queue
    from typing import Any

VERSION = "1.0.0"
WORDS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima")
REPEATED_BYTES = 16 * 1024 * 1024  # a larger flood is not told whole: that is one line of the same size, twice
ECHOED_WORDS = 40  # of a long prompt, so that the answer to it is short

DIRECTIVE = re.compile(r"\[\[demo(?::(\w+))?((?:\s+\w+=[^\s\]]*)*)\s*\]\]")
SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
FLAGS = frozenset({"-p", "--print", "--verbose", "--include-partial-messages", "--fork-session"})
VALUE_FLAGS = frozenset({
    "--model", "--resume", "--session-id", "--output-format", "--input-format", "--permission-mode", "--settings",
    "--permission-prompt-tool",
})  # fmt: skip

# kind: (what the synthetic message's `error` is, HTTP status, text)
API_ERRORS = {
    "auth": ("authentication_failed", 401, "Failed to authenticate. API Error: 401 demo error"),
    "rate": ("rate_limit", 429, "API Error: Request rejected (429) · demo error"),
    "quota": ("rate_limit", 429, "You've hit your session limit"),
    "overloaded": ("overloaded", 529, "API Error: 529 demo error. This is a server-side issue, usually temporary"),
    "model": ("model_not_found", 404, "There's an issue with the selected model. It may not exist"),
    "refusal": ("invalid_request", None, "API Error: unable to respond to this request: it violates our usage policy"),
}


COLOUR = "Which colour?"
TOOL_QUESTION = {
    "subtype": "can_use_tool",
    "tool_name": "AskUserQuestion",
    "input": {
        "questions": [
            {
                "question": COLOUR,
                "header": "Colour",
                "options": [{"label": "green", "description": "calm"}, {"label": "blue", "description": "cold"}],
                "multiSelect": False,
            }
        ]
    },
}
SERVER_QUESTION = {
    "subtype": "elicitation",
    "mcp_server_name": "demo",
    "message": COLOUR,
    "mode": "form",
    "requested_schema": {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]},
}


class TurnOver(Exception):
    """The turn ends here, with this exit code."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code


def main() -> int:
    """Answer one prompt, or those of a session; the return value is the exit code."""
    try:
        options = read_options(sys.argv[1:])
        if options.get("--input-format") == "stream-json":
            return Conversation(options).run()
        if "--version" in options:
            os.write(1, f"{VERSION} (iop-demo-agent)\n".encode())
            return 0
        prompt = sys.stdin.buffer.read().decode(errors="replace").strip()
        if not prompt:
            raise TurnOver(1, "Error: Input must be provided through stdin")
        return Turn(options, prompt).run()
    except TurnOver as stop:
        if stop.args[0]:
            os.write(2, f"{stop.args[0]}\n".encode())
        return stop.code
    except BrokenPipeError:
        return 1


def read_options(arguments: list[str]) -> dict[str, str]:
    """The flags as a mapping; a flag without a value maps to an empty text."""
    options, rest = {}, iter(arguments)
    for argument in rest:
        flag, equals, value = argument.partition("=")
        if flag in VALUE_FLAGS:
            options[flag] = value if equals else next(rest, "")
        elif argument in FLAGS or argument == "--version":
            options[argument] = ""
        else:
            raise TurnOver(1, f"error: unknown option '{argument}'")
    return options


class Directive:
    """What the prompt asks of the demo agent."""

    def __init__(self, prompt: str) -> None:
        found = list(DIRECTIVE.finditer(prompt))
        self.name = (found[-1][1] or "") if found else ""
        pairs = (pair.split("=", 1) for pair in found[-1][2].split()) if found else iter(())
        self._values = {key: _unquoted(value) for key, value in pairs}
        self.rest = DIRECTIVE.sub("", prompt).strip()

    def text(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def number(self, key: str, default: float) -> float:
        try:
            return float(self._values.get(key, default))
        except ValueError:
            raise TurnOver(1, f"error: {key}={self._values[key]} is not a number") from None


class Prompts:
    """The prompts of one conversation, in a file that is replaced whole."""

    def __init__(self, options: dict[str, str]) -> None:
        home = os.environ.get("IOP_DEMO_HOME") or os.path.join(os.path.expanduser("~"), ".iop-demo-agent")
        os.makedirs(home, mode=0o700, exist_ok=True)
        resumed, chosen = options.get("--resume"), options.get("--session-id")
        self.id = resumed or chosen or new_uuid()
        self.is_known = SESSION_ID.fullmatch(self.id) is not None
        self._path = os.path.join(home, f"{self.id}.json") if self.is_known else ""
        self.prompts: list[str] = []
        if resumed:
            self._load()
            if "--fork-session" in options and self.is_known:
                self.id = new_uuid()
                self._path = os.path.join(home, f"{self.id}.json")
        elif not self.is_known or os.path.exists(self._path):
            raise TurnOver(1, f"Error: Session ID {self.id} is already in use or malformed.")

    def add(self, prompt: str) -> None:
        """Keep *prompt* before it is answered: a turn that is cut short is part of the conversation."""
        self.prompts.append(prompt[:1000])
        partial = f"{self._path}.{os.getpid()}"
        with open(partial, "w", encoding="utf-8") as file:
            json.dump({"prompts": self.prompts}, file)
        os.replace(partial, self._path)

    def _load(self) -> None:
        try:
            with open(self._path, encoding="utf-8") as file:
                self.prompts = list(json.load(file)["prompts"])
        except (OSError, ValueError, KeyError, TypeError):
            self.is_known = False


class Turn:
    """One prompt and its answer."""

    def __init__(self, options: dict[str, str], prompt: str, conversation: Conversation | None = None) -> None:
        self.model = options.get("--model") or "demo-model"
        self.session = Prompts(options) if conversation is None else conversation.session
        self.conversation = conversation
        self.directive = Directive(prompt)
        self.prompt = prompt
        self.output_chars = 0

    def run(self) -> int:
        if not self.session.is_known:
            reason = f"No conversation found with session ID: {self.session.id}"
            self.result(subtype="error_during_execution", is_error=True, num_turns=0, errors=[reason])
            raise TurnOver(1, reason)
        self.session.add(self.prompt)
        mode = MODES.get(self.directive.name)
        if mode is None:
            raise TurnOver(1, f"error: no directive named {self.directive.name}; known: {', '.join(sorted(MODES))}")
        try:
            return mode(self) or 0
        except KeyboardInterrupt:
            self.aborted()
            return 0

    def aborted(self) -> None:
        self.result(subtype="error_during_execution", is_error=True, terminal_reason="aborted_streaming")

    # -- frames

    def emit(self, kind: str, **members: object) -> None:
        """One frame, one write."""
        frame = {"type": kind, **members, "session_id": self.session.id, "uuid": new_uuid()}
        write(1, json.dumps(frame, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n")

    def init(self) -> None:
        self.emit("system", subtype="init", cwd=os.getcwd(), tools=["Bash"], model=self.model, permissionMode="default")

    def event(self, kind: str, **members: object) -> None:
        self.emit("stream_event", event={"type": kind, **members}, parent_tool_use_id=None)

    def result(self, text: str | None = None, **members: object) -> None:
        """The last frame, unless an interrupt was faster."""
        if self.conversation is not None and "terminal_reason" not in members:
            self.conversation.claim_end()
        usage = {"input_tokens": len(self.prompt) // 4 + 1, "output_tokens": self.output_chars // 4}
        told = {} if text is None else {"result": text}
        defaults = {"subtype": "success", "is_error": False, "num_turns": 1, "stop_reason": "end_turn"}
        usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        self.emit("result", **{**defaults, **told, "total_cost_usd": 0, "usage": usage, **members})

    def message(self, *blocks: dict[str, object], delay_s: float = 0.0, pieces: Iterable[str] = ()) -> None:
        """One message of the model: each block streamed, then told whole. *pieces* are how the last block streams."""
        message_id = f"msg_{new_uuid()}"
        shell = {"id": message_id, "type": "message", "role": "assistant", "model": self.model}
        self.event("message_start", message={**shell, "content": [], "usage": {"input_tokens": 1, "output_tokens": 1}})
        for index, block in enumerate(blocks):
            own = pieces if index == len(blocks) - 1 else ()
            self.block(index, block, own or words_of(block_text(block)), delay_s)
            self.emit("assistant", message={**shell, "content": [block]}, parent_tool_use_id=None)
            self.event("content_block_stop", index=index)
        reason = "tool_use" if blocks and blocks[-1]["type"] == "tool_use" else "end_turn"
        self.event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage={"output_tokens": 1})
        self.event("message_stop")

    def block(self, index: int, block: dict[str, object], pieces: Iterable[str], delay_s: float) -> None:
        kind, key, delta = STREAMED[str(block["type"])]
        self.event("content_block_start", index=index, content_block={**block, key: {} if key == "input" else ""})
        for piece in pieces:
            self.event("content_block_delta", index=index, delta={"type": kind, delta: piece})
            self.output_chars += len(piece)
            time.sleep(delay_s)

    # -- what is said

    def answer_text(self, default_words: int = 0) -> str:
        count = int(self.directive.number("words", default_words))
        if text := self.directive.text("text"):
            said = text
        elif count:
            said = " ".join(WORDS[number % len(WORDS)] for number in range(count))
        else:
            said = self._friendly()
        return f"turn {len(self.session.prompts)}: {said}"

    def _friendly(self) -> str:
        words = self.directive.rest.split()
        echoed = " ".join(words[:ECHOED_WORDS]) + (" …" if len(words) > ECHOED_WORDS else "")
        return f"Hello! You said “{echoed or 'nothing'}” ({len(self.prompt)} characters). I am the demo agent and only repeat it."

    def answer(self, default_words: int = 0, default_delay_ms: float | None = None) -> None:
        """The ordinary end of a turn: a streamed answer and its result."""
        text = self.answer_text(default_words)
        if default_delay_ms is None:
            default_delay_ms = 20 if self.directive.name or "[[demo" in self.prompt else 500 / (text.count(" ") + 1)
        self.message({"type": "text", "text": text}, delay_s=self.directive.number("delay_ms", default_delay_ms) / 1000)
        self.result(text)


class Conversation:
    """A session's turns in one process. A thread reads stdin, so that a turn under way can be interrupted."""

    def __init__(self, options: dict[str, str]) -> None:
        import queue
        import threading

        self._options = options
        self.session = Prompts(options)
        self._prompts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._guard = threading.Lock()  # an interrupt hits the turn under way, or nothing
        self._is_answering = False
        self._main = threading.get_ident()
        threading.Thread(target=self._listen, daemon=True).start()

    def run(self) -> int:
        """Answer until stdin ends."""
        if not self.session.is_known:
            return Turn(self._options, "", self).run()
        while (prompt := self._prompts.get()) is not None:
            self._answering(True)
            if (code := Turn(self._options, prompt, self).run()) != 0:
                return code
            self._answering(False)
        return 0

    def claim_end(self) -> None:
        """From here on the turn ends as its own; where an interrupt has hit it already, that is awaited."""
        import signal

        if not self._answering(False) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            time.sleep(60)

    def _answering(self, is_so: bool) -> bool:
        with self._guard:
            before, self._is_answering = self._is_answering, is_so
        return before

    def _interrupt(self) -> None:
        import signal

        signal.pthread_kill(self._main, signal.SIGINT)

    def _listen(self) -> None:
        for line in sys.stdin.buffer:
            try:
                frame = json.loads(line)
            except ValueError:
                os.write(2, b"Error parsing streaming input line\n")
                os._exit(1)
            self._take(frame)
        self._prompts.put(None)

    def _take(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "user":
            self._prompts.put(str(frame["message"]["content"]).strip())
        elif frame["type"] == "control_response":
            self.answers.put(dict(frame["response"]))
        elif frame["type"] == "control_request":
            is_known = frame["request"]["subtype"] in ("initialize", "interrupt")
            told = {"subtype": "success" if is_known else "error", "request_id": frame["request_id"]}
            write(1, json.dumps({"type": "control_response", "response": told}).encode() + b"\n")
            if frame["request"]["subtype"] == "interrupt" and self._answering(False):
                self._interrupt()


# How a block streams: the kind of its deltas, its own field, the field of the delta.
STREAMED = {
    "text": ("text_delta", "text", "text"),
    "thinking": ("thinking_delta", "thinking", "thinking"),
    "tool_use": ("input_json_delta", "input", "partial_json"),
}


def block_text(block: dict[str, object]) -> str:
    """The text or JSON of a block, which its deltas put together."""
    value = block[STREAMED[str(block["type"])][1]]
    return value if isinstance(value, str) else json.dumps(value)


# -- modes


def plain(turn: Turn) -> None:
    turn.init()
    turn.answer()


def think(turn: Turn) -> None:
    turn.init()
    thought = " ".join(f"thought-{number}" for number in range(int(turn.directive.number("thoughts", 20))))
    text = turn.answer_text()
    delay_s = turn.directive.number("delay_ms", 20) / 1000
    turn.message(
        {"type": "thinking", "thinking": thought, "signature": ""}, {"type": "text", "text": text}, delay_s=delay_s
    )
    turn.result(text)


def ask(turn: Turn) -> None:
    turn.init()
    request = {
        "subtype": "can_use_tool",
        "tool_name": turn.directive.text("tool", "Bash"),
        "input": {"command": "echo asked"},
        "description": "a demo",
    }
    patience_ms = turn.directive.number("withdraw_ms", 0)
    told = answer_to(turn, request, within_s=patience_ms / 1000 if patience_ms else None)
    time.sleep(turn.directive.number("delay_ms", 0) / 1000)
    say(turn, "no answer" if told is None else told["behavior"])


def question(turn: Turn) -> None:
    turn.init()
    is_servers = turn.directive.text("from", "tool") == "server"
    told = answer_to(turn, SERVER_QUESTION if is_servers else TOOL_QUESTION)
    if told is None:
        say(turn, "no answer")
    elif is_servers:
        say(turn, f"{told['action']} {told.get('content', {}).get('colour', 'nothing')}")
    else:
        say(turn, told["updatedInput"]["answers"].get(COLOUR, "nothing") if told["behavior"] == "allow" else "deny")


def answer_to(turn: Turn, request: dict[str, Any], within_s: float | None = None) -> dict[str, Any] | None:
    """What the host answers to *request*; None when it refuses to, or does not within *within_s*: then it is taken back."""
    import queue

    if turn.conversation is None:
        raise TurnOver(1, "error: only in a session somebody can be asked")
    request_id = new_uuid()
    turn.emit("control_request", request_id=request_id, request=request)
    try:
        while (answer := turn.conversation.answers.get(timeout=within_s)).get("request_id") != request_id:
            pass
    except queue.Empty:
        turn.emit("control_cancel_request", request_id=request_id)
        return None
    told = answer.get("response")
    return told if isinstance(told, dict) else None


def say(turn: Turn, text: str) -> None:
    """A turn that says just this."""
    text = f"turn {len(turn.session.prompts)}: {text}"
    turn.message({"type": "text", "text": text})
    turn.result(text)


def tool(turn: Turn) -> None:
    turn.init()
    command, call_id = turn.directive.text("cmd", "echo hello"), f"toolu_{new_uuid()}"
    turn.message({"type": "tool_use", "id": call_id, "name": "Bash", "input": {"command": command}})
    output, code = shell(command)
    block = {"type": "tool_result", "tool_use_id": call_id, "content": output, "is_error": code != 0}
    turn.emit("user", message={"role": "user", "content": [block]}, parent_tool_use_id=None)
    turn.answer()


def shell(command: str) -> tuple[str, int]:
    """What *command* printed, and its exit code; an interrupt ends its process group, as Claude's does."""
    import signal
    import subprocess

    noted: list[int] = []  # an interrupt while the child is being made would leave it behind
    before = signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    child = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        signal.signal(signal.SIGINT, before)
        if noted:
            raise KeyboardInterrupt
        printed, _ = child.communicate()
    except KeyboardInterrupt:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        raise
    return printed.decode(errors="replace").rstrip("\n"), child.returncode


def slow(turn: Turn) -> None:
    turn.init()
    turn.answer(default_words=120, default_delay_ms=500)


def silent(turn: Turn) -> None:
    turn.init()
    time.sleep(turn.directive.number("seconds", 3600))
    turn.answer()


def fail(turn: Turn) -> int:
    kind = turn.directive.text("kind", "exit")
    if kind in API_ERRORS:
        return api_error(turn, kind)
    if kind not in DEATHS:
        raise TurnOver(1, f"error: no failure of kind {kind}; known: {', '.join(sorted({*API_ERRORS, *DEATHS}))}")
    return DEATHS[kind](turn)


def flood(turn: Turn) -> None:
    turn.init()
    lines, size = int(turn.directive.number("lines", 1000)), int(turn.directive.number("bytes", 1000))
    pieces = (f"{number:08d} ".ljust(size, "x")[:size] for number in range(lines))
    is_repeated = lines * size <= REPEATED_BYTES
    text = "".join(pieces) if is_repeated else f"a flood of {lines} deltas of {size} bytes"
    turn.message({"type": "text", "text": text}, pieces=sliced(text, size) if is_repeated else pieces)
    turn.result(text)


def stderr(turn: Turn) -> None:
    turn.init()
    left, line = int(turn.directive.number("bytes", 1_000_000)), b"demo: still loading, please wait ........\n"
    while left > 0:
        write(2, (line * 1000)[:left])
        left -= len(line) * 1000
    turn.answer()


def clobber(turn: Turn) -> None:
    import subprocess

    turn.init()
    text = turn.answer_text(12)
    turn.message({"type": "text", "text": text}, pieces=clobbering(text, subprocess.call))
    turn.result(text)


def clobbering(text: str, call: Callable[[list[str]], int]) -> Iterator[str]:
    """The words of *text*, and between them what a child must not be able to do to the agent's own output."""
    for number, piece in enumerate(words_of(text)):
        if number == 4:
            call(["/bin/sh", "-c", "echo x > /dev/stdout; echo x > /dev/stderr"])
        yield piece


def stubborn(turn: Turn) -> None:
    import signal
    import subprocess

    seconds = turn.directive.number("seconds", 600)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a child inherits what is ignored
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", str(seconds)])
    turn.init()
    turn.message({"type": "text", "text": turn.answer_text(int(seconds * 5))}, delay_s=0.2)
    child.wait()
    turn.result("I was not stopped")


def linger(turn: Turn) -> None:
    turn.init()
    turn.answer()
    time.sleep(turn.directive.number("seconds", 600))


def api_error(turn: Turn, kind: str) -> int:
    """What Claude prints when its API refuses: retries, a synthetic message, a result labelled success."""
    name, status, text = API_ERRORS[kind]
    turn.init()
    if kind == "quota":
        limit = {"status": "rejected", "resetsAt": int(time.time()) + 3600, "rateLimitType": "five_hour"}
        turn.emit("rate_limit_event", rate_limit_info=limit)
    elif status in (429, 529):
        turn.emit(
            "system", subtype="api_retry", attempt=1, max_retries=1, retry_delay_ms=10, error_status=status, error=name
        )
    said = {"id": new_uuid(), "role": "assistant", "model": "<synthetic>", "content": [{"type": "text", "text": text}]}
    turn.emit("assistant", message=said, parent_tool_use_id=None, error=name)
    reason = "refusal" if kind == "refusal" else "stop_sequence"
    turn.result(text, is_error=True, api_error_status=status, stop_reason=reason)
    return 1


def die_by_exit(turn: Turn) -> int:
    turn.init()
    turn.message({"type": "text", "text": turn.answer_text(5)})
    raise TurnOver(int(turn.directive.number("code", 3)), "demo: something went wrong on purpose")


def die_by_kill(turn: Turn) -> int:
    turn.init()
    os.kill(os.getpid(), 9)
    return 0


def print_garbage(turn: Turn) -> int:
    turn.init()
    write(1, b'wrapper: starting\n\xff\xfe not utf-8 \xa4\xa4\n{"mode": "fast"\n{}\n[1, 2]\n\x1b[31mred\x1b[0m\n')
    return 0


def print_nothing(turn: Turn) -> int:
    return 0


def tear_result(turn: Turn) -> int:
    turn.init()
    turn.message({"type": "text", "text": turn.answer_text(5)})
    write(1, b'{"type":"result","subtype":"success","is_err')
    return 0


MODES: dict[str, Callable[[Turn], int | None]] = {
    "": plain, "think": think, "ask": ask, "question": question, "tool": tool, "slow": slow, "silent": silent,
    "fail": fail, "flood": flood, "stderr": stderr, "clobber": clobber, "stubborn": stubborn, "linger": linger,
}  # fmt: skip
DEATHS: dict[str, Callable[[Turn], int]] = {
    "exit": die_by_exit, "killed": die_by_kill, "garbage": print_garbage, "nothing": print_nothing, "torn": tear_result,
}  # fmt: skip


# -- output


def write(descriptor: int, data: bytes) -> None:
    """All of *data*; one write unless the system takes less."""
    while data:
        data = data[os.write(descriptor, data) :]


def sliced(text: str, size: int) -> Iterator[str]:
    """*text* in pieces of *size* characters."""
    return (text[start : start + size] for start in range(0, len(text), size))


def words_of(text: str) -> Iterator[str]:
    """*text* in pieces that end after a space; put together they are *text*."""
    return (match[0] for match in re.finditer(r"\S*\s*", text) if match[0])


def new_uuid() -> str:
    """A random UUID; the `uuid` module would cost a third of the start-up."""
    raw = os.urandom(16).hex()
    return f"{raw[:8]}-{raw[8:12]}-4{raw[13:16]}-a{raw[17:20]}-{raw[20:]}"


def _unquoted(value: str) -> str:
    """*value* with %XX decoded, as `urllib.parse.unquote` does, without its import."""
    if "%" not in value:
        return value
    raw = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes([int(match[1], 16)]), value.encode())
    return raw.decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
