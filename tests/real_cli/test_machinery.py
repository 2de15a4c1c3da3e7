"""The suite of the real CLIs itself, without any of them: what it says when it cannot install, and its table."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real_cli.agents import AGENTS, catalog
from tests.real_cli.closed import destination
from tests.real_cli.install import PACKAGES, ROOT
from tests.real_cli.matrix import GREEN, NOT_APPLICABLE, RED, Matrix
from tests.real_cli.session_agents import SESSIONS
from tests.support.expect import TRANSCRIPTS

PROFILES = {profile.id for profile in catalog().profiles}


def real_cli(folder: Path, npm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python -m tests.real_cli`` with an empty cache and an npm that is the script *npm*."""
    (bin_folder := folder / "bin").mkdir()
    (bin_folder / "npm").write_text(f"#!/bin/sh\n{npm}\n")
    (bin_folder / "npm").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "IOP_REAL_CLI_CACHE": str(folder / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.real_cli", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("code", ["ENOTFOUND", "ECONNREFUSED", "ETIMEDOUT", "E503"])
def test_an_outage_of_the_registry_is_said_aloud_and_is_no_failure(tmp_path: Path, code: str) -> None:
    done = real_cli(tmp_path, f"echo 'npm error code {code}' >&2; exit 1", "claude", "codex")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("REAL-CLI SKIPPED: the registry cannot be reached")
    assert "claude, codex" in done.stdout


@pytest.mark.parametrize(
    ("npm", "said"), [("echo 'npm error code E404' >&2; exit 1", "E404"), ("exit 0", "not installed")]
)
def test_an_install_that_fails_otherwise_is_a_failure(tmp_path: Path, npm: str, said: str) -> None:
    done = real_cli(tmp_path, npm, "claude")

    assert done.returncode == 1
    assert said in done.stderr and "Traceback" not in done.stderr


def test_an_unknown_cli_is_a_usage_error(tmp_path: Path) -> None:
    done = real_cli(tmp_path, "exit 1", "parrot")

    assert done.returncode == 2
    assert "parrot" in done.stderr and "claude" in done.stderr


@pytest.mark.parametrize("row", AGENTS)
def test_every_row_is_pinned_declared_and_has_its_reasons(row: str) -> None:
    agent = AGENTS[row]

    assert row in PACKAGES
    assert set(agent.profiles) <= PROFILES
    assert all((TRANSCRIPTS / each.transcript / "run.json").exists() for each in agent.cannot.values())


@pytest.mark.parametrize("row", SESSIONS)
def test_every_row_of_sessions_is_pinned_declared_and_has_its_reasons(row: str) -> None:
    agent = SESSIONS[row]

    assert agent.package in PACKAGES
    assert agent.profile in PROFILES
    assert all((TRANSCRIPTS / each.transcript / "run.json").exists() for each in agent.cannot.values())


def test_the_table_shows_the_worst_of_a_cell() -> None:
    matrix = Matrix()
    matrix.add("one", "plain", GREEN)
    matrix.add("one", "tool", GREEN)
    matrix.add("one", "tool", RED)
    matrix.add("two", "plain", NOT_APPLICABLE, reason="it is mute")
    matrix.spent("one", 90)

    assert list(matrix.lines()) == [
        "cell     one     two",
        "plain    green   n/a",
        "tool     red     -",
        "minutes  1.5     0.0",
        "n/a  two, plain: it is mute",
    ]


def test_a_packet_tells_whom_it_is_for() -> None:
    header = bytes.fromhex("4500003100000000401100000affff02c0000201")
    question = b"\x07example\x03net\0\0\1\0\1"

    assert destination(header + bytes.fromhex("b9760035001d0000") + bytes(12) + question) == "192.0.2.1:53 example.net"
    assert destination(b"\x60" + bytes(40)) == ""
