from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.provider import Stop, StopReason
from runtime.run import CANCEL_FILE, read_cancel, write_cancel


@pytest.mark.req("E-19")
def test_a_recorded_cancel_is_found_by_the_next_host(tmp_path: Path) -> None:
    write_cancel(tmp_path, "the user left")

    assert read_cancel(tmp_path) == Stop(reason=StopReason.CANCELLED, message="the user left")
    assert sorted(path.name for path in tmp_path.iterdir()) == [CANCEL_FILE]


def test_a_run_nobody_cancelled_has_no_cancel(tmp_path: Path) -> None:
    assert read_cancel(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b"\xff\xfe", json.dumps({}).encode(), b'{"reason": ""}']
)
def test_a_cancel_counts_whatever_is_in_its_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CANCEL_FILE).write_bytes(content)

    assert read_cancel(tmp_path) == Stop(reason=StopReason.CANCELLED, message="cancelled")


def test_a_cancel_that_was_not_wholly_recorded_does_not_count(tmp_path: Path) -> None:
    """Before the rename nothing was acknowledged."""
    (tmp_path / f"{CANCEL_FILE}.tmp").write_text('{"reason": "half')

    assert read_cancel(tmp_path) is None
