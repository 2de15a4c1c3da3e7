"""Agents that cannot be started, say nothing, say too much, or never stop: each is one typed end, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from node.client import NodeClient
from runtime.events import FailureRecord, RuntimeEvent
from tests.support.nodes import Agent, Node, fake, files_holding, shell
from tests.support.runs import BOUND_S, ending, run, text, words

SECONDS = 1_000_000_000
RESULT = '{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"s"}'


def failure_of(events: list[RuntimeEvent]) -> FailureRecord:
    """The failure of a run whose events end in exactly one terminal."""
    assert [e.is_terminal for e in events] == [False] * (len(events) - 1) + [True]
    assert events[-1].type == "error" and events[-1].failure is not None, ending(events[-1])
    return events[-1].failure


def took_s(events: list[RuntimeEvent]) -> float:
    return (events[-1].time_ns - events[0].time_ns) / SECONDS


# --- what cannot be started


@pytest.mark.req("E-1", "RT-17", "NB-10")
async def test_a_missing_binary_is_named_with_the_places_looked_at(client: NodeClient) -> None:
    events = await run(client, "no-binary")

    assert words(events) == ["start", "error"]
    failure = failure_of(events)
    assert (failure.code, failure.retryable) == ("process_failed", False)
    assert failure.message.startswith(
        "binary 'iop-test-no-such-binary' was not found; install it, or put its directory on"
    )


async def test_a_file_that_is_not_executable_is_told_apart_from_a_missing_one(client: NodeClient) -> None:
    failure = failure_of(await run(client, "not-executable"))

    assert failure.code == "process_failed"
    assert "is not executable; make it so (chmod +x), or correct the profile's command" in failure.message


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"#!/no/such/interpreter\n", "No such file or directory"),
        (b"\x7fELF garbage", "Exec format error"),
        (b"no shebang at all\n", "Exec format error"),
    ],
)
async def test_a_file_that_the_kernel_refuses_is_a_typed_error_with_its_reason(
    new_node: Callable[..., Node], tmp_path: Path, content: bytes, reason: str
) -> None:
    program = tmp_path / "agent"
    program.write_bytes(content)
    program.chmod(0o755)
    node = new_node(agents={"broken": Agent(command=[str(program)])}).start()

    async with NodeClient(node.address) as client:
        events = await run(client, "broken")
        details = await client.get(events[0].run_id)

    failure = failure_of(events)
    assert (failure.code, failure.message) == ("process_failed", f"{program} could not be started (exec): {reason}")
    assert details.run.failure is not None and details.run.failure.message == failure.message
    assert stat.S_IMODE(os.stat(node.run_directories()[0]).st_mode) == 0o700


@pytest.mark.req("RT-34")
@pytest.mark.parametrize("instead", ["nothing", "a file"])
async def test_a_workspace_that_vanished_is_named_and_not_the_binary(
    new_node: Callable[..., Node], tmp_path: Path, instead: str
) -> None:
    """It is there when the request is checked, and gone when the agent is to start: one errno, two causes."""
    node = new_node(agents={"lingers": fake("lingers.sh")}, times={"cancel_grace_s": 4.0}).start()
    gone, named = tmp_path / "gone", {"session_id": "s", "session_mode": "create_if_missing"}
    gone.mkdir()

    async with NodeClient(node.address) as client:
        # The turn before leaves a process that takes its time to die, and the next turn waits for that.
        await run(client, "lingers", "linger", **named)
        second = asyncio.create_task(run(client, "lingers", str(tmp_path / "made"), workspace=str(gone), **named))
        while len(node.run_directories()) < 2:
            await asyncio.sleep(0.001)
        gone.rmdir()
        if instead == "a file":
            gone.touch()
        events = await second
        healthy = await run(client, "lingers", str(tmp_path / "made"))

    reason = "No such file or directory" if instead == "nothing" else "Not a directory"
    failure = failure_of(events)
    assert (failure.code, failure.message) == ("process_failed", f"workspace {str(gone)!r} cannot be entered: {reason}")
    assert words(healthy) == ["start", "complete"]


# --- what says nothing, or nonsense


@pytest.mark.parametrize(
    ("target", "script", "code", "sentence"),
    [
        ("shell", "exit 0", "output_invalid", "ended without printing anything (exit code 0)"),
        ("shell", "printf ' \\n\\t\\n'", "output_invalid", "ended without printing anything (exit code 0)"),
        ("shell", "exit 7", "process_failed", "(exit code 7)"),
        ("shell", "kill -SEGV $$", "process_failed", "(killed by signal 11)"),
        ("shell", "echo half an answer; exit 1", "process_failed", "(exit code 1)"),
        ("shell-json", "exit 0", "output_invalid", "(exit code 0)"),
        ("shell-json", "echo this is not JSON; echo '{\"type\":'; echo '[1]'", "output_invalid", "(exit code 0)"),
        ("shell-json", "head -c 300000 /dev/urandom", "output_invalid", "(exit code 0)"),
        ("shell-json", 'echo \'{"type":"result"\'', "output_invalid", "(exit code 0)"),
        ("shell-json", "echo 'Not logged in. Please run /login' >&2; exit 1", "auth_required", "Please run /login"),
        (
            "shell-json",
            "echo 'ProviderModelNotFoundError: model not found: x' >&2",
            "model_unavailable",
            "model not found: x",
        ),
    ],
)
@pytest.mark.req("E-1", "RT-17", "RT-16")
async def test_an_output_that_proves_nothing_is_no_success(
    client: NodeClient, target: str, script: str, code: str, sentence: str
) -> None:
    events = await run(client, target, script)

    failure = failure_of(events)
    assert failure.code == code
    assert sentence in failure.message
    assert set(words(events)) <= {"start", "delta", "error"}


@pytest.mark.req("FAIL-08")
async def test_the_last_words_on_stderr_explain_a_failure_with_tokens_masked(client: NodeClient) -> None:
    script = 'echo "Error: the session has expired (token tok_TESTSECRET_0123456789abcdef). Run the login command." >&2; exit 1'
    events = await run(client, "shell-json", script)
    details = await client.get(events[0].run_id)

    failure = failure_of(events)
    assert (failure.code, failure.metadata["exit_code"]) == ("auth_required", "1")
    assert "Error: the session has expired (token [redacted]). Run the login command." in failure.message
    assert details.details["stderr_tail"] == "Error: the session has expired (token [redacted]). Run the login command."
    assert details.details["exit_code"] == "1"


# --- what says too much


async def test_two_megabytes_of_stderr_block_nobody(node: Node, client: NodeClient) -> None:
    async with asyncio.timeout(BOUND_S):
        events = await run(client, "floods-stderr")

    kept = {one.name: one.size_bytes for one in await client.artifacts(events[0].run_id)}
    assert ending(events[-1]) == ("complete", "ok")
    assert 64 * 1024 < kept["stderr"] < 140 * 1024, "the first and the last 64 KiB, and a mark between"


@pytest.mark.req("NB-06")
async def test_a_line_over_the_cap_is_one_diagnostic_and_the_stream_goes_on(node: Node, client: NodeClient) -> None:
    before = _peak_kib(node.pid)
    events = await run(client, "giant-line", "24")
    details = (await client.get(events[0].run_id)).details

    assert ending(events[-1]) == ("complete", "done")
    assert "overlong: 1" in details["noise"]
    size, limit = (24 << 20) + len('{"type":"user","blob":""}'), 4 << 20
    assert f"a line of {size} bytes was left out; the limit is {limit} bytes" in details["noise_samples"]
    assert _peak_kib(node.pid) - before < 16 << 10, "memory follows the cap, not the line"


@pytest.mark.req("E-1")
async def test_more_output_than_the_bound_ends_the_run_as_output_limit(new_node: Callable[..., Node]) -> None:
    node = new_node(agents={"shell": shell()}, limits={"output_bytes": 1 << 20}).start()

    async with NodeClient(node.address) as client, asyncio.timeout(BOUND_S):
        events = await run(client, "shell", "exec yes $(head -c 9000 /dev/zero | tr '\\0' x)")

    assert failure_of(events).code == "output_limit"
    node.assert_no_agents()


@pytest.mark.req("NB-06")
async def test_bytes_that_are_not_utf8_arrive_as_replacements(client: NodeClient) -> None:
    events = await run(client, "shell", r"printf 'a\377b\000c\n'")

    assert ending(events[-1]) == ("complete", "a\ufffdb\ufffdc\n")


# --- the prompt


@pytest.mark.parametrize("size", [0, 1, 131_071, 131_072, 140_000, 3 << 20])
async def test_a_prompt_of_any_size_arrives_whole_and_never_on_the_command_line(client: NodeClient, size: int) -> None:
    events = await run(client, "counts-prompt", "x" * size)

    assert ending(events[-1]) == ("complete", f"argv=0 stdin={size}")


async def test_a_prompt_is_counted_in_bytes_and_not_changed(client: NodeClient) -> None:
    events = await run(client, "counts-prompt", "€" * 44_000)

    assert ending(events[-1]) == ("complete", "argv=0 stdin=132000")


async def test_an_agent_that_never_reads_its_prompt_just_ends(new_node: Callable[..., Node]) -> None:
    print_result = Agent(command=["/bin/sh", "-c", f"echo '{RESULT}'"])
    node = new_node(agents={"deaf": print_result}).start()

    async with NodeClient(node.address) as client:
        events = await run(client, "deaf", "x" * (3 << 20))

    assert [ending(e) for e in events[-1:]] == [("complete", "ok")]
    assert files_holding(node.run_directories()[0], "x" * 100) == []


async def test_stdin_ends_with_the_prompt(client: NodeClient) -> None:
    """An open pipe that nobody closes would be a silent hang."""
    events = await run(client, "shell", "cat; echo end")

    assert ending(events[-1]) == ("complete", " echo end\n") or text(events).endswith("end\n")


# --- what an agent does to its own output


@pytest.mark.req("E-1")
@pytest.mark.parametrize("trick", ["echo x > /dev/stdout", "echo x > /dev/stderr", "echo x > /proc/self/fd/1"])
async def test_reopening_stdout_loses_nothing(client: NodeClient, trick: str) -> None:
    events = await run(client, "shell", f"echo before; ({trick}) 2>/dev/null; echo after")

    assert ending(events[-1]) == ("complete", "before\nafter\n")


async def test_a_demo_agent_that_clobbers_its_output_loses_nothing(client: NodeClient) -> None:
    events = await run(client, "demo-agent", "[[demo:clobber delay_ms=0]]")

    assert events[-1].type == "complete"
    assert text(events) == events[-1].message


# --- silence and what comes after the end


@pytest.mark.req("E-1")
async def test_a_fatal_error_and_then_silence_ends_with_the_silence_bound(client: NodeClient) -> None:
    events = await run(client, "fatal-then-silent", policy={"iop": {"silence_timeout_s": 1.5}})
    details = await client.get(events[0].run_id)

    failure = failure_of(events)
    assert (failure.code, failure.retryable, failure.message) == (
        "silence_timeout",
        True,
        "no output was seen for 1.5 s",
    )
    assert 1.4 < took_s(events) < 30
    assert details.details["stderr_tail"] == "APICallError: Monthly usage limit reached"


@pytest.mark.parametrize(
    ("silent_s", "bound_s", "end"), [(1, 60, ("complete", "297")), (60, 0.4, ("error", "silence_timeout"))]
)
async def test_silence_before_a_burst_is_judged_by_the_bound_alone(
    client: NodeClient, silent_s: int, bound_s: float, end: tuple[str, str]
) -> None:
    events = await run(client, "silent-then-burst", str(silent_s), policy={"iop": {"silence_timeout_s": bound_s}})

    assert ending(events[-1]) == end
    numbers = [e.delta for e in events if e.type == "delta"]
    assert numbers == ([str(n) for n in range(298)] if end[0] == "complete" else [])


@pytest.mark.req("NB-15", "RT-12")
async def test_an_agent_that_stays_after_its_result_delays_neither_terminal_nor_session(client: NodeClient) -> None:
    named = {"session_id": "stays", "session_mode": "create_if_missing"}
    async with asyncio.timeout(BOUND_S):
        first = await run(client, "hangs-after-result", **named)
        second = await run(client, "hangs-after-result", **named)

    assert [ending(events[-1]) for events in (first, second)] == [("complete", "done")] * 2


async def test_a_demo_agent_that_lingers_is_ended_after_its_terminal(node: Node, client: NodeClient) -> None:
    events = await run(client, "demo-agent", "[[demo:linger text=done delay_ms=0]]")

    assert ending(events[-1]) == ("complete", "turn 1: done")
    node.assert_no_agents()
    assert ending((await run(client, "shell", "echo next"))[-1]) == ("complete", "next\n")


@pytest.mark.req("RT-21")
async def test_children_that_outlive_a_finished_run_are_ended(node: Node, client: NodeClient) -> None:
    script = (
        "setsid sleep 600 >/dev/null 2>&1 </dev/null & (setsid sh -c 'sleep 600 & wait') >/dev/null 2>&1 & echo done"
    )
    events = await run(client, "shell", script)

    assert ending(events[-1]) == ("complete", "done\n")
    node.assert_no_agents()


@pytest.mark.req("RT-24", "RT-21")
async def test_a_deadline_ends_what_ignores_signals_too(node: Node, client: NodeClient) -> None:
    events = await run(client, "ignores-signals", timeout=timedelta(seconds=0.5))

    assert failure_of(events).code == "deadline_exceeded"
    assert took_s(events) < 30
    node.assert_no_agents()


def _peak_kib(pid: int) -> int:
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1])
