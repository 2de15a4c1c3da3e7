"""The parts without processes: the way down, the bounded file, and reading /proc."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from providers.keeper.ending import Ending
from providers.keeper.process_tree import Process, descendants, read_process
from providers.keeper.records import read_exit, read_owner, tree_was_proven_gone
from providers.keeper.stderr_file import HEAD_BYTES, TAIL_BYTES, StderrFile


def test_an_ending_answers_what_is_due_and_when() -> None:
    ending = Ending(reason="x", steps=["int", "term"], grace_s=2.0, now=100.0)

    answers = [(now, ending.next_step(now)) for now in (100.0, 100.5, 101.0, 101.9, 102.0, 102.001, 102.1)]

    assert answers == [
        (100.0, signal.SIGINT),
        (100.5, None),
        (101.0, signal.SIGTERM),
        (101.9, None),
        (102.0, signal.SIGKILL),
        (102.001, None),
        (102.1, signal.SIGKILL),
    ]


@pytest.mark.parametrize("steps", [[], ["a step of a later version"]])
def test_an_ending_without_steps_kills_at_once(steps: list[str]) -> None:
    assert Ending(reason="x", steps=steps, grace_s=2.0, now=5.0).next_step(5.0) == signal.SIGKILL


def test_an_ending_in_a_hurry_forgets_its_grace() -> None:
    ending = Ending(reason="x", steps=["term"], grace_s=60.0, now=5.0)

    ending.hurry(6.0)

    assert (ending.due, ending.next_step(6.0)) == (6.0, signal.SIGKILL)


@pytest.mark.parametrize("chunk", [1000, 65536, 200_000])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 300_000])
def test_stderr_keeps_its_head_and_its_tail(tmp_path: Path, chunk: int, beyond: int) -> None:
    text = bytes(index * 31 % 251 for index in range(HEAD_BYTES + TAIL_BYTES + beyond))
    kept = StderrFile(str(tmp_path / "stderr"))

    for start in range(0, len(text), chunk):
        kept.take(text[start : start + chunk])
        kept.flush()

    gap = b"\n[%d bytes left out]\n" % beyond
    expected = text if beyond <= 0 else text[:HEAD_BYTES] + gap + text[-TAIL_BYTES:]
    assert (tmp_path / "stderr").read_bytes() == expected
    assert kept.total_bytes == len(text)


def test_a_full_disk_under_stderr_is_counted_and_raises_nothing() -> None:
    kept = StderrFile("/dev/full")

    kept.take(b"words")

    assert (kept.total_bytes, kept.write_errors) == (5, 1)


@pytest.fixture
def fake_proc(tmp_path: Path) -> Path:
    """1 → 2 → {3 (zombie), 4 (leader gone, threads live) → 5}; 2 has two threads that forked one each; 9 is a stranger."""
    for pid, parent, state, threads, children in (
        (2, 1, "S", 2, {2: "3", 22: "4"}),
        (3, 2, "Z", 1, {3: ""}),
        (4, 2, "Z", 3, {4: "", 44: "5"}),
        (5, 4, "R", 1, {5: ""}),
        (9, 8, "S", 1, {9: ""}),
        (1, 0, "S", 1, {1: "2"}),
    ):
        for thread, names in children.items():
            (tmp_path / f"{pid}/task/{thread}").mkdir(parents=True)
            (tmp_path / f"{pid}/task/{thread}/children").write_text(names + " ")
        fields = f"{state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 {pid * 100} 0 0"
        (tmp_path / f"{pid}/stat").write_text(f"{pid} (a) b (c)) {fields}\n")
    return tmp_path


@pytest.mark.parametrize("has_children_files", [True, False])
def test_descendants_are_the_living_ones_whoever_forked_them(fake_proc: Path, has_children_files: bool) -> None:
    if has_children_files:
        (fake_proc / "thread-self").mkdir()
        (fake_proc / "thread-self/children").touch()

    assert sorted(descendants(1, str(fake_proc))) == [2, 4, 5]


def test_a_name_full_of_brackets_hides_no_field(fake_proc: Path) -> None:
    assert read_process(5, str(fake_proc)) == Process(pid=5, parent=4, start_time=500, state="R", threads=1)
    assert read_process(6, str(fake_proc)) is None


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"code": 1}', '{"code": null, "signal": null, "stopped": null}'])
def test_a_torn_record_is_no_record(tmp_path: Path, torn: str) -> None:
    (tmp_path / "exit").write_text(torn)
    (tmp_path / "owner").write_text(torn)

    assert (read_exit(tmp_path), read_owner(tmp_path), tree_was_proven_gone(tmp_path)) == (None, None, False)
