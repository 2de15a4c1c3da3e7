"""What a living child has started, as the node sees it: a look, without a say in who lives."""

from __future__ import annotations

import os

from providers.keeper.process_tree import descendants, read_process

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def started_since(pid: int, boot_s: float) -> list[int]:
    """The living descendants of *pid*, and what its sub-reaper took in, that were started after *boot_s*. Blocks a little.

    Start times are counted in ticks, so what began up to one tick before *boot_s* is among them: for who has to be sure
    that nothing is left, one too many is better than one too few.
    """
    child = read_process(pid)
    if child is None:
        return []
    first = int(boot_s * _TICKS_PER_S)
    return [each.pid for each in descendants(child.parent).values() if each.start_time >= first and each.pid != pid]
