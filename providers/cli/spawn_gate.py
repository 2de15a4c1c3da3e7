"""One start at a time per home: a vendor's CLI may renew its login file when it starts, and two that do so at once lose it.

Only a home that holds such a file is gated; with an API key there is nothing to race for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

GAP_S = 0.5
"""From one start to the next: a renewal is one request and one small write."""


class SpawnGate:
    """Spaces the starts of a node's agents. Used on one loop; those who wait go in the order in which they came."""

    def __init__(self, *, gap_s: float = GAP_S) -> None:
        self._gap_s = gap_s
        self._free_at: dict[Path, float] = {}

    async def pass_through(self, home: str, login_files: Sequence[str]) -> None:
        """Return when a CLI may start that keeps its login in *login_files* of *home*."""
        found = next((path for name in login_files if (path := Path(home) / name).is_file()), None)
        if found is None:
            return
        now = time.monotonic()
        starts_at = max(now, self._free_at.get(found, 0.0))
        self._free_at[found] = starts_at + self._gap_s
        if starts_at > now:
            await asyncio.sleep(starts_at - now)
