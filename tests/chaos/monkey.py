"""A monkey among real processes: ``python -m tests.chaos.monkey --rounds 100 --seed 7`` (``make chaos ROUNDS=100``).

Each round starts a node on a small file system of its own and dispatches some thirty runs over several edges, while the
monkey kills and freezes what it finds: the node, its keeper, wardens and agents. Some readers stop reading, some leave and
come back, some dispatch the same run twice, some queue another one behind it; some agents are stuck, fork without end as a
normal user, or print for ever; in some rounds the disk runs full. Everything stays on this machine and is bounded in
number, size and time.

At the end of a round nothing may be wrong: every accepted run has one terminal that the monkey's own deeds explain, its
events are exactly what its agent wrote, every reader got all of them, and no process is left. The books are printed; the
exit code is 1 when they do not balance. What the monkey does follows from the seed alone; when the machine does it does not,
so a failing seed may need several tries.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from node.client import NodeClient, NodeError
from providers.keeper.client import read_owner
from providers.keeper.process_tree import read_process
from runtime.events import RuntimeEvent
from runtime.types import RunRequest
from tests.support.books import Books, stored_events
from tests.support.following import can_mount, fill, small_disk
from tests.support.nodes import DEMO, Agent, Node, fork_bomb

RUNS = 24
EDGES = 3
ROUND_S = 90.0
DEEDS_S = 5.0
DISK_MB = 96
OUTPUT_BYTES = 8 << 20
IS_ROOT = os.geteuid() == 0

TALKS = Agent(command=DEMO, mode="resumable", verbs=["queue"], resume_args=["--resume", "{{session}}"])
AGENTS = {"demo-agent": TALKS}
if (_bomb := fork_bomb()) is not None:
    AGENTS["bomb"] = _bomb

ENDINGS: dict[str, frozenset[str]] = {
    "plain": frozenset({"complete"}), "think": frozenset({"complete"}), "tool": frozenset({"complete"}),
    "linger": frozenset({"complete"}), "stderr": frozenset({"complete"}),
    "stubborn": frozenset({"cancelled", "deadline_exceeded"}),
    "flood": frozenset({"complete", "output_limit"}), "bomb": frozenset({"cancelled", "process_failed"}),
    "fail": frozenset({"process_failed"}), "stuck": frozenset({"cancelled"}),
}  # fmt: skip
KILLED = frozenset({"interrupted", "process_failed", "output_invalid"})
"""What a run may also end as when the monkey killed its agent or its warden."""
FULL = frozenset({"storage_full", "process_failed", "output_invalid", "internal", "interrupted"})
"""What a run may also end as when its disk was full."""


@dataclass(slots=True)
class Wish:
    """One run as planned: what it is asked for, who reads how, whether and when it is cancelled, what is queued behind it."""

    run_id: str
    kind: str
    prompt: str
    edge: int
    delay_s: float
    reader: str
    cancel_s: float | None = None
    background: bool = True
    behind: Wish | None = None

    @property
    def target(self) -> str:
        return "bomb" if self.kind == "bomb" else "demo-agent"

    @property
    def request(self) -> RunRequest:
        return RunRequest(run_id=self.run_id, target=self.target, input=self.prompt, background=self.background)


def plan(rng: random.Random, count: int) -> list[Wish]:
    """What is asked of the node in one round."""
    kinds = ["plain"] * 8 + ["think", "tool", "linger", "stderr", "stubborn", "flood", "fail", "stuck"]
    kinds += ["bomb"] if "bomb" in AGENTS else []
    wishes = []
    for number in range(count):
        kind = rng.choice(kinds)
        words, delay = rng.randrange(20, 160), rng.choice((0, 2, 10, 20))
        prompt = {
            "plain": f"[[demo words={words} delay_ms={delay}]]",
            "think": f"[[demo:think thoughts=30 words={words} delay_ms={delay}]]",
            "tool": "[[demo:tool cmd=sleep%200.3;echo%20done words=20 delay_ms=2]]",
            "linger": f"[[demo:linger words={words} delay_ms=2]]",
            "stderr": f"[[demo:stderr bytes=300000 words={words} delay_ms=5]]",
            "stubborn": "[[demo:stubborn]]",
            "flood": f"[[demo:flood lines={rng.choice((2000, 60000))} bytes=200]]",
            "fail": "[[demo:fail kind=exit]]",
            "stuck": "[[demo:silent]]",
            "bomb": "boom",
        }[kind]
        must_cancel = kind in ("stubborn", "stuck", "bomb")
        cancel = rng.uniform(0.3, 4.0) if must_cancel or rng.random() < 0.15 else None
        reader = rng.choice(("steady", "steady", "slow", "leaves", "twice", "absent"))
        wish = Wish(f"m-{number:03d}", kind, prompt, rng.randrange(EDGES), rng.uniform(0, 2.5), reader, cancel)
        if kind != "bomb" and rng.random() < 0.3:
            wish.behind = Wish(f"{wish.run_id}-q", "plain", "[[demo words=40 delay_ms=2]]", wish.edge, 0, "steady")
        wishes.append(wish)
    return wishes


@dataclass(slots=True)
class Round:
    """One round: a node, its edges, what was done to it, and what came of it."""

    seed: int
    root: Path
    node: Node
    rng: random.Random
    wishes: list[Wish]
    books: Books = field(default_factory=Books)
    deeds: Counter[str] = field(default_factory=Counter)
    received: dict[str, list[list[RuntimeEvent]]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    reading: Counter[str] = field(default_factory=Counter)
    hurt: set[str] = field(default_factory=set)
    was_full: bool = False
    node_kills: int = 0

    # -- the edges

    async def follow(self, client: NodeClient, wish: Wish) -> None:
        """One reader from the beginning to the terminal, in its own manner."""
        self.reading[wish.run_id] += 1
        try:
            await asyncio.sleep(wish.delay_s)
            queueing = [asyncio.create_task(self.queue(client, wish, wish.behind))] if wish.behind else []
            await asyncio.gather(self.read(client, wish), *queueing)
        finally:
            self.reading[wish.run_id] -= 1

    async def read(self, client: NodeClient, wish: Wish) -> None:
        got: list[RuntimeEvent] = []
        self.received.setdefault(wish.run_id, []).append(got)
        try:
            async with aclosing(client.run(wish.request)) as events:
                async for event in events:
                    self.accepted.add(wish.run_id)
                    got.append(event)
                    if wish.reader == "slow" and len(got) % 20 == 0:
                        await asyncio.sleep(0.05)
                    if wish.reader in ("leaves", "absent") and len(got) >= 5 and not event.is_terminal:
                        break
            if wish.reader == "leaves" and not (got and got[-1].is_terminal):
                await asyncio.sleep(0.3)
                async with aclosing(client.attach(wish.run_id, got[-1].sequence)) as events:
                    got += [event async for event in events]
        except NodeError as error:
            if got or error.failure is None:
                self.books.problems.append(f"{wish.run_id}: {error.code}: {error}")
            else:
                self.refused[wish.run_id] = error.code
                self.received[wish.run_id] = [other for other in self.received[wish.run_id] if other is not got]

    async def queue(self, client: NodeClient, wish: Wish, behind: Wish) -> None:
        """Say more behind a run that has begun, and follow what comes of it; too late is an answer too."""
        receipt = None
        while receipt is None:
            await asyncio.sleep(0.1)
            if wish.run_id in self.refused:
                return
            try:
                receipt = await client.send_input(wish.run_id, "queue", behind.prompt, new_run_id=behind.run_id)
            except NodeError as error:
                if error.failure is None or error.code == "not_found":
                    continue  # the node is down, or has not heard of the run yet
                self.refused[behind.run_id] = error.code
                return
        if receipt.run_id:
            self.accepted.add(behind.run_id)
            got: list[RuntimeEvent] = []
            self.received.setdefault(behind.run_id, []).append(got)
            async with aclosing(client.attach(behind.run_id)) as events:
                got += [event async for event in events]

    async def cancel(self, client: NodeClient, wish: Wish) -> None:
        assert wish.cancel_s is not None
        await asyncio.sleep(wish.delay_s + wish.cancel_s)
        while True:
            try:
                await client.cancel(wish.run_id, reason="the monkey")
            except NodeError as error:
                if not self.reading[wish.run_id] and wish.run_id not in self.accepted:
                    return
                if error.failure is not None and error.failure.code != "not_found":
                    self.books.problems.append(f"cancel of {wish.run_id}: {error}")
                    return
                await asyncio.sleep(0.2)  # not there yet, or the node is down
            else:
                return

    # -- the monkey

    async def misbehave(self) -> None:
        """Deeds until the time is over; which and in what order follows from the seed."""
        ends_at = time.monotonic() + DEEDS_S
        deeds: list[Callable[[], None]] = [
            self.kill_node, self.kill_keeper, self.kill_warden, self.kill_agent, self.freeze_agent, self.freeze_node,
        ]  # fmt: skip
        weights = [3, 2, 1, 1, 2, 1]
        while time.monotonic() < ends_at:
            await asyncio.sleep(self.rng.uniform(0.2, 0.9))
            [deed] = self.rng.choices(deeds, weights)
            await asyncio.to_thread(deed)

    def kill_node(self) -> None:
        self.deeds["node killed"] += 1
        self.node.kill()
        time.sleep(self.rng.choice((0.0, 0.2, 0.6)))
        self.node = self.make_node(self.node.address)
        self.node.start()

    def make_node(self, address: str) -> Node:
        return make_node(self.root, address)

    def kill_keeper(self) -> None:
        for pid, command in self.node.own_processes().items():
            process = read_process(pid)
            if "keeper.py" in command and process is not None and name_of(pid) == "iop-keeper":
                self.deeds["keeper killed"] += 1
                kill(pid, signal.SIGKILL)

    def kill_warden(self) -> None:
        if (found := self.some_run()) is not None and name_of(found[2]) == "iop-warden":
            self.hurt.add(found[0])
            self.deeds["warden killed"] += 1
            kill(found[2], signal.SIGKILL)

    def kill_agent(self) -> None:
        if (found := self.some_run()) is not None:
            self.hurt.add(found[0])
            self.deeds["agent killed"] += 1
            kill(found[1], signal.SIGKILL)

    def freeze_agent(self) -> None:
        if (found := self.some_run()) is not None:
            self.deeds["agent frozen"] += 1
            kill(found[1], signal.SIGSTOP)
            time.sleep(0.3)
            kill(found[1], signal.SIGCONT)

    def freeze_node(self) -> None:
        self.deeds["node frozen"] += 1
        kill(self.node.pid, signal.SIGSTOP)
        time.sleep(0.7)
        kill(self.node.pid, signal.SIGCONT)

    def some_run(self) -> tuple[str, int, int] | None:
        """(run id, agent, warden) of a run that lives."""
        living = []
        for directory in self.node.run_directories():
            owner = read_owner(directory)
            process = read_process(owner.pid) if owner is not None else None
            if process is not None and process.is_alive and (run_id := run_id_of(directory)) is not None:
                living.append((run_id, process.pid, process.parent))
        return self.rng.choice(sorted(living)) if living else None

    async def run_disk_full(self) -> None:
        """Fill the disk for a while, in some rounds."""
        if not os.path.ismount(self.node.data_dir) or self.rng.random() > 0.34:
            return
        await asyncio.sleep(self.rng.uniform(1.0, 3.0))
        self.was_full = True
        self.deeds["disk filled"] += 1
        path = await asyncio.to_thread(fill, self.node.data_dir)
        await asyncio.sleep(1.0)
        path.unlink()

    # -- the round

    async def play(self) -> None:
        await asyncio.to_thread(self.node.start)
        clients = [NodeClient(self.node.address, reattach_s=ROUND_S) for _ in range(EDGES)]
        async with clients[0], clients[1], clients[2]:
            tasks = []
            for wish in self.wishes:
                readers = 2 if wish.reader == "twice" else 1
                reading = [clients[(wish.edge + n) % EDGES] for n in range(readers)]
                tasks += [asyncio.create_task(self.follow(client, wish)) for client in reading]
                if wish.cancel_s is not None:
                    tasks.append(asyncio.create_task(self.cancel(clients[wish.edge], wish)))
            deeds = [asyncio.create_task(self.misbehave()), asyncio.create_task(self.run_disk_full())]
            await asyncio.gather(*deeds)
            done, pending = await asyncio.wait(tasks, timeout=ROUND_S)
            for task in pending:
                self.books.problems.append(f"not over after {ROUND_S:g} s: {task.get_coro()}")
                task.cancel()
            for task in done:
                if (problem := task.exception()) is not None:
                    self.books.problems.append(f"{problem!r}")
            await self.wait_idle(clients[0])
        await asyncio.to_thread(self.close_books)

    async def wait_idle(self, client: NodeClient) -> None:
        """Runs whose reader left end by themselves."""
        await client.ready(60)
        try:
            async with asyncio.timeout(ROUND_S):
                while (await client.status()).active_runs:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            left = [run.run_id async for run in client.list(active_only=True)]
            self.books.problems.append(f"runs without an end: {left}")

    def close_books(self) -> None:
        planned = [*self.wishes, *(wish.behind for wish in self.wishes if wish.behind is not None)]
        wishes = {wish.run_id: wish for wish in planned}
        directories = {run_id: path for path in self.node.run_directories() if (run_id := run_id_of(path)) is not None}
        for run_id, code in self.refused.items():
            if run_id in self.accepted:
                continue  # another reader asked again later
            if not (self.was_full and code in ("storage_full", "internal")):
                self.books.problems.append(f"{run_id}: refused as {code}")
        for run_id in self.accepted - directories.keys():
            self.books.accepted += 1
            self.books.problems.append(f"{run_id}: accepted, and nothing of it is stored")
        for run_id, directory in directories.items():
            wish = wishes[run_id]
            self.books.check_run(run_id, directory, self.explained(wish), was_full=self.was_full)
            for got in self.received.get(run_id, []):
                to_the_end = wish.reader != "absent"
                self.books.check_reader(run_id, directory, got, to_the_end=to_the_end)
                if to_the_end and got and not got[-1].is_terminal:
                    self.books.problems.append(f"{run_id}: its {wish.reader} reader has no terminal, but {got[-1]}")
        ends_at = time.monotonic() + 30
        while (left := self.node.agent_processes()) and time.monotonic() < ends_at:
            time.sleep(0.05)
        self.books.orphans += len(left)
        if left:
            self.books.problems.append(f"orphans: {left}")
        if "Traceback" in (log := self.node.logged()) and not self.was_full:
            self.books.problems.append(f"the node's log has a traceback: {log[log.index('Traceback') :][:1500]}")

    def explained(self, wish: Wish) -> set[str]:
        expected = set(ENDINGS[wish.kind])
        if wish.cancel_s is not None:
            expected.add("cancelled")
        if wish.run_id in self.hurt:
            expected |= KILLED
        if self.was_full:
            expected |= FULL
        return expected


def make_node(root: Path, address: str) -> Node:
    limits = {"output_bytes": OUTPUT_BYTES, "disk_watermark_bytes": 1 << 20, "max_processes": 50}
    times = {"foreground_grace_s": 30, "cancel_grace_s": 0.5, "exit_grace_s": 0.3}
    return Node(root, agents=AGENTS, listen=address, limits=limits, times=times)


def run_id_of(directory: Path) -> str | None:
    """The run of a directory, told by the first record of its journal."""
    try:
        events = stored_events(directory)
    except Exception:
        return None  # its last record is being written
    return events[0].run_id if events else None


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


async def play_round(seed: int, *, runs: int = RUNS) -> Round:
    """One round in a directory of its own, of which nothing is left."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iop-chaos-", ignore_cleanup_errors=True)))
        if IS_ROOT and can_mount():
            stack.enter_context(small_disk(root / "data", DISK_MB))
        one = Round(seed, root, make_node(root, "127.0.0.1:0"), rng, plan(rng, runs))
        try:
            async with asyncio.timeout(3 * ROUND_S):
                await one.play()
        except Exception as error:
            one.books.problems.append(f"the round broke: {error!r}\n{one.node.logged()[-2000:]}")
        finally:
            await asyncio.to_thread(one.node.close)
        return one


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.monkey", description="Break a node, and keep the books."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; each next one has the next number")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs in a round")
    arguments = parser.parse_args()
    # a frozen node in a process group that lost its shell makes the kernel hang up on all of the group
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # leave nothing behind when told to stop
    first = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    total, deeds, began, failed = Books(), Counter[str](), time.monotonic(), []
    for seed in range(first, first + arguments.rounds):
        one = asyncio.run(play_round(seed, runs=arguments.runs))
        total.add(one.books)
        deeds += one.deeds
        is_good = one.books.is_balanced
        print(
            f"round {seed - first + 1} seed {seed}: {'ok' if is_good else 'NOT OK'}: {one.books.report()}", flush=True
        )
        for problem in one.books.problems:
            print(f"  {problem}", flush=True)
        if not is_good:
            failed.append(seed)
            print(f"  done to it: {dict(one.deeds)}", flush=True)
            print(f"  again: python -m tests.chaos.monkey --rounds 1 --seed {seed} --runs {arguments.runs}", flush=True)
    did = ", ".join(f"{name} {count}" for name, count in sorted(deeds.items()))
    print(
        f"rounds {arguments.rounds} seeds {first}..{first + arguments.rounds - 1} in {time.monotonic() - began:.0f} s: {did}"
    )
    print(f"books: {total.report()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
