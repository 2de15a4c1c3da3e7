"""The demo agent is what other tests stand on, so it is tested as what it is: a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from providers.cli.dialect import Noise, ProcessEnd, TurnContext
from providers.cli.dialects.claude_stream_json import ClaudeDecoder, decoder
from runtime.events import Draft, EventType, RateLimit, ToolCall, ToolResult
from runtime.failure import FailureCode
from tests.support.expect import decode

ROOT = Path(__file__).parents[2]


class Demo:
    """Runs the demo agent with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "IOP_DEMO_HOME": str(home / "sessions"),
        }
        self.argv = [sys.executable, "-m", "providers.demo_agent"]
        self.home = home

    def start(self, prompt: str, *arguments: str) -> subprocess.Popen[bytes]:
        (self.home / "prompt").write_text(prompt)
        with open(self.home / "prompt", "rb") as stdin:
            return subprocess.Popen(
                [*self.argv, *arguments],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                cwd=self.home,
            )

    def run(self, prompt: str, *arguments: str, resumed_id: str | None = None) -> Told:
        if resumed_id:
            arguments = (*arguments, "--resume", resumed_id)
        process = self.start(prompt, *arguments)
        stdout, stderr = process.communicate(timeout=60)
        return Told(process.returncode, stdout, stderr.decode(), resumed_id)


class Told:
    """What a finished run said."""

    def __init__(self, code: int, stdout: bytes, stderr: str, resumed_id: str | None) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr
        self.decoder: ClaudeDecoder = decoder(TurnContext(resumed_id=resumed_id))
        self.found = decode([stdout], self.decoder)
        end = ProcessEnd(code=code, stderr=stderr) if code >= 0 else ProcessEnd(signal=-code, stderr=stderr)
        self.terminal = self.decoder.conclude(end)

    def said(self, kind: EventType = EventType.DELTA) -> str:
        return "".join(each.text for each in self.found if isinstance(each, Draft) and each.type is kind)

    @property
    def activities(self) -> list[object]:
        return [each.activity for each in self.found if isinstance(each, Draft) and each.activity]

    @property
    def noise(self) -> list[str]:
        return [each.kind for each in self.found if isinstance(each, Noise)]

    @property
    def failure_code(self) -> FailureCode | None:
        return self.terminal.failure.code if self.terminal.failure else None


@pytest.fixture
def demo(tmp_path: Path) -> Demo:
    return Demo(tmp_path)


def test_an_answer_is_streamed_in_several_deltas_and_repeats_the_prompt(demo: Demo) -> None:
    told = demo.run("say hi, friend")

    assert (told.code, told.stderr, told.noise) == (0, "", [])
    assert told.terminal.type is EventType.COMPLETE
    assert told.terminal.text == told.said()
    assert told.said().startswith("turn 1: ")
    assert "say hi, friend" in told.said()
    assert len(told.found) > 5
    assert told.terminal.usage is not None


@pytest.mark.req("RT-36")
def test_a_resumed_session_has_its_history(demo: Demo) -> None:
    first = demo.run("[[demo words=2 delay_ms=0]]")
    assert first.decoder.native_id

    second = demo.run("[[demo words=2 delay_ms=0]]", resumed_id=first.decoder.native_id)

    assert second.terminal.text == "turn 2: alpha bravo"
    assert second.decoder.native_id == first.decoder.native_id


@pytest.mark.parametrize("session_id", ["11111111-2222-4333-8444-555555555555", "../../escape"])
def test_an_unknown_session_is_an_error_as_with_claude(demo: Demo, session_id: str) -> None:
    told = demo.run("hello", resumed_id=session_id)

    assert told.code == 1
    assert told.stderr == f"No conversation found with session ID: {session_id}\n"
    assert told.failure_code is FailureCode.LOST


def test_a_chosen_session_id_is_used_once(demo: Demo) -> None:
    first = demo.run("[[demo words=1]]", "--session-id", "mine")
    second = demo.run("[[demo words=1]]", "--session-id", "mine")

    assert first.decoder.native_id == "mine"
    assert (second.code, second.stdout) == (1, b"")


def test_thinking_comes_before_the_answer(demo: Demo) -> None:
    told = demo.run("[[demo:think thoughts=3 delay_ms=0 text=done]]")

    assert told.said(EventType.REASONING_DELTA) == "thought-0 thought-1 thought-2"
    assert told.terminal.text == told.said() == "turn 1: done"


def test_a_tool_call_really_runs(demo: Demo) -> None:
    told = demo.run("[[demo:tool cmd=echo%20made>made;cat%20made;exit%203 delay_ms=0]]")

    call, result = told.activities
    assert isinstance(call, ToolCall)
    assert json.loads(call.input_json) == {"command": "echo made>made;cat made;exit 3"}
    assert result == ToolResult(call_id=call.call_id, output="made", is_error=True)
    assert (demo.home / "made").exists()


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("auth", FailureCode.AUTH_REQUIRED),
        ("rate", FailureCode.RATE_LIMITED),
        ("quota", FailureCode.QUOTA_EXHAUSTED),
        ("overloaded", FailureCode.PROVIDER_OVERLOADED),
        ("model", FailureCode.MODEL_UNAVAILABLE),
        ("refusal", FailureCode.REFUSED),
        ("exit", FailureCode.PROCESS_FAILED),
        ("killed", FailureCode.PROCESS_FAILED),
        ("garbage", FailureCode.OUTPUT_INVALID),
        ("nothing", FailureCode.OUTPUT_INVALID),
        ("torn", FailureCode.OUTPUT_INVALID),
    ],
)
def test_each_kind_of_failure_is_told_as_what_it_is(demo: Demo, kind: str, code: FailureCode) -> None:
    told = demo.run(f"[[demo:fail kind={kind}]]")

    assert told.failure_code is code


def test_a_spent_window_says_when_it_opens(demo: Demo) -> None:
    told = demo.run("[[demo:fail kind=quota]]")

    (limit,) = told.activities
    assert isinstance(limit, RateLimit)
    assert told.terminal.failure is not None
    assert told.terminal.failure.metadata["resets_at"] == str(limit.resets_at)


def test_a_flood_is_whole(demo: Demo) -> None:
    told = demo.run("[[demo:flood lines=500 bytes=4000]]")

    assert len(told.found) == 500
    assert len(told.terminal.text) == 2_000_000
    assert told.terminal.text == told.said()


def test_stderr_can_be_flooded(demo: Demo) -> None:
    told = demo.run("[[demo:stderr bytes=300000 words=1]]")

    assert len(told.stderr) == 300_000
    assert told.terminal.type is EventType.COMPLETE


def test_a_child_reopens_the_outputs_of_the_agent(demo: Demo) -> None:
    told = demo.run("[[demo:clobber]]")

    assert (told.noise, told.stderr) == (["not_json"], "x\n")
    assert told.terminal.type is EventType.COMPLETE


def test_an_interrupt_ends_the_turn_as_with_claude(demo: Demo) -> None:
    process = demo.start("[[demo:slow]]")
    assert process.stdout is not None
    first = process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)

    told = Told(process.returncode, first + rest, "", None)
    assert (told.code, told.failure_code) == (0, FailureCode.INTERRUPTED)


def test_a_stubborn_agent_and_its_child_outlive_term_and_int(demo: Demo) -> None:
    process = demo.start("[[demo:stubborn seconds=60]]")
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = children_of(process.pid)
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(process.pid, number)
            os.kill(child, number)
        process.stdout.readline()

        assert process.poll() is None
        assert children_of(process.pid) == [child]
    finally:
        os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate(timeout=60)


def test_a_lingering_agent_has_said_everything(demo: Demo) -> None:
    process = demo.start("[[demo:linger words=1 delay_ms=0]]")
    assert process.stdout is not None
    last = next(line for line in process.stdout if b'"type":"result"' in line)

    assert json.loads(last)["result"] == "turn 1: alpha"
    assert process.poll() is None
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("prompt", "arguments", "message"),
    [
        ("hi", ["--no-such-flag"], "error: unknown option '--no-such-flag'"),
        ("  ", [], "Error: Input must be provided through stdin"),
        ("[[demo:dance]]", [], "error: no directive named dance"),
        ("[[demo:fail kind=odd]]", [], "error: no failure of kind odd"),
        ("[[demo words=many]]", [], "error: words=many is not a number"),
    ],
)
def test_bad_use_is_refused_in_one_sentence(demo: Demo, prompt: str, arguments: list[str], message: str) -> None:
    told = demo.run(prompt, *arguments)

    assert told.code == 1
    assert told.stderr.startswith(message)
    assert told.stderr.count("\n") == 1


def test_it_starts_fast(demo: Demo) -> None:
    """Time of the processor beside a bare interpreter's, so that a busy machine changes nothing: the imports of the agent
    cost a hundredth of a second or two, several times that on a slow machine.
    """
    bare = min(seconds([sys.executable, "-c", "pass"]) for _ in range(3))
    agent = min(seconds([*demo.argv, "--version"], demo.environment) for _ in range(3))

    assert agent < bare + 0.3


def seconds(argv: list[str], environment: dict[str, str] | None = None) -> float:
    """The time of the processor that a run of *argv* takes."""
    begun = os.times()
    subprocess.run(argv, env=environment, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    ended = os.times()
    return ended.children_user + ended.children_system - begun.children_user - begun.children_system


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
