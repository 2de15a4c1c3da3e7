"""A vendor's real CLI, bare and through the node in turn: what the node adds to a run of Claude Code.

Both sides run the same command line in the same environment, against a scripted model on loopback; both end when the
process has ended. The bare side is what a shell does: a process, the prompt on stdin, the output in a file. Agents run at
a lower priority than the node; so does the bare one, or a busy machine would be measured in place of the node.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.options import Options
from bench.report import Row
from node.client import NodeClient
from providers.keeper import kernel
from runtime.types import RunRequest
from tests.real_cli.agents import AGENTS, node_settings, provider_of
from tests.real_cli.install import install
from tests.support.nodes import Node

PROMPT = "[[mock:plain]] hello"
SHARE, AT_LEAST_MS = 0.03, 30.0


def real_cli(options: Options) -> list[Row]:
    """A run of the vendor's Claude Code through the node beside the same run bare, in pairs."""
    install("claude")
    with tempfile.TemporaryDirectory(prefix="iop-bench-") as name, _model() as url:
        folder = Path(name)
        settings = node_settings(["claude"], folder, url)
        node = Node(folder / "node", **settings)
        try:
            pairs = asyncio.run(_pairs(node.start(), settings, max(7, options.rounds)))
        finally:
            node.close()
    bare, through = (statistics.median(side) for side in zip(*pairs, strict=True))
    added = sorted(b - a for a, b in pairs)
    return [
        Row(
            name="real Claude Code through the node, over bare", unit="ms", value=statistics.median(added),
            at_most=max(AT_LEAST_MS, SHARE * bare),
            note=f"{bare:.0f} bare, {through:.0f} through; {len(pairs)} pairs {added[0]:.0f}..{added[-1]:.0f}",
        ),
        Row(name="the same, of the bare run", unit="%", value=statistics.median(added) / bare * 100),
    ]  # fmt: skip


@contextmanager
def _model() -> Iterator[str]:
    """The scripted model as a process of its own; its URL."""
    command = [sys.executable, "-m", "tests.support.mockllm", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield f"http://{process.stdout.readline().split()[-1]}"
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bare:
    """The command that the node started, to be started without it."""

    argv: list[str]
    env: dict[str, str]
    workspace: Path

    def run_ms(self) -> float:
        prompt, output = self.workspace.parent / "prompt", self.workspace.parent / "output"
        prompt.write_text(PROMPT)
        with open(prompt, "rb") as stdin, open(output, "wb") as stdout:
            began = time.monotonic()
            process = subprocess.Popen(
                self.argv, stdin=stdin, stdout=stdout, stderr=stdout, env=self.env, cwd=self.workspace, start_new_session=True
            )  # fmt: skip
            _lower(process.pid)
            code = process.wait()
            took = (time.monotonic() - began) * 1e3
        if code:
            raise RuntimeError(f"the bare run ended with {code}: {output.read_text()[-500:]}")
        return took


def _lower(pid: int) -> None:
    """As a warden does it: the session where sessions are weighed, the process where they are not."""
    if kernel.autogroup_is_on():
        kernel.lower_autogroup(pid)
    else:
        os.setpriority(os.PRIO_PROCESS, pid, kernel.CHILD_NICE)


async def _pairs(node: Node, settings: dict[str, Any], count: int) -> list[tuple[float, float]]:
    """(bare, through the node) in ms, the order reversed every other time."""
    (workspace := node.root / "workspace").mkdir()
    async with NodeClient(node.address) as client:
        request = RunRequest(target=AGENTS["claude"].profile, input=PROMPT, workspace=str(workspace))
        await _through_ms(client, request)  # what only the first run of a home costs is no overhead
        newest = await anext(client.list())
        argv = (await client.get(newest.run_id)).details["argv"].split()
        bare = _Bare(argv=argv, env=_environment(settings), workspace=workspace)
        bare.run_ms()
        pairs = []
        for number in range(count):
            if number % 2:
                through, alone = await _through_ms(client, request), bare.run_ms()
            else:
                alone, through = bare.run_ms(), await _through_ms(client, request)
            pairs.append((alone, through))
    return pairs


async def _through_ms(client: NodeClient, request: RunRequest) -> float:
    began = time.monotonic()
    last = [event async for event in client.run(request)][-1]
    took = (time.monotonic() - began) * 1e3
    if last.type != "complete":
        raise RuntimeError(f"the run ended as {last.type}: {last.error}")
    return took


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    """What the node gives the CLI, as far as it matters to it."""
    profile = settings["profiles"][AGENTS["claude"].profile]
    secrets = {name: settings["env"][source["env"]] for name, source in profile["secrets"].items()}
    inherited = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
    fixed = {"PATH": settings["env"]["PATH"], "TERM": "dumb", "NO_COLOR": "1"}
    return {**inherited, **fixed, **provider_of(AGENTS["claude"].profile).env, **profile["env"], **secrets}
