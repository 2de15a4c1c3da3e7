"""From a profile to what is executed: the binary, the arguments, and never the prompt."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from providers.cli.command import (
    ARGUMENT_LIMIT_BYTES,
    CannotStart,
    Command,
    build_command,
    find_binary,
    native_binary,
    prompt_text,
)
from providers.cli.profile import Profile


def program(path: Path, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(mode)
    return path


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return program(tmp_path / "bin" / "agent")


def profile(**changes: object) -> Profile:
    plain = Profile(
        id="p", command=("agent", "--quiet"), dialect="plain_text", args=("--model", "m"),
        resume_args=("--model", "m", "--resume={{session}}", "{{session}}"),
    )  # fmt: skip
    return replace(plain, **changes)  # type: ignore[arg-type]  # fields of the dataclass, by name


@pytest.mark.req("RT-36")
def test_a_first_run_has_the_first_arguments_and_a_later_one_the_native_id(agent: Path) -> None:
    path = str(agent.parent)

    assert build_command(profile(), native_id=None, path=path) == Command(argv=(str(agent), "--quiet", "--model", "m"))
    assert build_command(profile(), native_id="n-1", path=path) == Command(
        argv=(str(agent), "--quiet", "--model", "m", "--resume=n-1", "n-1"), resumed_id="n-1"
    )


@pytest.mark.req("RT-36")
def test_a_profile_that_cannot_resume_begins_anew(agent: Path) -> None:
    command = build_command(profile(resume_args=()), native_id="n-1", path=str(agent.parent))

    assert command == Command(argv=(str(agent), "--quiet", "--model", "m"))


def test_an_argument_at_the_systems_limit_is_taken_and_one_over_it_refused(agent: Path) -> None:
    path = str(agent.parent)
    longest = build_command(profile(args=("x" * ARGUMENT_LIMIT_BYTES,)), native_id=None, path=path)

    assert len(longest.argv[-1]) == 131_071
    with pytest.raises(CannotStart, match="an argument of profile 'p' has 131072 bytes; the limit is 131071"):
        build_command(profile(args=("x" * (ARGUMENT_LIMIT_BYTES + 1),)), native_id=None, path=path)
    with pytest.raises(CannotStart, match="has 131073 bytes"):
        build_command(profile(args=("€" * 43_691,)), native_id=None, path=path)


def test_a_binary_is_the_first_executable_on_an_absolute_entry_of_the_path(tmp_path: Path, agent: Path) -> None:
    program(tmp_path / "first" / "agent", 0o644)
    (tmp_path / "second" / "agent").mkdir(parents=True)
    path = os.pathsep.join(["", ".", "bin", *(str(tmp_path / name) for name in ("first", "second", "bin"))])

    assert find_binary("agent", path) == str(agent)
    assert find_binary(str(agent), "") == str(agent)


@pytest.mark.parametrize("name", ["agent", "bin/agent", "./agent", ""])
def test_nothing_is_found_relative_to_where_the_node_happens_to_stand(
    agent: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(agent.parent)

    with pytest.raises(
        CannotStart, match=f"binary '{name}' was not found; install it, or put its directory on the node's PATH"
    ):
        find_binary(name, os.pathsep.join([".", "", "bin"]))


def test_what_is_there_but_not_executable_is_told_apart(tmp_path: Path) -> None:
    file = program(tmp_path / "agent", 0o644)

    with pytest.raises(CannotStart, match=r"is not executable; make it so \(chmod \+x\)"):
        find_binary(str(file), "/bin")
    with pytest.raises(CannotStart, match="was not found"):
        find_binary(str(tmp_path), "/bin")


def test_a_launcher_gives_way_to_the_binary_it_would_start(tmp_path: Path) -> None:
    launcher = program(tmp_path / "lib" / "cli.js")
    native = program(tmp_path / "lib" / "node_modules" / "cli-linux-x64" / "cli")
    program(tmp_path / "lib" / "node_modules" / "cli-win" / "cli", 0o644)
    link = tmp_path / "bin" / "cli"
    link.parent.mkdir()
    link.symlink_to(launcher)

    assert native_binary(str(link), ["node_modules/cli-*/cli"]) == str(native)
    assert native_binary(str(link), ["nothing-*/cli"]) == str(link)
    assert native_binary(str(link), []) == str(link)


def test_a_prompt_that_would_be_a_command_of_the_cli_stays_text() -> None:
    assert prompt_text(profile(slash_is_command=True), "/clear") == " /clear"
    assert prompt_text(profile(slash_is_command=True), "say /clear") == "say /clear"
    assert prompt_text(profile(), "/clear") == "/clear"
