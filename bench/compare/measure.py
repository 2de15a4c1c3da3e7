"""One peer through one scenario: ``python -m bench.compare.measure PEER CACHE SCENARIO``; its figures as JSON on stdout.

Needs nothing but the standard library and what the peer's adapter needs, so that it runs in the peer's own environment.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from bench.compare.peer import Peer, Refused, Stream

PEERS = {
    "iop-node": ("bench.compare.iop_peer", "IopPeer"),
    "sandbox-agent": ("bench.compare.sandbox_agent_peer", "SandboxAgentPeer"),
    "a2a-sdk": ("bench.compare.a2a_peer", "A2APeer"),
}
WITHIN_S = 60.0
PATIENCE_S = 5.0
"""How long a stream may say nothing before it counts as ended without a terminal."""

Figures = dict[str, Any]


class Heard:
    """What one reader got."""

    def __init__(self) -> None:
        self.words: list[int] = []
        self.cursor = 0
        self.end = ""

    async def listen(self, stream: Stream, *, until: int | None = None, pause_s: float = 0.0) -> None:
        """Take from *stream* to its end, or until that many words; after the first, pause."""
        async with aclosing(stream):
            while True:
                try:
                    said = await asyncio.wait_for(anext(stream), PATIENCE_S + pause_s)
                except StopAsyncIteration:
                    self.end = self.end or "the stream ended without a terminal"
                    return
                except TimeoutError:
                    self.end = f"silence for {PATIENCE_S:g} s"
                    return
                except Refused as refused:
                    self.end = f"refused: {str(refused)[:160]}"
                    return
                self.words += said.words
                self.cursor = max(self.cursor, said.cursor)
                if said.is_end:
                    self.end = said.how
                    return
                if until is not None and len(self.words) >= until:
                    return
                if pause_s and self.words:
                    await asyncio.sleep(pause_s)
                    pause_s = 0.0

    def books(self, count: int) -> Figures:
        got = set(self.words)
        return {
            "lost": count - len(got & set(range(count))), "duplicated": len(self.words) - len(got),
            "in_order": self.words == sorted(self.words), "end": self.end,
        }  # fmt: skip


async def first_event(peer: Peer) -> Figures:
    """One dispatch at a time: call to first word."""
    times = []
    for n in range(25):
        heard, began = Heard(), time.perf_counter()
        stream = peer.dispatch(f"first-{n}", "1 0")
        await heard.listen(stream, until=1)
        times.append((time.perf_counter() - began) * 1000)
    times = sorted(times[5:])
    return {"p50_ms": round(statistics.median(times), 1), "max_ms": round(times[-1], 1)}


async def throughput(peer: Peer) -> Figures:
    """One run that prints as fast as it can; words a second at the caller, median of three."""
    count, rates, last = int(5000 * peer.scale), [], Heard()
    for n in range(3):
        last, began = Heard(), time.perf_counter()
        await last.listen(peer.dispatch(f"through-{n}", f"{count} 0"))
        rates.append(len(set(last.words)) / (time.perf_counter() - began))
    return {"words": count, "words_per_s": round(statistics.median(rates)), **last.books(count)}


async def slow_reader(peer: Peer) -> Figures:
    """A reader takes one word and then nothing for four seconds, while the agent prints on; another one keeps up."""
    count = int(20_000 * peer.scale)
    slow, fast = Heard(), Heard()
    slow_task = asyncio.create_task(slow.listen(peer.dispatch("slow", f"{count} 0.05"), pause_s=4.0))
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    await fast.listen(peer.attach("slow", 0))
    took = time.perf_counter() - began
    await asyncio.wait_for(slow_task, WITHIN_S)
    return {"words": count, "slow": slow.books(count), "fast": fast.books(count), "fast_s": round(took, 1)}


async def reconnect(peer: Peer) -> Figures:
    """The connection is dropped after 300 words and made again half a second later, from the cursor."""
    count, heard = max(600, int(2000 * peer.scale)), Heard()
    await heard.listen(peer.dispatch("again", f"{count} 1"), until=300)
    await asyncio.sleep(0.5)
    await heard.listen(peer.attach("again", heard.cursor))
    return {"words": count, **heard.books(count)}


async def kill(peer: Peer) -> Figures:
    """SIGKILL to the program in mid-answer, started again, and asked for the rest."""
    count, heard = max(600, int(1500 * peer.scale)), Heard()
    before = len(peer.begun())
    await heard.listen(peer.dispatch("killed", f"{count} 2"), until=200)
    peer.kill()
    await asyncio.sleep(0.5)
    await peer.start()
    await heard.listen(peer.attach("killed", heard.cursor))
    executed = len(peer.begun()) - before
    await asyncio.sleep(0.5)
    return {"words": count, **heard.books(count), "executed": executed, "agents_left": peer.living_agents()}


async def duplicate(peer: Peer) -> Figures:
    """The same dispatch again while the first one runs, as after a time-out: how often it was executed, who got what."""
    count, first, second = 400, Heard(), Heard()
    before = len(peer.begun())
    going = asyncio.create_task(first.listen(peer.dispatch("twice", f"{count} 5")))
    while len(first.words) < 20 and not going.done():
        await asyncio.sleep(0.01)
    await second.listen(peer.dispatch("twice", f"{count} 5"))
    await going
    callers = [one.books(count) for one in (first, second)]
    return {"words": count, "executed": len(peer.begun()) - before, "callers": callers}


SCENARIOS: tuple[Callable[[Peer], Awaitable[Figures]], ...] = (
    first_event, throughput, slow_reader, reconnect, duplicate, kill,
)  # fmt: skip


async def measure(kind: type[Peer], cache: Path, only: str) -> Figures:
    """Each scenario (of that name, when one is given) on a fresh program."""
    found: Figures = {"name": kind.name, "notes": list(kind.notes), "scale": kind.scale}
    for scenario in (scenario for scenario in SCENARIOS if only in ("", scenario.__name__)):
        with tempfile.TemporaryDirectory(prefix="iop-compare-", ignore_cleanup_errors=True) as root:
            peer = kind(Path(root), cache)
            found["version"] = peer.version
            try:
                await peer.start()
                found[scenario.__name__] = await asyncio.wait_for(scenario(peer), 2 * WITHIN_S)
            except Exception as error:
                found[scenario.__name__] = {"failed": f"{error!r:.300}"}
            finally:
                await peer.close()
                peer.end_everything()
    return found


def main() -> None:
    module, name = PEERS[sys.argv[1]]
    kind = getattr(importlib.import_module(module), name)
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    print(json.dumps(asyncio.run(measure(kind, Path(sys.argv[2]).absolute(), only))))


if __name__ == "__main__":
    main()
