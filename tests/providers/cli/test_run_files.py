"""The files that the node itself keeps beside a run: the prompt, the output, and two notes for people."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from providers.cli.dialect import Noise
from providers.cli.json_lines import NOISE_LIMIT, noise
from providers.cli.run_files import (
    DIAGNOSTICS,
    LAUNCH,
    STDERR_TAIL_BYTES,
    Diagnostics,
    create_output,
    open_input,
    read_note,
    stderr_tail,
    write_launch,
)
from providers.keeper.client import clear_append_only
from providers.keeper.kernel import set_append_only
from runtime.redact import Redactor


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    if (tmp_path / "stdout").exists():
        clear_append_only(tmp_path / "stdout")


def test_the_output_can_only_be_appended_to_and_not_be_opened_by_name(directory: Path) -> None:
    fd = create_output(directory)
    os.write(fd, b"one")
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, b"two")
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    os.close(fd)

    assert ((directory / "stdout").read_bytes(), mode) == (b"onetwo", 0o400)


def test_an_output_that_an_attempt_before_left_is_replaced(directory: Path) -> None:
    first = create_output(directory)
    os.write(first, b"old")
    set_append_only(first, on=True)
    os.close(first)
    os.close(create_output(directory))

    assert (directory / "stdout").read_bytes() == b""


def test_the_prompt_is_a_file_that_ends_and_that_nobody_changes() -> None:
    """Not even the agent, which has it as its stdin: others look there for what it was asked."""
    fd = open_input("grüße \ud800")
    try:
        read, found = os.read(fd, 100), os.fstat(fd)
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"x", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)

    assert read == "grüße ?".encode()
    assert (stat.S_ISREG(found.st_mode), found.st_nlink) == (True, 0)


@pytest.mark.req("E-10")
def test_a_launch_is_noted_redacted_with_names_of_variables_only(directory: Path) -> None:
    write_launch(
        directory, argv=["/bin/agent", "--key", "s3cr3t-value"], cwd="/w", variables=["PATH", "MY_TOKEN"], resumed_id="n-1",
        start_facts={"session_history": "not_resumed"}, redact=Redactor(["s3cr3t-value"]),
    )  # fmt: skip

    assert read_note(directory, LAUNCH) == {
        "argv": ["/bin/agent", "--key", "[redacted]"], "cwd": "/w", "env": ["MY_TOKEN", "PATH"], "resumed_id": "n-1",
        "start_facts": {"session_history": "not_resumed"},
    }  # fmt: skip


@pytest.mark.req("FAIL-08")
def test_a_secret_across_the_beginning_of_the_tail_is_gone_as_a_whole(directory: Path) -> None:
    secret = b"correct-horse-battery"
    said = b"x" * 100 + secret + b" was refused;".ljust(STDERR_TAIL_BYTES - 10)
    (directory / "stderr").write_bytes(said)

    tail = stderr_tail(directory, Redactor([secret.decode()]), limit=STDERR_TAIL_BYTES)

    assert tail == "[redacted] was refused;"


@pytest.mark.req("FAIL-08")
def test_a_sample_that_was_cut_holds_no_half_of_a_secret(directory: Path) -> None:
    diagnostics = Diagnostics(Redactor(["correct-horse-battery"]))
    diagnostics.note(noise("not_json", "x" * (NOISE_LIMIT - 10) + " correct-horse-battery"))
    diagnostics.store(directory)

    assert "correct" not in (directory / DIAGNOSTICS).read_text()


def test_the_tail_of_stderr_is_redacted_and_bounded(directory: Path) -> None:
    (directory / "stderr").write_bytes(b"x" * 100_000 + b"\xff the password is hunter22\n")

    tail = stderr_tail(directory, Redactor(["hunter22"]), limit=60)

    assert tail.endswith("\ufffd the password is [redacted]")
    assert len(tail) <= 60
    assert stderr_tail(directory / "missing", Redactor()) == ""


def test_diagnostics_are_counted_all_and_kept_few(directory: Path) -> None:
    diagnostics = Diagnostics(Redactor(["s3cr3t-value"]))
    for number in range(50):
        diagnostics.note(Noise(kind="not_json", detail=f"{number} s3cr3t-value " + "y" * 1000))
    diagnostics.store(directory)

    note = read_note(directory, DIAGNOSTICS)
    samples = note["samples"]
    assert note["counts"] == {"not_json": 50}
    assert isinstance(samples, list) and len(samples) == 20
    assert samples[3]["detail"].startswith("3 [redacted] yyy") and len(samples[3]["detail"]) == 300


def test_a_run_without_noise_leaves_no_note(directory: Path) -> None:
    Diagnostics(Redactor()).store(directory)

    assert not (directory / DIAGNOSTICS).exists()
    assert read_note(directory, DIAGNOSTICS) == {}


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_note_that_cannot_be_read_is_an_empty_one(directory: Path, content: bytes) -> None:
    (directory / LAUNCH).write_bytes(content)

    assert read_note(directory, LAUNCH) == {}
