"""The files of one CLI run in its directory, as the node prepares and leaves them.

``stdin``   the prompt, a regular file: never on a command line, deleted after the terminal
``stdout``  what the agent prints, append-only and not writable by name: a child's ``> /dev/stdout`` must not cut it
``mcp.json``  the MCP servers of the run with their secrets, where an agent reads them from a file; deleted with the prompt
``launch.json``  what was started, redacted, for people
``diagnostics.json``  lines that were no events: counts, and a few bounded, redacted samples
``slice.json``  for a run of a warm process: which part of its output the run is, written before the turn is sent
``interrupt``  an interrupt was asked for, so a turn that ends interrupted is a cancelled one

A warm process has the first of these in a directory of its own; when the run has ended its part of the output is copied
into the run's ``stdout``.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from providers.cli.dialect import Noise
from providers.keeper.client import clear_append_only
from runtime.redact import Redactor, clip

STDOUT, STDERR = "stdout", "stderr"
MCP_CONFIG = "mcp.json"
LAUNCH, DIAGNOSTICS, SLICE, INTERRUPT = "launch.json", "diagnostics.json", "slice.json", "interrupt"
STDERR_TAIL_BYTES = 8 * 1024
_SAMPLES = 20
_SAMPLE_CHARS = 300
_SCAN_BYTES = 1 << 20


def create_output(directory: Path) -> int:
    """A new output file, open for appending; what an earlier attempt that never began left is removed."""
    path = directory / STDOUT
    try:
        return _create(path)
    except FileExistsError:
        clear_append_only(path)
        path.unlink()
        return _create(path)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o400)


def open_input(text: str) -> int:
    """The prompt as a file that ends, open at its beginning; it is nowhere on the disk, and nobody can change it.

    It lives as long as a process has it open. A node that finds an unbegun run makes it anew from the request.
    """
    fd = os.memfd_create("prompt", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(fd, "wb", closefd=False) as file:
        file.write(text.encode("utf-8", "replace"))
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def write_mcp_config(directory: Path, content: bytes) -> Path:
    """Store what an agent is told of its MCP servers, secrets included; where it is."""
    path = directory / MCP_CONFIG
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
    return path


def discard_secrets(directory: Path) -> None:
    """What the agent was told of its MCP servers is needed no more."""
    (directory / MCP_CONFIG).unlink(missing_ok=True)


def write_launch(
    directory: Path,
    *,
    argv: Sequence[str],
    cwd: str,
    variables: Sequence[str],
    resumed_id: str | None,
    start_facts: Mapping[str, str],
    redact: Redactor,
) -> None:
    """Note what is started: arguments redacted, of the environment the names only.

    ``resumed_id`` and ``start_facts`` are for a node that adopts the run; they are not shown.
    """
    note = {
        "argv": [redact(a) for a in argv], "cwd": cwd, "env": sorted(variables), "resumed_id": resumed_id,
        "start_facts": dict(start_facts),
    }  # fmt: skip
    (directory / LAUNCH).write_bytes(msgspec.json.encode(note))


def stderr_tail(directory: Path, redact: Redactor, limit: int = 2048) -> str:
    """The end of what the agent said on stderr, redacted and bounded."""
    try:
        with open(directory / STDERR, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - STDERR_TAIL_BYTES))
            return redact.diagnostic(file.read(), limit, is_cut=size > STDERR_TAIL_BYTES)
    except OSError:
        return ""


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A run as a part of a warm process's output, and what its decoder began with."""

    process: str
    """The name of the process's directory."""
    offset: int
    resumed_id: str | None = None
    state: dict[str, object] = {}  # msgspec copies it
    began_boot_s: float = 0.0
    """What was started later in the process's tree was started by this run."""
    unread: int | None = None
    """From there to ``offset`` lies what was printed before the turn and read by no turn; None: nothing does."""
    start_facts: dict[str, str] = {}
    """What is said with the run's start, whichever node says it."""
    is_again: bool = False
    """The run had begun with another process, which read nothing of its turn."""


def write_slice(directory: Path, part: Slice) -> None:
    """Store *part*; it is on the disk when this returns. Blocks."""
    _write_durably(directory / SLICE, msgspec.json.encode(part))


def read_slice(directory: Path) -> Slice | None:
    """The part that the run in *directory* is; None when it was never written."""
    try:
        return msgspec.json.decode((directory / SLICE).read_bytes(), type=Slice)
    except (OSError, msgspec.MsgspecError):
        return None


def write_interrupt(directory: Path) -> None:
    """Note that an interrupt is about to be sent. Blocks."""
    _write_durably(directory / INTERRUPT, b"")


def _write_durably(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(".new")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fdatasync(file.fileno())
    os.replace(temporary, path)


def line_start(fd: int, after: int) -> int:
    """Where the first line begins that is not complete yet, in the output open as *fd*; *after* begins a line."""
    position = os.fstat(fd).st_size
    while position > after:
        begin = max(after, position - _SCAN_BYTES)
        if (found := os.pread(fd, position - begin, begin).rfind(b"\n")) >= 0:
            return begin + found + 1
        position = begin
    return after


def copy_part(source: Path, begin: int, end: int, target: Path) -> None:
    """Copy the bytes [*begin*, *end*) of *source*, where there is one, to *target*. Blocks."""
    if not source.exists():
        return
    with open(source, "rb") as read, open(target, "wb") as written:
        read.seek(begin)
        while begin < end and (data := read.read(min(_SCAN_BYTES, end - begin))):
            written.write(data)
            begin += len(data)


class Diagnostics:
    """Counts what was no event, and keeps a few samples; bounded whatever the agent prints."""

    def __init__(self, redact: Redactor) -> None:
        self._redact = redact
        self.counts: Counter[str] = Counter()
        self._samples: list[dict[str, str]] = []

    def note(self, noise: Noise) -> None:
        self.counts[noise.kind] += 1
        if len(self._samples) < _SAMPLES:
            self._samples.append(
                {"kind": noise.kind, "detail": clip(self._redact.of_clipped(noise.detail), _SAMPLE_CHARS)}
            )

    def store(self, directory: Path) -> None:
        """Leave them beside the run; nothing is written for a run without any."""
        if self.counts:
            note = {"counts": dict(self.counts), "samples": self._samples}
            (directory / DIAGNOSTICS).write_bytes(msgspec.json.encode(note))


def read_note(directory: Path, name: str) -> Mapping[str, object]:
    """One of the JSON notes above; empty when there is none."""
    try:
        found = msgspec.json.decode((directory / name).read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return found if isinstance(found, dict) else {}
