"""What the product takes for granted about a vendor's CLI, looked at with the real one."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.client import NodeClient
from providers.cli.command import find_binary, native_binary
from runtime.types import RunRequest
from tests.real_cli.agents import RealAgent, node_settings, provider_of, search_path
from tests.real_cli.closed import Closed, closed_network, knock
from tests.real_cli.driven import Driven, until
from tests.support.mockllm.scenario import Plan
from tests.support.nodes import running
from tests.support.runs import ending, follow


@pytest.fixture
def network() -> Iterator[Closed]:
    with tempfile.TemporaryDirectory(prefix="iop-closed-") as name:  # the path of a socket is short
        try:
            with closed_network(Path(name)) as closed:
                yield closed
        except OSError as error:
            pytest.skip(str(error))


@pytest.mark.cell("talks to no one")
async def test_a_run_tries_to_reach_nobody_but_the_model(cli: str, agent: RealAgent, network: Closed) -> None:
    folder, prompt = network.record.parent, "[[mock:plain]] hello"
    knock(network)
    await until(network.attempts, 5)
    network.record.write_text("")

    options = node_settings([cli], folder, network.url)
    with running(folder / "node", listen=f"unix:{folder}/s", prefix=network.prefix, **options) as node:
        async with NodeClient(node.address) as client:
            request = RunRequest(target=agent.profile, input=prompt, workspace=str(folder))
            events = await follow(client.run(request))

    assert ending(events[-1]) == ("complete", Plan.of(prompt).answer(1 + agent.turn_offset))
    assert [each for each in network.attempts() if not (agent.reaches and re.search(agent.reaches, each))] == []


@pytest.mark.cell("native binary")
async def test_what_runs_is_the_vendors_own_binary(cli: str, driven: Driven) -> None:
    provider = provider_of(driven.agent.profile)
    launcher = find_binary(provider.command[0], search_path([cli], os.environ["PATH"]))

    async with driven.asking("[[mock:slow]] hello") as (run_id, events):
        await driven.until_answering("[[mock:slow]]")
        details = (await driven.client.get(run_id)).details
        commands = list(driven.node.agent_processes().values())
        await driven.client.cancel(run_id)
        await follow(events)

    started = details["argv"].split()[0]
    assert started == native_binary(launcher, provider.native)
    if provider.native:
        assert started != launcher, "the launcher stands between us and the CLI"
        assert not [command for command in commands if re.match(r"(\S*/)?node ", command)]
