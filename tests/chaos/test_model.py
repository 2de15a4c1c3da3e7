"""The engine of runs against a model of it: any order of dispatch, duplicate, conflict, cancel, attach, restart, retention.

The engine is real (SQLite, journal, recovery), the provider is a script that does what the model tells it. After every step
the engine's picture of each run, in its index, its journal and its streams, is compared with the model's.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from runtime.events import RuntimeEvent, complete, delta, start
from runtime.failure import (
    CapacityExhausted,
    Conflict,
    CursorOutOfRange,
    Failure,
    FailureCode,
    FailureError,
    InvalidRequest,
    NotFound,
    RunCancelled,
    SessionBusy,
)
from runtime.provider import EventSink, RunContext
from runtime.retention import sweep
from runtime.types import ExecutionSpec, RunRequest, SessionMode
from tests.support.hosts import PATIENCE_S, Agent, Host, crash_image, open_host, read_all

SLOTS, QUEUE = 2, 2
IDS = [f"run-{n}" for n in range(6)]
SESSIONS = ["", "", "s1", "s2"]


@dataclass(slots=True)
class Expected:
    """One run as the model knows it."""

    request: RunRequest
    state: str = "running"  # queued, running, complete, error, cancelled, trimmed
    told: int = 0
    outcome: str = ""

    @property
    def is_live(self) -> bool:
        return self.state in ("queued", "running")


@dataclass(slots=True)
class Puppet:
    """What a script waits for: one order at a time, each acknowledged when it was carried out."""

    orders: asyncio.Queue[tuple[str, asyncio.Future[None]]] = field(default_factory=asyncio.Queue)
    began: asyncio.Event = field(default_factory=asyncio.Event)


class Engine:
    """The engine under test, on a loop of its own, behind plain calls."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="iop-model-"))
        self.number = 0
        self.puppets: dict[str, Puppet] = {}
        self.stack: AsyncExitStack | None = None
        self.host: Host

    @property
    def data(self) -> Path:
        return self.root / f"data-{self.number}"

    def do(self, work: Any) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return self.loop.run_until_complete(bounded())

    async def open(self) -> None:
        self.stack = AsyncExitStack()
        self.puppets = {}
        agent = Agent(self._script)
        self.host = await self.stack.enter_async_context(
            open_host(self.data, agent, max_concurrent_runs=SLOTS, max_queued_runs=QUEUE, foreground_grace_s=3600)
        )

    async def close(self) -> None:
        if self.stack is not None:
            await self.stack.aclose()
            self.stack = None

    async def crash(self) -> None:
        """Go on from what a killed process would have left."""
        image = crash_image(self.data, self.root / f"data-{self.number + 1}")
        await self.close()
        shutil.rmtree(self.data)
        self.number += 1
        assert image == self.data
        await self.open()

    async def _script(self, ctx: RunContext, spec: ExecutionSpec, sink: EventSink) -> None:
        puppet = self.puppets.setdefault(spec.run_id, Puppet())
        await sink.emit([start()])
        puppet.began.set()
        while True:
            order = asyncio.ensure_future(puppet.orders.get())
            stopped = asyncio.ensure_future(ctx.stopped())
            await asyncio.wait([order, stopped], return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not order.done():
                order.cancel()
                raise RunCancelled("stopped")
            what, done = order.result()
            if what == "say":
                await sink.emit([delta("word ", message_id="m")])
                done.set_result(None)
                continue
            done.set_result(None)
            if what == "fail":
                raise FailureError.of(Failure(code=FailureCode.PROCESS_FAILED, message="told to"))
            if what == "succeed":
                await sink.emit([complete("done")])
            return

    async def order(self, run_id: str, what: str) -> None:
        puppet = self.puppets.setdefault(run_id, Puppet())
        await puppet.began.wait()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await puppet.orders.put((what, done))
        await done

    async def settled(self, run_id: str) -> None:
        while ("local", run_id) in self.host.runs.live:
            await asyncio.sleep(0)

    async def quiet(self, running: list[str]) -> None:
        """Let what was granted begin: the scripts of *running* have said so, and nothing else is under way."""
        for run_id in running:
            await self.puppets.setdefault(run_id, Puppet()).began.wait()
        for _ in range(20):
            await asyncio.sleep(0)


class RunsModel(RuleBasedStateMachine):
    """Rules are what callers, processes and time may do."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine()
        self.model: dict[str, Expected] = {}
        self.queue: list[str] = []
        self.seen: dict[str, list[int]] = {}

    @initialize()
    def begin(self) -> None:
        self.engine.do(self.engine.open())

    def teardown(self) -> None:
        try:
            self.engine.do(self.engine.close())
        finally:
            self.engine.loop.close()
            shutil.rmtree(self.engine.root)

    # -- the model's own sums

    def running(self) -> list[str]:
        return [run_id for run_id, run in self.model.items() if run.state == "running"]

    def busy_sessions(self) -> set[str]:
        return {run.request.session_id for run in self.model.values() if run.is_live and run.request.session_id}

    def advance(self) -> None:
        while self.queue and len(self.running()) < SLOTS:
            self.model[self.queue.pop(0)].state = "running"

    def ended(self, run_id: str, state: str) -> None:
        run = self.model[run_id]
        run.state = run.outcome = state
        if run_id in self.queue:
            self.queue.remove(run_id)
        self.advance()
        self.engine.do(self.engine.settled(run_id))
        self.engine.do(self.engine.quiet(self.running()))

    # -- what callers do

    @rule(run_id=st.sampled_from(IDS), session=st.sampled_from(SESSIONS), text=st.sampled_from(["one", "two"]))
    def dispatch(self, run_id: str, session: str, text: str) -> None:
        """New, duplicate or conflicting, as the model tells."""
        mode = SessionMode.CREATE_IF_MISSING if session else None
        request = RunRequest(
            run_id=run_id, target="agent", input=text, session_id=session, session_mode=mode, background=True
        )
        known = self.model.get(run_id)
        refusal = self.refusal(known, request)
        dispatch = self.engine.host.runs.dispatch(request)
        if refusal is not None:
            with pytest.raises(refusal):
                self.engine.do(dispatch)
            return
        self.engine.do(dispatch).close()
        if known is None:
            self.model[run_id] = Expected(request)
            if len(self.running()) > SLOTS:
                self.model[run_id].state = "queued"
                self.queue.append(run_id)
            self.engine.do(self.engine.quiet(self.running()))

    def refusal(self, known: Expected | None, request: RunRequest) -> type[FailureError] | None:
        if known is not None:
            if known.request != request:
                return Conflict
            return CursorOutOfRange if known.state == "trimmed" else None
        if request.session_id in self.busy_sessions():
            return SessionBusy
        if len(self.running()) >= SLOTS and len(self.queue) >= QUEUE:
            return CapacityExhausted
        return None

    @rule(run_id=st.sampled_from(IDS))
    def cancel(self, run_id: str) -> None:
        run = self.model.get(run_id)
        call = self.engine.host.runs.cancel(run_id)
        if run is None:
            with pytest.raises(NotFound):
                self.engine.do(call)
            return
        receipt = self.engine.do(call)
        assert receipt.accepted is run.is_live
        assert receipt.state.value == (run.outcome or "cancelled")
        if run.is_live:
            self.ended(run_id, "cancelled")

    @rule(run_id=st.sampled_from(IDS), after=st.integers(-1, 12))
    def attach(self, run_id: str, after: int) -> None:
        """At any cursor: exactly what lies beyond it, or a typed refusal."""
        run = self.model.get(run_id)
        attach = self.engine.host.runs.attach(run_id, after=after)
        last = 0 if run is None else self.last(run_id)
        refusal: type[FailureError] | None = None
        if run is None:
            refusal = NotFound
        elif run.state == "trimmed":
            refusal = CursorOutOfRange
        elif after < 0:
            refusal = InvalidRequest
        elif after > last:
            refusal = CursorOutOfRange
        if refusal is not None:
            with pytest.raises(refusal):
                self.engine.do(attach)
            return
        assert run is not None
        reader = self.engine.do(attach)
        if run.is_live:
            events = self.engine.do(reader.read()) if after < last else []
            reader.close()
        else:
            events = self.engine.do(read_all(reader))
            assert [e.sequence for e in events][-1:] == ([last] if after < last else [])
        assert [e.sequence for e in events] == list(range(after + 1, after + 1 + len(events)))

    def last(self, run_id: str) -> int:
        run = self.model[run_id]
        if run.state == "queued":
            return 0
        starts = 1 if run.told or run.state in ("running", "complete", "error", "cancelled") else 0
        return starts + run.told + (not run.is_live)

    # -- what agents do

    @precondition(lambda self: self.running())
    @rule(data=st.data(), what=st.sampled_from(["say", "say", "say", "succeed", "fail", "stop"]))
    def act(self, data: st.DataObject, what: str) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.running())))
        self.engine.do(self.engine.order(run_id, what))
        if what == "say":
            self.model[run_id].told += 1
        else:
            self.ended(run_id, "complete" if what == "succeed" else "error")

    # -- what time does

    @rule()
    def restart(self) -> None:
        """Running runs of this provider do not survive their host: interrupted. Queued ones begin in order."""
        interrupted = self.running()
        self.engine.do(self.engine.crash())
        for run_id in interrupted:
            self.model[run_id].state = self.model[run_id].outcome = "error"
        self.advance()
        self.engine.do(self.engine.quiet(self.running()))

    @rule(keep=st.integers(0, 2))
    def retain(self, keep: int) -> None:
        """Everything that ended is let go of, or nothing is."""
        ahead_ns = 0 if keep else int(8 * 86_400e9)
        swept = self.engine.do(sweep(self.engine.host.runs, now_ns=time.time_ns() + ahead_ns))
        over = {run_id for run_id, run in self.model.items() if not run.is_live and run.state != "trimmed"}
        assert {run.run_id for run in swept.runs} == (set() if keep else over)
        for run_id in set() if keep else over:
            self.model[run_id].state = "trimmed"

    # -- what must always hold

    @invariant()
    def every_view_says_the_same(self) -> None:
        if self.engine.stack is None:
            return
        runs = self.engine.host.runs
        for run_id, run in self.model.items():
            record = self.engine.do(runs.get(run_id))
            wanted = {"queued": "accepted", "trimmed": run.outcome}.get(run.state, run.state)
            assert record.state.value == wanted, run_id
            assert runs.queue_position(record) == (self.queue.index(run_id) + 1 if run_id in self.queue else 0)
            if run.state not in ("trimmed", "queued"):
                self.check_events(run_id, run)

    def check_events(self, run_id: str, run: Expected) -> None:
        """Sequences only grow and never change what they stand for; one terminal, the last, exactly when it has ended."""
        events: list[RuntimeEvent] = []
        reader = self.engine.do(self.engine.host.runs.attach(run_id))
        while len(events) < self.last(run_id):
            events += self.engine.do(reader.read())
        reader.close()
        numbers = [event.sequence for event in events]
        assert numbers == list(range(1, self.last(run_id) + 1))
        terminals = [event.type.value for event in events if event.is_terminal]
        assert terminals == ([] if run.is_live else [run.outcome])
        assert not run.outcome or events[-1].is_terminal
        assert sum(event.delta == "word " for event in events) == run.told

    @invariant()
    def nothing_leaks(self) -> None:
        """Slots, places in the queue and sessions are held by live runs alone."""
        if self.engine.stack is None:
            return
        runs = self.engine.host.runs
        assert {run_id for _, run_id in runs.live} == {run_id for run_id, run in self.model.items() if run.is_live}
        assert (runs.capacity.in_use, runs.capacity.waiting) == (len(self.running()), len(self.queue))
        assert sum(map(len, runs.sessions.turns._lines.values())) == sum(run.is_live for run in self.model.values())
        directories = {path.name for path in (self.engine.data / "runs").iterdir()}
        assert len(directories) == sum(run.state != "trimmed" for run in self.model.values())
        assert runs.readers == 0


@pytest.mark.req("RT-20", "BAN-18", "NB-15", "E-6", "E-19", "RT-33")
def test_any_walk_through_the_engine_agrees_with_the_model() -> None:
    """Forty walks of thirty steps; a failing one is printed as a program."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    bounds = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(RunsModel, settings=bounds)
