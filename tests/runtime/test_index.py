from __future__ import annotations

import asyncio
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.failure import FailureCode
from runtime.index import FORMAT, NAME, Index, IndexUnavailable, connect, open_index, statement
from runtime.sessions import Sessions
from tests.support.hosts import PATIENCE_S


def note(key: str, value: str = "v") -> Callable[[sqlite3.Connection], None]:
    return statement("INSERT INTO meta (key, value) VALUES (?, ?)", key, value)


def keys(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT key FROM meta ORDER BY rowid")]


@pytest.mark.req("E-19")
async def test_what_was_acknowledged_is_seen_by_another_process(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        await index.run(note("a"))

        other = sqlite3.connect(tmp_path / NAME)
        assert keys(other) == ["a"]
        other.close()


@pytest.mark.req("E-19")
def test_a_commit_is_synced(tmp_path: Path) -> None:
    connection = connect(tmp_path / NAME)

    settings = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

    connection.close()
    assert settings == ["wal", 2]


async def test_operations_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        commits = 0

        def count(statement_: str) -> None:
            nonlocal commits
            commits += statement_ == "COMMIT"

        await index.run(lambda connection: connection.set_trace_callback(count))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(index.run(note(f"k{n}")) for n in range(200)))
        await index.run(lambda connection: connection.set_trace_callback(None))

        assert await index.run(keys) == [f"k{n}" for n in range(200)]
    assert 1 <= commits <= 20


async def test_a_bad_operation_is_undone_alone(tmp_path: Path) -> None:
    def half(connection: sqlite3.Connection) -> None:
        note("half")(connection)
        raise ValueError("changed its mind")

    async with open_index(tmp_path) as index:
        async with asyncio.timeout(PATIENCE_S):
            outcomes = await asyncio.gather(
                index.run(note("a")),
                index.run(half),
                index.run(note("a")),
                index.run(note("b")),
                return_exceptions=True,
            )

        assert [type(outcome) for outcome in outcomes] == [type(None), ValueError, sqlite3.IntegrityError, type(None)]
        assert await index.run(keys) == ["a", "b"]


async def test_a_caller_that_leaves_does_not_stop_the_operation(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        leaving = asyncio.create_task(index.run(note("a")))
        await asyncio.sleep(0)
        leaving.cancel()

        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert await index.run(keys) == ["a"]


async def test_closing_commits_what_was_given_before(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        waiting = [asyncio.ensure_future(index.run(note(f"k{n}"))) for n in range(20)]
        await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*waiting)

    async with open_index(tmp_path) as index:
        assert len(await index.run(keys)) == 20


async def test_an_older_format_is_brought_up_and_keeps_what_it_has(tmp_path: Path) -> None:
    """As the first format was, before sessions could be forked."""
    connection = sqlite3.connect(tmp_path / NAME)
    connection.executescript(
        "CREATE TABLE sessions (principal TEXT NOT NULL, session_id TEXT NOT NULL, key TEXT NOT NULL UNIQUE,"
        " adapter TEXT NOT NULL, target TEXT NOT NULL, anonymous INTEGER NOT NULL, native_id TEXT,"
        " created_ns INTEGER NOT NULL, used_ns INTEGER NOT NULL, terminated_ns INTEGER,"
        " has_history INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (principal, session_id)) STRICT;"
        "INSERT INTO sessions VALUES ('local', 'tea', 'K', 'cli', 'agent', 0, 'native-1', 1, 2, NULL, 1);"
        "PRAGMA user_version=1"
    )
    connection.close()

    async with open_index(tmp_path) as index:
        found = (await Sessions.load(index)).get("local", "tea")
        format_ = await index.run(lambda c: c.execute("PRAGMA user_version").fetchone()[0])
    async with open_index(tmp_path) as index:  # and once more, as it is now
        assert len((await Sessions.load(index)).of("local")) == 1

    assert (found.key, found.has_history, found.forked_from, format_) == ("K", True, "", FORMAT)


async def test_a_newer_format_is_refused_by_name_and_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / NAME)
    connection.execute(f"PRAGMA user_version={FORMAT + 1}")
    connection.close()
    before = (tmp_path / NAME).read_bytes()

    with pytest.raises(IndexUnavailable, match=f"has format {FORMAT + 1}, this version knows {FORMAT}") as refusal:
        async with open_index(tmp_path):
            pass

    assert "use a newer iop-node or another data directory" in refusal.value.failure.message
    assert (tmp_path / NAME).read_bytes()[24:100] != b""
    assert len((tmp_path / NAME).read_bytes()) == len(before)


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_a_damaged_file_is_refused_with_a_way_out(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)

    with pytest.raises(IndexUnavailable, match="move it away to start with an empty one") as refusal:
        async with open_index(tmp_path):
            pass

    assert refusal.value.failure.code is FailureCode.INTERNAL
    assert (tmp_path / NAME).read_bytes() == content


async def test_an_index_is_opened_again_as_it_was(tmp_path: Path) -> None:
    for expected in ([], ["a"]):
        async with open_index(tmp_path) as index:
            assert await index.run(keys) == expected
            if not expected:
                await index.run(note("a"))


async def test_an_index_that_cannot_be_written_says_so_to_everyone(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        await index.run(lambda connection: connection.execute("PRAGMA query_only=ON"))

        results = await asyncio.gather(index.run(note("a")), index.run(note("b")), return_exceptions=True)

    assert [type(result) for result in results] == [IndexUnavailable, IndexUnavailable]
    assert "cannot be written: attempt to write a readonly database" in str(results[0])


async def test_a_full_disk_fails_the_batch_and_not_the_index(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        pages = await index.run(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
        await index.run(lambda connection: connection.execute(f"PRAGMA max_page_count={pages}").fetchone())

        with pytest.raises(IndexUnavailable, match="database or disk is full") as refusal:
            await index.run(note("big", "x" * 100_000))
        await index.run(lambda connection: connection.execute("PRAGMA max_page_count=100000").fetchone())
        await index.run(note("after"))

        assert refusal.value.failure.code is FailureCode.STORAGE_FULL
        assert await index.run(keys) == ["after"]


async def test_the_thread_is_gone_after_the_block(tmp_path: Path) -> None:
    async with open_index(tmp_path) as index:
        thread = index._thread
        assert thread.is_alive()

    assert not thread.is_alive()
    assert isinstance(index, Index)


async def test_the_thread_is_gone_when_the_index_could_not_be_opened(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"not a database" * 100)
    before = set(threading.enumerate())

    with pytest.raises(IndexUnavailable):
        async with open_index(tmp_path):
            pass

    assert {thread for thread in set(threading.enumerate()) - before if thread.name == "index"} == set()


async def test_prompts_are_the_owners_alone_though_the_directory_is_not(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    async with open_index(tmp_path) as index:
        await index.run(note("a"))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}

    assert set(modes.values()) == {0o600}
    assert NAME in modes
