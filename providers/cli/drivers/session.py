"""One process per logical session: find or start it, hand the turn over, and follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from providers.cli.dialect import SessionDialect, TurnContext
from providers.cli.drivers.asked import Asked, revision_of
from providers.cli.drivers.fresh import beginning, start_process
from providers.cli.drivers.hand_over import HandOver
from providers.cli.drivers.slice import NotRead, Turn
from providers.cli.framing import Framing
from providers.cli.launching import Machinery, check_may_begin, prepare
from providers.cli.profile import Profile
from providers.cli.run_files import STDOUT, Slice, read_slice
from providers.cli.warm_processes import WarmProcess
from providers.keeper.client import clear_append_only, end_orphans, read_exit
from runtime.failure import Failure, FailureCode, FailureError
from runtime.provider import EventSink, RunContext
from runtime.redact import Redactor
from runtime.types import ExecutionSpec


class SessionDriver:
    """Executes the runs of one profile in warm processes."""

    def __init__(self, profile: Profile, dialect: SessionDialect, machinery: Machinery) -> None:
        self._profile, self._dialect, self._machinery = profile, dialect, machinery
        self._warm, self._hand_over = machinery.warm, HandOver(profile, dialect)

    async def execute(
        self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink, secrets: Mapping[str, str], redact: Redactor
    ) -> None:
        """Take the turn to its terminal; the process that took it may stay for the next."""
        assert ctx.directory is not None, "a CLI run needs a directory of its own"
        part = read_slice(ctx.directory) if ctx.adopting else None
        process: WarmProcess | None
        if part is None:
            process, part = await self._begin(ctx, spec, secrets, redact)
        else:
            process = await self._adopt(ctx, spec, part)
        try:
            await self._turn(ctx, spec, sink, process, part, redact).follow()
            return
        except NotRead:
            pass  # the session's process was ending just then; if a fresh one ends too, it is the turn's own fault
        process, part = await self._begin(ctx, spec, secrets, redact, is_again=True)
        await self._turn(ctx, spec, sink, process, part, redact).follow()

    def _turn(
        self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink, process: WarmProcess | None, part: Slice,
        redact: Redactor,
    ) -> Turn:  # fmt: skip
        assert ctx.directory is not None
        config = self._machinery.config
        conversation = self._dialect.decoder(TurnContext(resumed_id=part.resumed_id, state=part.state))
        return Turn(
            directory=self._warm.root / part.process, ctx=ctx, sink=sink, decoder=conversation,
            framing=Framing(config.max_line_bytes, start=part.offset), tail=self._machinery.tail, redact=redact,
            link=None if process is None else process.link, cancel_steps=self._profile.cancel,
            exit_grace_s=config.exit_grace_s, run_directory=ctx.directory, part=part, conversation=conversation,
            process=process, warm=self._warm, output_bytes=config.output_bytes, keeps_warm=ctx.session.is_named,
            keeps_raw=config.keep_raw.keeps(is_complete=True) or config.keep_raw.keeps(is_complete=False),
        )  # fmt: skip

    # -- a new turn

    async def _begin(
        self, ctx: RunContext, spec: ExecutionSpec, secrets: Mapping[str, str], redact: Redactor, *,
        is_again: bool = False,
    ) -> tuple[WarmProcess, Slice]:  # fmt: skip
        """Hand the turn to the session's process, or to a fresh one where that has died without having taken any of it."""
        check_may_begin(ctx)
        launch = prepare(
            self._profile, self._machinery, secrets, session=ctx.session, cwd=spec.workspace,
            mcp_servers=ctx.mcp_servers,
        )  # fmt: skip
        revision = revision_of(self._profile, launch, secrets)
        asked = Asked(ctx=ctx, spec=spec, launch=launch, redact=redact, revision=revision, is_again=is_again)
        process = await self._warm.take(ctx.session.key, revision)
        if process is not None:
            with self._ended_if_it_fails(process):
                part = await self._hand_over.to_idle(asked, process)
            if part is not None:
                return process, part
            await asyncio.wait([self._warm.end(process)])
        begins = beginning(self._profile, self._dialect, asked)
        process = await start_process(self._profile, self._machinery, asked, begins)
        with self._ended_if_it_fails(process):
            return process, await self._hand_over.to_fresh(asked, process, begins)

    @contextmanager
    def _ended_if_it_fails(self, process: WarmProcess) -> Iterator[None]:
        try:
            yield
        except Exception:  # a full disk, a turn too large: nobody will follow it
            self._warm.end(process)
            raise

    # -- a turn that an earlier node began

    async def _adopt(self, ctx: RunContext, spec: ExecutionSpec, part: Slice) -> WarmProcess | None:
        """The process of *part*, which has the turn when this returns; None when it has ended."""
        process = await self._warm.adopt(part.process, ctx.session.key)
        directory = self._warm.root / part.process
        if process is None:
            if read_exit(directory) is None:
                # its warden was killed while no node looked: whatever carries its marker is ours to end
                await asyncio.to_thread(end_orphans, part.process)
                with suppress(OSError):
                    clear_append_only(directory / STDOUT)
            _check_is_there(directory)
            return None
        with self._ended_if_it_fails(process):
            await self._hand_over.again(ctx, spec, process, part)
        return process


def _check_is_there(directory: Path) -> None:
    if not (directory / STDOUT).exists():
        message = "interrupted: the directory of the session's process is gone"
        raise FailureError.of(Failure(code=FailureCode.INTERRUPTED, message=message))
