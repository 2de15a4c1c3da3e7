"""The agent of the measurements speaks the dialect that its target declares."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from bench import agent
from bench.catalog import AGENT, QUICK, quick_answer, write_config
from node.config import load_config
from providers.catalog.loader import load_catalog
from providers.cli.dialect import Line, ProcessEnd, TurnContext
from providers.cli.dialects import load_dialect
from providers.cli.framing import Framing
from runtime.events import Draft, EventType


def decoded(output: bytes) -> list[EventType]:
    """The types of the events in *output*, the terminal included."""
    decoder = load_dialect("claude_stream_json").decoder(TurnContext())
    lines = [line for line in Framing().feed(output) if isinstance(line, Line)]
    drafts = [item for line in lines for item in decoder.decode(line)]
    assert all(isinstance(draft, Draft) for draft in drafts), drafts
    return [*(draft.type for draft in drafts if isinstance(draft, Draft)), decoder.conclude(ProcessEnd(code=0)).type]


def test_the_agent_prints_what_it_is_told_and_completes() -> None:
    output = subprocess.run([*AGENT, json.dumps({"events": 3})], stdout=subprocess.PIPE, check=True).stdout

    assert decoded(output) == [EventType.DELTA] * 4 + [EventType.COMPLETE]


def test_lines_told_apart_are_of_two_types() -> None:
    orders = json.dumps({"events": 2, "apart": True})

    output = subprocess.run([*AGENT, orders], stdout=subprocess.PIPE, check=True).stdout

    types = [EventType.DELTA, EventType.DELTA, EventType.REASONING_DELTA, EventType.COMPLETE]
    assert decoded(output) == types


def test_the_quick_agent_answers_once(tmp_path: Path) -> None:
    output = subprocess.run([*QUICK, str(quick_answer(tmp_path))], stdout=subprocess.PIPE, check=True).stdout

    assert decoded(output) == [EventType.DELTA, EventType.COMPLETE]


def test_a_line_is_as_long_as_that_of_a_real_agent() -> None:
    assert 240 <= len(agent.line("x" * 60)) <= 320


def test_the_node_takes_the_configuration(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, lines=3))

    assert config.catalog is not None
    assert [profile.id for profile in load_catalog(config.catalog).profiles] == ["bench", "quick", "still", "talk"]
