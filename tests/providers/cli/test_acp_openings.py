"""How the agents really open a session, replayed: ``openings/acp/<agent>-<case>.jsonl`` is what each of them said.

The recordings are of the versions that the dialect names; the second answer's id was made 2, the number it has in an opening.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from providers.cli.acp_opening import AcpOpening
from providers.cli.dialect import Line
from providers.cli.dialects import acp
from runtime.failure import FailureCode
from tests.support.acp_frames import assert_valid

RECORDED = Path(__file__).parent / "openings" / "acp"
AGENTS = ("claude", "copilot", "gemini", "opencode", "qwen")
OLD_ID = "an-earlier-session"


def heard(
    name: str, *, resumed_id: str | None = None, source_id: str | None = None, said: list[bytes] | None = None
) -> AcpOpening:
    """An opening that heard all of a recording; all that it *said* is valid."""
    opening = acp.opening(cwd="/workspace", resumed_id=resumed_id, source_id=source_id, settings={})
    assert_valid(opening.first)
    for number, data in enumerate((RECORDED / f"{name}.jsonl").read_bytes().splitlines()):
        assert_valid(answer := opening.hear(Line(data=data, end=number)))
        if said is not None:
            said.append(answer)
    return opening


def test_every_recording_is_replayed() -> None:
    names = {f"{agent}-{case}" for agent in AGENTS for case in ("new", "load-unknown")}
    names |= {f"{agent}-load" for agent in ("claude", "copilot", "opencode", "qwen")}

    assert {path.stem for path in RECORDED.iterdir()} == names


@pytest.mark.parametrize("agent", AGENTS)
def test_a_new_session_has_an_id_and_knows_its_agent(agent: str) -> None:
    opening = heard(f"{agent}-new")

    assert opening.is_over and opening.failure is None
    assert opening.state["session"] and opening.state["agent"]
    assert (opening.state["next"], opening.state["tokens"], opening.state["cost_usd"]) == (3, {}, 0.0)


@pytest.mark.req("RT-36")
@pytest.mark.parametrize("agent", ["claude", "copilot", "opencode", "qwen"])
def test_a_session_that_is_replayed_is_gone_on_with(agent: str) -> None:
    opening = heard(f"{agent}-load", resumed_id=OLD_ID)

    assert opening.is_over and opening.failure is None
    assert opening.state["session"] == OLD_ID


@pytest.mark.req("RT-36")
def test_a_fork_is_asked_for_by_name_and_has_an_id_of_its_own() -> None:
    """A fork is answered as a new session is, so that recording serves."""
    said: list[bytes] = []
    opening = heard("claude-new", source_id=OLD_ID, said=said)

    assert b'"session/fork"' in said[0] and OLD_ID.encode() in said[0]
    assert opening.is_over and opening.state["session"] not in ("", OLD_ID)


@pytest.mark.req("RT-10")
@pytest.mark.parametrize("agent", ["copilot", "gemini", "qwen"])
def test_an_agent_that_cannot_fork_is_not_asked_to(agent: str) -> None:
    opening = heard(f"{agent}-new", source_id=OLD_ID)

    assert opening.failure is not None
    assert opening.failure.code is FailureCode.UNSUPPORTED


@pytest.mark.req("RT-36", "RT-29")
@pytest.mark.parametrize("agent", AGENTS)
def test_no_agent_makes_a_new_session_of_an_unknown_one(agent: str) -> None:
    """Qwen tries to: it answers well, and replays nothing."""
    opening = heard(f"{agent}-load-unknown", resumed_id=OLD_ID)

    assert not opening.is_over
    assert opening.failure is not None and opening.failure.code is FailureCode.LOST
