"""The commands as a shell sees them: real processes against a scripted node, judged by output and exit code."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from node.commands.app import main
from node.commands.dial import Exit
from node.commands.output import event_to_json, one_line, printable
from node.commands.printers import HumanPrinter, activity_line, usage_line
from node.pb import node_pb2
from runtime.events import EventType, Notice, PermissionRequest, Plan, PlanEntry, RateLimit, ToolCall, ToolResult, Usage
from runtime.failure import Failure, FailureCode
from tests.support.scripted_node import ScriptedNode, script, served

PROGRAM = (sys.executable, "-c", "import sys; from node.commands.app import main; sys.exit(main())")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


@asynccontextmanager
async def started(
    *arguments: str, stdin: bytes = b"", stdout: int = asyncio.subprocess.PIPE, address: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=stdout,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "IOP_NODE": address or "127.0.0.1:50400"},
    )
    assert process.stdin is not None
    process.stdin.write(stdin)
    process.stdin.close()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def iop(*arguments: str, stdin: bytes = b"", address: str = "") -> Ended:
    async with asyncio.timeout(60), started(*arguments, stdin=stdin, address=address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = await asyncio.gather(process.stdout.read(), process.stderr.read())
        return Ended(code=await process.wait(), out=out.decode(), err=err.decode())


async def ask(node: ScriptedNode, *arguments: str, stdin: bytes = b"") -> Ended:
    async with served(node) as address:
        return await iop(*arguments, stdin=stdin, address=address)


# --- run


@pytest.mark.req("PKG-01")
async def test_a_run_puts_the_answer_alone_on_standard_output() -> None:
    ended = await ask(ScriptedNode("hello ", "world"), "run", "--target", "demo", "--run-id", "r1", "say hi")

    assert (ended.code, ended.out) == (Exit.DONE, "hello world\n")
    assert "complete r1" in ended.err
    assert "tokens 7 in / 0 out" in ended.err
    assert "\x1b" not in ended.out + ended.err
    assert "read_file" not in ended.err


@pytest.mark.req("NB-16")
@pytest.mark.parametrize(
    ("end", "code"), [(EventType.ERROR, Exit.RUN_FAILED), (EventType.CANCELLED, Exit.RUN_CANCELLED)]
)
async def test_how_a_run_ended_is_its_exit_code(end: EventType, code: Exit) -> None:
    ended = await ask(ScriptedNode("a", end=end), "run", "--target", "demo", "x")

    assert ended.code == code
    assert ("process_failed: the agent exited with 3" in ended.err) is (end is EventType.ERROR)


@pytest.mark.req("RT-13")
async def test_activity_is_shown_when_asked_for() -> None:
    ended = await ask(ScriptedNode("a"), "run", "--target", "demo", "--activity", "x")

    assert '-> read_file {"path":"a"}' in ended.err


@pytest.mark.req("NB-05", "RT-18")
async def test_programs_get_one_json_object_per_event() -> None:
    node = ScriptedNode("a", "b")

    ended = await ask(node, "run", "--target", "demo", "--run-id", "r1", "--activity", "--json", "x")

    events = [json.loads(line) for line in ended.out.splitlines()]
    assert [(e["sequence"], e["type"]) for e in events] == [(e.sequence, e.type) for e in node.events("r1")]
    assert events[0]["timestamp"] == "2023-11-14T22:13:20.001000+00:00"
    assert events[-1]["usage"] == {"input_tokens": 7, "output_tokens": 0}
    assert ended.err == ""


@pytest.mark.req("NB-02", "RT-08", "RT-09", "RT-33")
async def test_every_option_of_a_run_reaches_the_node() -> None:
    node = ScriptedNode("a")
    session = ["--session", "s1", "--require-existing"]
    rest = ["--background", "--timeout", "1.5", "--workspace", "/srv", "--activity", "--run-id", "r1"]

    await ask(node, "run", "--target", "demo", *session, *rest, "-", stdin="prömpt\n".encode())

    (request,) = node.requests
    assert request == node_pb2.RunRequest(
        run_id="r1",
        target="demo",
        session_id="s1",
        session_mode=node_pb2.SESSION_MODE_REQUIRE_EXISTING,
        background=True,
        workspace="/srv",
        input="prömpt\n",
        timeout={"seconds": 1, "nanos": 500_000_000},
        include_activity=True,
    )


@pytest.mark.req("NB-16")
@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (["run", "--target", "unknown", "x"], b""),
        (["run", "x"], b""),
        (["run", "--target", "demo", "--require-existing", "x"], b""),
        (["run", "--target", "demo", "-"], b"\xff"),
        (["run", "--target", "demo", "--timeout", "nan", "x"], b""),
        (["show", "missing"], b""),
        (["show", "--raw", "--answer", "r1"], b""),
        (["show", "--raw", "r1"], b""),
        (["attach", "missing"], b""),
        (["attach", "r1", "--after", "99"], b""),
        (["ps", "--node", "no-port"], b""),
        (["respond", "r1", "q1", "allow", "--answer", "blue"], b""),
        (["respond", "r1", "q1", "allow", "--answer", '["blue"]'], b""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
async def test_what_is_refused_exits_2_with_a_sentence(arguments: Sequence[str], stdin: bytes) -> None:
    ended = await ask(ScriptedNode("a"), *arguments, stdin=stdin)

    assert (ended.code, ended.out) == (Exit.REFUSED, "")
    assert ended.err.strip()
    assert "Traceback" not in ended.err


@pytest.mark.req("NB-16")
async def test_a_refusal_is_json_for_programs() -> None:
    ended = await ask(ScriptedNode("a"), "run", "--target", "unknown", "--json", "x")

    assert ended.code == Exit.REFUSED
    assert json.loads(ended.err)["error"]["code"] == "target_not_found"


@pytest.mark.req("NB-16")
async def test_no_node_exits_4_and_says_how_to_get_one() -> None:
    ended = await iop("run", "--target", "demo", "--node", "127.0.0.1:1", "x")

    assert ended.code == Exit.UNREACHABLE
    assert "iop-node serve" in ended.err


@pytest.mark.req("NB-16", "FAIL-10")
async def test_a_node_that_fails_exits_5() -> None:
    node = ScriptedNode("a")
    node.pages = []  # the servicer's own mistake

    ended = await ask(node, "ps")

    assert ended.code == Exit.NODE_FAILED
    assert "internal error" in ended.err


@pytest.mark.req("RT-19", "RT-33")
@pytest.mark.parametrize("background", [False, True])
async def test_ctrl_c_cancels_a_foreground_run_and_leaves_a_background_run(background: bool) -> None:
    node = ScriptedNode("a", "b", breaks=[(2, "hang")])
    options = ["--background"] if background else []

    async with (
        asyncio.timeout(60),
        served(node) as address,
        started("run", "--node", address, "--target", "demo", "--run-id", "r1", *options, "x") as process,
    ):
        await node.hanging.wait()
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
        code = await process.wait()

    assert code == Exit.INTERRUPTED
    assert [cancel.run_id for cancel in node.cancels] == ([] if background else ["r1"])
    assert ("iop-node attach r1" if background else "cancelled r1") in said
    assert "Traceback" not in said


@pytest.mark.req("RT-35")
@pytest.mark.parametrize("json_", [[], ["--json"]], ids=["people", "programs"])
async def test_a_closed_pipe_ends_the_command_quietly(json_: list[str]) -> None:
    node = ScriptedNode(*["x" * 1000] * 2000)

    read_end, write_end = os.pipe()

    async with (
        asyncio.timeout(60),
        served(node) as address,
        started("run", "--node", address, "--target", "demo", *json_, "x", stdout=write_end) as process,
    ):
        os.close(write_end)
        await asyncio.to_thread(os.read, read_end, 1)
        os.close(read_end)
        assert process.stderr is not None
        said = (await process.stderr.read()).decode()
        code = await process.wait()

    assert code == Exit.BROKEN_PIPE
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


# --- the runs of a node


@pytest.mark.req("NB-02")
async def test_attach_goes_on_after_a_sequence() -> None:
    ended = await ask(ScriptedNode("a", "b"), "attach", "r1", "--after", "2", "--json")

    assert [json.loads(line)["sequence"] for line in ended.out.splitlines()] == [3, 5]
    assert ended.code == Exit.DONE


@pytest.mark.req("NB-02")
async def test_attaching_at_the_end_tells_how_the_run_ended() -> None:
    node = ScriptedNode("a", end=EventType.ERROR)
    node.state = node_pb2.RUN_STATE_ERROR

    ended = await ask(node, "attach", "r1", "--after", str(len(node.events("r1"))))

    assert (ended.code, ended.out) == (Exit.RUN_FAILED, "")


@pytest.mark.req("RT-19")
async def test_cancel_asks_the_node() -> None:
    node = ScriptedNode("a")

    ended = await ask(node, "cancel", "r1", "--reason", "enough")

    assert (ended.code, ended.err) == (Exit.DONE, "cancelled r1\n")
    assert node.cancels == [node_pb2.CancelRunRequest(run_id="r1", reason="enough")]


@pytest.mark.req("NB-02")
async def test_ps_lists_all_pages() -> None:
    node = ScriptedNode("a")
    node.pages = [
        node_pb2.ListRunsResponse(runs=[node.info("r" * 128)], next_page_token="1"),
        node_pb2.ListRunsResponse(runs=[node.info("r1")]),
    ]

    people, programs = await ask(node, "ps"), await ask(node, "ps", "--all", "--json")

    assert [line.split()[0] for line in people.out.splitlines()] == ["RUN", "r" * 128, "r1"]
    assert [json.loads(line)["run_id"] for line in programs.out.splitlines()] == ["r" * 128, "r1"]
    assert [request.active_only for request in node.requests] == [True, True, False, False]


@pytest.mark.req("FAIL-01")
async def test_show_says_why_a_run_failed() -> None:
    node = ScriptedNode("a", end=EventType.ERROR)
    node.state = node_pb2.RUN_STATE_ERROR
    node.failure = Failure(code=FailureCode.PROCESS_FAILED, message="the agent exited with 3")

    ended = await ask(node, "show", "r1")

    facts = dict(line.split(maxsplit=1) for line in ended.out.splitlines() if len(line.split()) > 1)
    assert ended.code == Exit.DONE
    assert facts["cause"] == "process_failed: the agent exited with 3"
    assert (facts["exit_code"], facts["argv"]) == ("3", "demo-agent --json")
    assert ended.out.endswith("    one\n    two\n")


@pytest.mark.req("FAIL-01")
async def test_show_for_programs_is_one_object() -> None:
    node = ScriptedNode("a")
    node.failure = Failure(code=FailureCode.LOST, metadata={"k": "v"})

    shown = json.loads((await ask(node, "show", "r1", "--json")).out)

    assert shown["details"]["exit_code"] == "3"
    assert shown["run"]["failure"] == {"code": "lost", "message": "lost", "retryable": False, "metadata": {"k": "v"}}


@pytest.mark.req("NB-06")
@pytest.mark.parametrize("name", ["stderr", "raw", "answer"])
async def test_show_copies_an_artifact_byte_for_byte(name: str) -> None:
    node = ScriptedNode("a")
    node.artifacts = {name: "Grüße\n".encode()}

    ended = await ask(node, "show", "r1", f"--{name}")

    assert (ended.code, ended.out) == (Exit.DONE, "Grüße\n")


@pytest.mark.req("NB-05")
async def test_show_lists_the_events() -> None:
    node = ScriptedNode("a", "b\nc")

    people, programs = await ask(node, "show", "r1", "--events"), await ask(node, "show", "r1", "--events", "--json")

    assert len(people.out.splitlines()) == len(node.events("r1"))
    assert [json.loads(line) for line in programs.out.splitlines()] == [event_to_json(e) for e in node.events("r1")]


# --- the node


@pytest.mark.req("PKG-01")
async def test_status_and_capabilities_show_the_node() -> None:
    node = ScriptedNode("a")

    status, capabilities = await ask(node, "status", "--wait", "20"), await ask(node, "capabilities", "--json")

    assert status.code == Exit.DONE
    assert "a note" in status.out
    assert json.loads(capabilities.out)["targets"] == [
        {"adapter": "scripted", "target": "demo", "max_concurrency": 2, "verbs": [], "forks": False}
    ]


@pytest.mark.req("PKG-01")
async def test_status_waits_for_a_node_that_is_not_there_yet() -> None:
    node = ScriptedNode("a")
    async with served(node) as address:
        pass

    async with asyncio.timeout(60), started("status", "--wait", "20", "--node", address, "--json") as process:
        await asyncio.sleep(1)  # long enough for it to have asked in vain; shorter only makes the test weaker
        async with served(node, address=address):
            assert await process.wait() == Exit.DONE


@pytest.mark.req("PKG-01")
async def test_status_gives_up_on_a_node_that_does_not_serve() -> None:
    async with served(ScriptedNode("a"), serving=False) as address:
        ended = await iop("status", "--wait", "0.5", "--node", address)

    assert ended.code == Exit.UNREACHABLE
    assert "0.5 s" in ended.err


@pytest.mark.req("RT-37")
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("listen: 127.0.0.1:50500\n", Exit.DONE, "is valid"),
        ("listen: nowhere\n", Exit.REFUSED, "nowhere"),
        ("lisen: 127.0.0.1:50500\n", Exit.REFUSED, "lisen"),
    ],
    ids=["right", "wrong value", "unknown key"],
)
def test_config_check_says_what_is_wrong(
    text: str, code: Exit, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.yaml"
    path.write_text(text)

    assert main(["config", "check", "--config", str(path)]) == code
    assert said in capsys.readouterr().err


def test_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines() if line.strip()[:1].isdigit()] == [str(int(e)) for e in Exit]


# --- what is printed


@pytest.mark.req("NB-06")
def test_an_agent_cannot_send_commands_to_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\x07\x9b1mc\n\td") == "a[2Jb1mc\n\td"
    assert one_line("a\n b\x1b\t c", 5) == "a b c"


def test_the_answer_of_a_run_without_deltas_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    printer = HumanPrinter()
    events = script("whole", run_id="r1")

    for event in (events[0], events[-1]):
        printer.show(event)

    assert capsys.readouterr().out == "whole\n"


@pytest.mark.req("RT-29")
def test_usage_that_was_not_reported_is_not_printed() -> None:
    assert usage_line(Usage()) == ""
    assert usage_line(Usage(output_tokens=0)) == "tokens 0 out"
    assert usage_line(Usage(input_tokens=1234, cost_usd=0.5)) == "tokens 1,234 in, $0.5000"


def test_every_activity_has_its_line() -> None:
    entries = (PlanEntry(text="one", status="completed"), PlanEntry(text="two", status="in_progress"))

    lines = [
        activity_line(activity)
        for activity in (
            ToolCall(call_id="c", name="read", input_json="{}"),
            ToolResult(call_id="c", output="no\nsuch", is_error=True),
            Plan(entries=entries),
            RateLimit(status="warning", window="5h", used_percent=80.0),
            Notice(code="retry", message="again"),
            PermissionRequest(request_id="q1", tool="Bash", input_json="{}"),
            PermissionRequest(request_id="q2", tool="", kind="question", input_json="{}", reason="Which colour?"),
        )
    ]

    assert lines == [
        "-> read {}",
        "<- error: no such",
        "plan 1/2 two",
        "rate limit warning 5h 80 % used",
        "notice retry: again",
        "?? Bash {} (iop-node respond RUN q1 allow|deny)",
        "?? (iop-node respond RUN q2 allow --answer JSON|deny) Which colour? {}",
    ]
