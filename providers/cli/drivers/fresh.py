"""A fresh process for a session: what conversation it goes on with is known before it is started; then it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from providers.cli.dialect import Opening, SessionDialect
from providers.cli.drivers.asked import Asked
from providers.cli.drivers.opening import open_process
from providers.cli.launching import Machinery, hand_servers, history_fact, note_launch, spawn
from providers.cli.mcp import acp_servers
from providers.cli.profile import Profile
from providers.cli.warm_processes import RECYCLE_BYTES, WarmProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """How a fresh process is to begin: what it resumes, and what the run's start says of that."""

    opening: Opening
    resumed_id: str | None
    start_facts: Mapping[str, str]


def beginning(profile: Profile, dialect: SessionDialect, asked: Asked) -> Beginning:
    """How a process for *asked* would begin. Nothing is started.

    Raises:
        SessionNotFound: the caller required to go on with a conversation, and the process could not, or the conversation
            to fork is held no more.
    """
    session = asked.ctx.session  # where the arguments do not name the conversation, the opening does
    resumed_id = asked.launch.command.resumed_id if profile.resume_args else session.native_id
    source_id = None if profile.fork_args or session.native_id is not None else session.source_id
    told = acp_servers(asked.launch.servers) if profile.mcp == "acp" else ()
    opening = dialect.opening(
        cwd=asked.launch.cwd, resumed_id=resumed_id, source_id=source_id, settings=profile.opening, mcp_servers=told
    )
    if not profile.resume_args and opening.is_over:
        resumed_id = None  # neither the arguments nor the opening, which has no words, name the conversation
    facts = history_fact(asked.ctx, asked.spec, resumed_id=resumed_id)
    return Beginning(opening=opening, resumed_id=resumed_id, start_facts=facts)


async def start_process(profile: Profile, machinery: Machinery, asked: Asked, begins: Beginning) -> WarmProcess:
    """Start a process for the session and open it.

    Raises:
        FailureError: it could not be started, or did not open. Nothing of it stays.
    """
    session, warm = asked.ctx.session, machinery.warm
    directory = warm.new_directory(session.key, asked.revision)
    try:
        launch = hand_servers(profile, asked.launch, directory)
        note_launch(directory, launch, asked.redact)
        output_bytes = machinery.config.output_bytes + RECYCLE_BYTES
        link = await spawn(machinery, launch, directory, output_bytes=output_bytes)
    except BaseException:
        warm.forget(directory)
        raise
    process = WarmProcess(directory=directory, session=session.key, revision=asked.revision, link=link)
    warm.add(process)
    try:
        process.state = await open_process(process, begins.opening, machinery.tail, asked.ctx, asked.redact)
    except BaseException:
        warm.end(process)
        raise
    return process
