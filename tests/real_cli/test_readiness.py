"""What discovery and status conclude from the vendors' own binaries, on a home where nobody has ever logged in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from node.client import NodeClient
from providers.catalog.loader import load_shipped
from runtime.status import Availability
from tests.real_cli.install import PACKAGES, commands
from tests.support.nodes import running

pytestmark = [pytest.mark.real_cli, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

REASONS = {
    "claude": "no subscription limits are reported for this login",
    "codex": "codex account authentication required to read rate limits",
}
"""What the CLIs with a status surface say without a login."""


@pytest.mark.req("CAT-08", "CAT-09", "CAT-28", "CAT-38", "CAT-39", "RT-29")
async def test_a_fresh_home_is_installed_and_not_logged_in(cli: str, tmp_path: Path) -> None:
    ours = [profile.id for profile in load_shipped().profiles if profile.provider == cli]
    path = f"{commands(cli)}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    with running(tmp_path, env={"PATH": path}) as node:
        async with NodeClient(node.address) as client:
            found = await client.probe_readiness(ours)
            answer = await client.command(ours[0])

    assert {one.profile_id: (one.readiness, one.version) for one in found} == dict.fromkeys(
        ours, ("unauthenticated", PACKAGES[cli].version)
    )
    assert all(one.next_step for one in found)
    assert answer.status is not None
    assert (answer.status.availability, answer.status.windows) == (Availability.UNAVAILABLE, ())
    assert answer.status.reason == REASONS.get(cli, f"{cli} has no status surface")
    label = "reported" if cli in REASONS else "readiness_fallback"
    assert (answer.status.metadata["status_probe"], answer.status.metadata["readiness"]) == (label, "unauthenticated")
