"""The data directory: who may use it, and where things are in it.

::

    lock              held by the one host process; its content is the generation, counted up at each start
    index.sqlite3     runs and sessions
    reserve           space set aside for ending runs on a full disk
    runs/<ulid>/      one directory a run: journal, raw output, process records
    sessions/<key>/   private directories of sessions
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from runtime.failure import Failure, FailureCode, FailureError

RESERVE = "reserve"
RESERVE_BYTES = 4 << 20
NETWORK_FILESYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "afs"})


class DataDirectoryInUse(FailureError):
    """Another host process has the data directory; give this one its own."""

    code = FailureCode.CONFLICT


class DataDirectoryOnNetwork(FailureError):
    """Other machines can mount it, and their locks are not ours: two nodes could have it."""

    code = FailureCode.UNSUPPORTED


class Storage:
    """The open data directory. ``generation`` is higher than that of every host process before."""

    def __init__(self, root: Path, generation: int, unlock: Callable[[Path], None] | None = None) -> None:
        self.root, self.generation = root, generation
        self._unlock = unlock

    def keep_reserve(self) -> None:
        """Set space aside with which runs can still be ended when the disk is full; where there is none, none is kept."""
        try:
            fd = os.open(self.root / RESERVE, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
        except OSError:
            pass
        finally:
            os.close(fd)

    def release_reserve(self) -> bool:
        """Give the reserve up; False when it was given up before."""
        try:
            os.truncate(self.root / RESERVE, 0)
            os.unlink(self.root / RESERVE)
        except OSError:
            return False
        return True

    def free_bytes(self) -> int:
        """What an ordinary user may still write here."""
        found = os.statvfs(self.root)
        return found.f_bavail * found.f_frsize

    def run_directory(self, ulid: str) -> Path:
        return self.root / "runs" / ulid

    def private_workspace(self, session_key: str) -> Path:
        return self.root / "sessions" / session_key / "workspace"

    def run_keys(self) -> list[str]:
        """The keys of all run directories, whoever knows them."""
        return [entry.name for entry in (self.root / "runs").iterdir()]

    def session_keys(self) -> list[str]:
        """The keys of all private directories of sessions."""
        return [entry.name for entry in (self.root / "sessions").iterdir()]

    def make_run_directory(self, ulid: str) -> None:
        self.run_directory(ulid).mkdir(mode=0o700, parents=False, exist_ok=True)

    def make_private_workspace(self, session_key: str) -> None:
        workspace = self.private_workspace(session_key)
        for directory in (workspace.parent, workspace):  # mkdir would give its mode to the last one only
            directory.mkdir(mode=0o700, exist_ok=True)

    def remove_run(self, ulid: str) -> None:
        """Remove the run's directory with all that is in it; a missing one is fine."""
        self._remove(self.run_directory(ulid))

    def remove_session(self, session_key: str) -> None:
        self._remove(self.root / "sessions" / session_key)

    def remove_files(self, directory: Path, files: Iterable[Path]) -> None:
        """Remove some files of a run's directory."""
        if self._unlock is not None:
            self._unlock(directory)
        for path in files:
            path.unlink(missing_ok=True)

    def size_bytes(self, directory: Path) -> int:
        """What the files of a run's directory hold."""
        try:
            with os.scandir(directory) as entries:
                return sum(entry.stat().st_size for entry in entries if entry.is_file(follow_symlinks=False))
        except OSError:
            return 0

    def _remove(self, directory: Path) -> None:
        if self._unlock is not None and directory.is_dir():
            self._unlock(directory)
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def open_storage(root: Path, *, unlock: Callable[[Path], None] | None = None) -> Iterator[Storage]:
    """Lock *root* (made 0700 if missing) for this process. *unlock* makes a run's files removable before they are removed.

    Raises:
        DataDirectoryInUse: another process holds it.
        DataDirectoryOnNetwork: it lies on a network file system.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("runs", "sessions"):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    if (kind := filesystem_of(root)) in NETWORK_FILESYSTEMS:
        raise DataDirectoryOnNetwork(f"data directory {root} lies on {kind}; use a disk of this machine")
    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        storage = Storage(root, _take(fd, root), unlock)
        storage.keep_reserve()
        yield storage
    finally:
        os.close(fd)


def not_stored(error: OSError, root: Path) -> FailureError:
    """What to tell a caller whose run *root* did not take."""
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    message = f"the node's data directory {root} takes no run: {error.strerror or error}; dispatch to another node"
    return FailureError.of(Failure(code=FailureCode.STORAGE_FULL if is_full else FailureCode.INTERNAL, message=message))


def filesystem_of(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that *path* lies on, as the kernel lists it in *mounts*; empty when it does not."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        place, _, source = line.partition(" - ")
        if place.split()[2:3] == [wanted] and source:
            return source.split()[0]
    return ""


def _take(fd: int, root: Path) -> int:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise DataDirectoryInUse(
            f"data directory {root} is in use by another node; stop it, or give this one --data-dir"
        ) from error
    text = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
    generation = (int(text) if text.isdigit() else 0) + 1
    os.pwrite(fd, f"{generation}\n".ljust(20).encode(), 0)
    os.fsync(fd)
    return generation
