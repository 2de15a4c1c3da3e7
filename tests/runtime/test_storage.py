from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.failure import FailureCode
from runtime.storage import RESERVE, DataDirectoryInUse, open_storage


def test_a_data_directory_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    root = tmp_path / "a" / "data"

    with open_storage(root):
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in (root, root / "runs", root / "sessions", root / "lock")
        }

    assert modes == {"data": 0o700, "runs": 0o700, "sessions": 0o700, "lock": 0o600}


def test_one_process_at_a_time_has_it(tmp_path: Path) -> None:
    with (
        open_storage(tmp_path),
        pytest.raises(DataDirectoryInUse, match="is in use by another node") as refusal,
        open_storage(tmp_path),
    ):
        pass

    assert refusal.value.failure.code is FailureCode.CONFLICT
    with open_storage(tmp_path):
        pass


def test_another_process_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys,time; from pathlib import Path; from runtime.storage import open_storage\n"
            "with open_storage(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()",
            str(tmp_path),
        ],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"

    with pytest.raises(DataDirectoryInUse), open_storage(tmp_path):
        pass
    holder.kill()
    holder.communicate(timeout=60)

    with open_storage(tmp_path) as storage:
        assert storage.generation == 2


@pytest.mark.parametrize("damage", [None, b"", b"garbage", b"\xff\xfe", b"7\n"])
def test_each_start_is_a_higher_generation_whatever_the_file_says(tmp_path: Path, damage: bytes | None) -> None:
    with open_storage(tmp_path) as first:
        pass
    if damage is not None:
        (tmp_path / "lock").write_bytes(damage)

    with open_storage(tmp_path) as one:
        pass
    with open_storage(tmp_path) as other:
        pass

    assert first.generation == 1
    assert one.generation >= 1
    assert other.generation == one.generation + 1


def test_the_lock_is_not_inherited(tmp_path: Path) -> None:
    """A child that kept it would keep the next host out."""
    with open_storage(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with open(tmp_path / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child.communicate(timeout=60)


def test_removing_a_run_makes_it_removable_first(tmp_path: Path) -> None:
    unlocked: list[Path] = []
    with open_storage(tmp_path, unlock=unlocked.append) as storage:
        storage.make_run_directory("U1")
        (storage.run_directory("U1") / "stdout").write_text("x")

        storage.remove_run("U1")
        storage.remove_run("U1")

        assert not storage.run_directory("U1").exists()
    assert unlocked == [tmp_path / "runs" / "U1"]


def test_a_session_goes_with_all_that_is_in_it(tmp_path: Path) -> None:
    with open_storage(tmp_path) as storage:
        storage.make_private_workspace("K1")
        (storage.private_workspace("K1") / "file").write_text("x")

        storage.remove_session("K1")

        assert list((tmp_path / "sessions").iterdir()) == []


def test_the_reserve_is_given_up_once_and_kept_again_at_the_next_start(tmp_path: Path) -> None:
    with open_storage(tmp_path) as storage:
        assert (tmp_path / RESERVE).stat().st_blocks * 512 >= 4 << 20
        assert (storage.release_reserve(), storage.release_reserve()) == (True, False)
        assert not (tmp_path / RESERVE).exists()

    with open_storage(tmp_path):
        assert (tmp_path / RESERVE).exists()
