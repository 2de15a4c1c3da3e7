"""The CLI provider with a real keeper and real children, driven by a host that is nothing but a list of drafts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from providers.cli.command import CannotStart
from providers.cli.environment import SecretSource, SecretUnavailable
from providers.keeper.client import end_orphans
from runtime.clock import boot_time_s
from runtime.events import EventType
from runtime.failure import DeadlineExceeded, FailureCode, FailureError, RunCancelled
from runtime.provider import NoSession, Stop, StopReason
from runtime.types import Capabilities
from tests.support.told import BOUND_S, Context, Make, Told, spec


@pytest.mark.req("RT-03")
async def test_capabilities_are_what_the_profile_says(provider: Make) -> None:
    made = provider(
        provider_id="v", model_id="m", max_concurrency=3, default_workspace="/w", silence_timeout_s=9.0,
        policy_keys=frozenset({"model"}),
    )  # fmt: skip

    assert await made.capabilities() == Capabilities(
        targets=("p",), max_concurrency=3, survives_host=True, default_workspace="/w", silence_timeout_s=9.0,
        policy_keys=frozenset({"model"}), labels={"provider_id": "v", "model_id": "m", "profile_id": "p"},
    )  # fmt: skip


@pytest.mark.req("RT-05", "RT-01")
async def test_execute_returns_after_its_terminal_was_handed_over(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    told, ctx = Told(), context()

    async with asyncio.timeout(BOUND_S):
        await provider().execute(ctx, spec("echo one; pwd", tmp_path), told)

    assert told.said() == [
        ("start", ""), ("delta", "one\n"), ("delta", f"{tmp_path}\n"), ("complete", f"one\n{tmp_path}\n"),
    ]  # fmt: skip
    assert [draft.offset for draft in told.drafts][1:3] == [4, 4 + len(str(tmp_path)) + 1]


@pytest.mark.req("RT-05", "RT-19", "RT-21")
async def test_a_cancel_ends_the_tree_and_then_raises(provider: Make, context: Context, tmp_path: Path) -> None:
    told, ctx = Told(), context()
    running = asyncio.create_task(provider().execute(ctx, spec("echo x; sleep 60 & sleep 60", tmp_path), told))
    await told.until(2)

    ctx.request_stop(Stop(reason=StopReason.CANCELLED, message="enough"))
    with pytest.raises(RunCancelled, match="enough"):
        await asyncio.wait_for(running, BOUND_S)

    assert ctx.directory is not None
    assert end_orphans(ctx.directory.name).ended == 0, "nothing was left to end"


@pytest.mark.req("RT-19", "RT-20")
async def test_a_run_that_was_told_to_stop_before_it_began_starts_nothing(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    told, ctx = Told(), context()
    ctx.request_stop(Stop(reason=StopReason.CANCELLED, message="early"))

    with pytest.raises(RunCancelled, match="early"):
        await provider().execute(ctx, spec("touch started", tmp_path), told)
    assert (told.drafts, list(tmp_path.glob("started"))) == ([], [])


@pytest.mark.req("RT-24")
async def test_a_deadline_that_has_passed_starts_nothing(provider: Make, context: Context, tmp_path: Path) -> None:
    told = Told()

    with pytest.raises(DeadlineExceeded, match="passed before the agent could start"):
        await provider().execute(context(deadline_boot_s=boot_time_s() - 1), spec("touch started", tmp_path), told)
    assert (told.drafts, list(tmp_path.glob("started"))) == ([], [])


@pytest.mark.req("RT-24", "FAIL-07")
async def test_the_warden_keeps_the_deadline_without_help(provider: Make, context: Context, tmp_path: Path) -> None:
    told = Told()
    async with asyncio.timeout(BOUND_S):
        await provider().execute(context(deadline_boot_s=boot_time_s() + 2), spec("sleep 60", tmp_path), told)

    last = told.drafts[-1]
    assert last.type is EventType.ERROR and last.failure is not None
    assert (last.failure.code, last.failure.retryable) == (FailureCode.DEADLINE_EXCEEDED, True)


@pytest.mark.req("E-1")
@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (StopReason.DEADLINE, FailureCode.DEADLINE_EXCEEDED),
        (StopReason.SILENCE, FailureCode.SILENCE_TIMEOUT),
        (StopReason.OUTPUT_LIMIT, FailureCode.OUTPUT_LIMIT),
        (StopReason.STORAGE_FULL, FailureCode.STORAGE_FULL),
    ],
)
async def test_each_reason_to_stop_is_raised_as_its_own_failure(
    provider: Make, context: Context, tmp_path: Path, reason: StopReason, code: FailureCode
) -> None:
    told, ctx = Told(), context()
    running = asyncio.create_task(provider().execute(ctx, spec("echo x; sleep 60", tmp_path), told))
    await told.until(2)
    ctx.request_stop(Stop(reason=reason, message="why"))

    with pytest.raises(FailureError) as raised:
        await asyncio.wait_for(running, BOUND_S)
    assert (raised.value.failure.code, raised.value.failure.message) == (code, "why")


@pytest.mark.req("E-1")
async def test_silence_is_measured_from_the_last_output(provider: Make, context: Context, tmp_path: Path) -> None:
    told, ctx = Told(), context(silence_s=1.5)
    script = "for i in 1 2 3 4; do echo $i; sleep 0.5; done; sleep 60"

    with pytest.raises(FailureError) as raised:
        await asyncio.wait_for(provider().execute(ctx, spec(script, tmp_path), told), BOUND_S)
    assert raised.value.failure.code is FailureCode.SILENCE_TIMEOUT
    assert [text for _, text in told.said()][1:5] == ["1\n", "2\n", "3\n", "4\n"]


async def test_a_stop_after_the_terminal_changes_nothing(provider: Make, context: Context, tmp_path: Path) -> None:
    """The agent has told its result and lingers; a reader's grace that ends now must not turn it into a cancel."""
    told, ctx = Told(), context()
    result = '{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"s"}'
    made = provider("claude_stream_json")
    running = asyncio.create_task(made.execute(ctx, spec(f"echo '{result}'; sleep 60", tmp_path), told))
    await told.until(2)
    ctx.request_stop(Stop(reason=StopReason.CANCELLED, message="late"))
    await asyncio.wait_for(running, BOUND_S)

    assert told.said() == [("start", ""), ("complete", "ok")]


@pytest.mark.req("RT-36", "RT-11")
async def test_the_native_id_goes_into_the_slot_and_comes_back_as_an_argument(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    lines = (
        '{"type":"system","subtype":"init","session_id":"n-42"}',
        '{"type":"result","subtype":"success","is_error":false,"result":"%s","session_id":"n-42"}',
    )
    script = f"printf '{lines[0]}\\n{lines[1]}\\n' \"${{*:-first}}\""
    made = provider("claude_stream_json", command=("/bin/sh", "-s", "--"), resume_args=("--resume", "{{session}}"))
    first, second = context(), context()

    await made.execute(first, spec(script, tmp_path), told := Told())
    await second.session.remember(first.session.native_id or "")
    await made.execute(second, spec(script, tmp_path), again := Told())

    assert first.session.native_id == "n-42"
    assert [one.said()[-1] for one in (told, again)] == [("complete", "first"), ("complete", "--resume n-42")]


async def test_an_id_that_could_be_an_option_is_not_remembered(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    frame = '{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"--danger"}'
    ctx = context()

    await provider("claude_stream_json").execute(ctx, spec(f"echo '{frame}'", tmp_path), Told())

    assert ctx.session.native_id is None


@pytest.mark.req("RT-05")
async def test_a_used_directory_is_gone_on_with_from_its_first_byte(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    """What a restarted host does: the process ended meanwhile, and its output is told again, the same."""
    ctx, told = context(), Told()
    await provider().execute(ctx, spec("echo one; echo two; echo x >> executed", tmp_path), told)
    again = Told()
    await provider().execute(context(ctx.directory, adopting=True), spec("unused", tmp_path), again)

    assert again.drafts == told.drafts
    assert (tmp_path / "executed").read_text() == "x\n", "it was not executed again"


@pytest.mark.req("RT-05")
async def test_a_living_run_is_adopted(provider: Make, context: Context, tmp_path: Path) -> None:
    ctx, told = context(), Told()
    first = asyncio.create_task(provider().execute(ctx, spec("echo one; sleep 1; echo two", tmp_path), told))
    await told.until(2)
    first.cancel()
    await asyncio.wait([first])
    adopted, again = context(ctx.directory, adopting=True), Told()
    async with asyncio.timeout(BOUND_S):
        await provider().execute(adopted, spec("unused", tmp_path), again)

    assert again.said() == [("start", ""), ("delta", "one\n"), ("delta", "two\n"), ("complete", "one\ntwo\n")]
    assert adopted.caught_up.is_set()


@pytest.mark.req("RT-36")
async def test_an_adopted_run_says_of_its_beginning_what_was_so(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    """The node may have died before it told the start; by now the session may know more."""
    script = spec("echo one; sleep 0.5", tmp_path)
    ctx, told = context(session=NoSession(has_history=True)), Told()
    first = asyncio.create_task(provider().execute(ctx, script, told))
    await told.until(2)
    first.cancel()
    await asyncio.wait([first])
    async with asyncio.timeout(BOUND_S):
        await provider().execute(context(ctx.directory, adopting=True), script, again := Told())

    assert told.drafts[0].metadata == again.drafts[0].metadata == {"session_history": "not_resumed"}


@pytest.mark.req("E-10")
async def test_secrets_are_given_to_the_child_and_hidden_from_everybody_else(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    ctx, told = context(), Told()
    made = provider(secrets={"KEY": SecretSource(env="TOKEN")})
    script = 'test "$KEY" = s3cr3t-"value" || exit 8; echo "I know $KEY" >&2; exit 9'

    await made.execute(ctx, spec(script, tmp_path), told)

    assert ctx.directory is not None
    facts, failure = made.explain(ctx.directory), told.drafts[-1].failure
    assert failure is not None and failure.message == "the agent failed (exit code 9); stderr: I know [redacted]"
    assert (facts["exit_code"], facts["stderr_tail"], facts["argv"]) == ("9", "I know [redacted]", "/bin/sh -s")
    assert facts["cwd"] == str(tmp_path)
    with pytest.raises(SecretUnavailable):
        await provider(secrets={"KEY": SecretSource(env="NOT_THERE")}).execute(context(), spec("", tmp_path), Told())


@pytest.mark.req("FAIL-08")
@pytest.mark.parametrize("before", [0, 4085], ids=["short", "cut"])
async def test_what_an_agent_says_of_its_failure_holds_no_secret_of_its_own(
    provider: Make, context: Context, tmp_path: Path, before: int
) -> None:
    """The secret looks like nothing, and the failure is told on stdout, where the agent's words are its own."""
    made = provider("claude_stream_json", secrets={"KEY": SecretSource(env="TOKEN")})
    result = '{"type":"result","subtype":"success","is_error":true,"result":"%s key %s is wrong","session_id":"s"}\\n'
    padding = f"$(printf '%{before}s' '' | tr ' ' x)"

    await made.execute(context(), spec(f'printf \'{result}\' "{padding}" "$KEY"', tmp_path), told := Told())

    failure = told.drafts[-1].failure
    assert failure is not None and "key [reda" in failure.message
    assert "s3cr" not in f"{told.drafts}"


@pytest.mark.req("FAIL-08")
async def test_an_opening_that_fails_holds_no_secret(provider: Make, context: Context, tmp_path: Path) -> None:
    script = 'read line; printf \'{"id":1,"error":{"message":"key %s is wrong"}}\\n\' "$KEY"; sleep 60'
    made = provider(
        "codex_app_server", mode="session", command=("/bin/sh", "-c", script),
        secrets={"KEY": SecretSource(env="TOKEN")},
    )  # fmt: skip

    with pytest.raises(FailureError) as raised:
        await made.execute(context(), spec("hello", tmp_path), Told())

    assert raised.value.failure.message == "key [redacted] is wrong"


@pytest.mark.req("FAIL-08")
async def test_a_secret_that_came_in_pieces_is_gone_as_a_whole(
    provider: Make, context: Context, tmp_path: Path
) -> None:
    """On stderr as the agent flushes it, and broken over lines."""
    script = 'printf s3cr3t- >&2; sleep 0.2; printf "value; s3cr\\n   3t-value" >&2; exit 9'

    made = provider(secrets={"KEY": SecretSource(env="TOKEN")})
    await made.execute(context(), spec(script, tmp_path), told := Told())

    failure = told.drafts[-1].failure
    assert failure is not None
    assert failure.message == "the agent failed (exit code 9); stderr: [redacted]; [redacted]"


@pytest.mark.req("E-1")
@pytest.mark.parametrize("kind", ["workspace", "binary"])
async def test_what_cannot_start_says_which_of_two_causes_it_was(
    provider: Make, context: Context, tmp_path: Path, kind: str
) -> None:
    broken = tmp_path / "agent"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    made = provider(command=(str(broken),)) if kind == "binary" else provider()
    where = tmp_path if kind == "binary" else tmp_path / "gone"

    with pytest.raises(CannotStart) as raised:
        await made.execute(context(), spec("", where), Told())
    sentence = {
        "workspace": f"workspace {str(where)!r} cannot be entered: No such file or directory",
        "binary": f"{broken} could not be started (exec): No such file or directory",
    }[kind]
    assert raised.value.failure.message == sentence


async def test_artifacts_are_the_files_that_exist(provider: Make, context: Context, tmp_path: Path) -> None:
    ctx, made = context(), provider()
    assert ctx.directory is not None
    before = made.artifacts(ctx.directory)
    await made.execute(ctx, spec("echo out; echo err >&2", tmp_path), Told())
    after = made.artifacts(ctx.directory)

    assert before == {}
    assert {name: path.read_text() for name, path in after.items()} == {"raw": "out\n", "stderr": "err\n"}
