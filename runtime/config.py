"""The runtime's settings, as one frozen value. Parsing and its errors are the host's (``node/config.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class KeepRaw(StrEnum):
    """Which ended runs keep what their agent printed; the events are kept in any case."""

    NEVER = "never"
    ON_ERROR = "on_error"
    ALWAYS = "always"

    def keeps(self, *, is_complete: bool) -> bool:
        """Whether a run with this outcome keeps its raw output."""
        return self is KeepRaw.ALWAYS or (self is KeepRaw.ON_ERROR and not is_complete)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeConfig:
    """Bounds and times of a runtime; times in seconds, sizes in bytes."""

    data_dir: Path
    max_concurrent_runs: int = 64
    max_queued_runs: int = 0
    """How many accepted runs may wait for a slot; beyond it, and with 0 at once, a run is refused."""
    max_queued_per_session: int = 16
    """How many runs may wait for the active one of their session (verb ``queue``)."""
    queue_timeout_s: float = 3600.0
    max_warm_processes: int = 32
    """How many processes of sessions stay between runs; a session whose process went is resumed by a fresh one."""
    warm_idle_s: float = 600.0
    """An agent that waits holds some hundred megabytes."""
    foreground_grace_s: float = 10.0
    cancel_grace_s: float = 2.0
    exit_grace_s: float = 0.5
    silence_timeout_s: float = 1800.0
    """An agent may run a quiet build for long; half an hour without a byte is no work."""
    sink_timeout_s: float = 30.0
    anonymous_session_ttl_s: float = 3600.0
    keep_runs_s: float = 7 * 86400.0
    keep_runs_count: int = 10_000
    keep_runs_bytes: int = 20 << 30
    keep_raw: KeepRaw = KeepRaw.ALWAYS
    tombstone_s: float = 30 * 86400.0
    max_input_bytes: int = 3_500_000
    output_bytes: int = 1 << 30
    disk_watermark_bytes: int = 64 << 20
    max_processes: int = 0
    """How many processes the agents' user may have, against those that fork without end; 0 leaves the system's own limit.
    It counts all processes of that user, and does not bind root: for root use the pids limit of a container."""
    max_line_bytes: int = 64 << 20
    ring_bytes: int = 256 << 10

    def limits(self) -> dict[str, int]:
        """What a caller may need to know before asking."""
        return {
            "max_concurrent_runs": self.max_concurrent_runs,
            "max_queued_runs": self.max_queued_runs,
            "max_queued_per_session": self.max_queued_per_session,
            "max_input_bytes": self.max_input_bytes,
            "output_bytes": self.output_bytes,
            "max_line_bytes": self.max_line_bytes,
            "silence_timeout_s": int(self.silence_timeout_s),
            "foreground_grace_s": int(self.foreground_grace_s),
            "keep_runs_s": int(self.keep_runs_s),
        }
