"""``iop-node`` that ends itself by SIGKILL at a chosen moment: ``crashing_node.py WINDOW PROGRAM [ARGUMENT ...]``.

The moments lie between two steps that belong together; from outside they are microseconds wide and cannot be hit. So the
step itself is wrapped here, in a real process with a real keeper, wardens and agents. The product knows nothing of it.
A window happens once per data directory: the file ``crashed`` in the working directory says that it did.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

MARK = Path("crashed")

Patch = Callable[[], None]


def die(*_: object) -> None:
    """Leave without a word, and without a chance to clean up."""
    MARK.touch()
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: Any, name: str, is_moment: Callable[..., bool] = lambda *_a, **_k: True) -> None:
    """Die when *owner*.*name* is about to be called."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **named: Any) -> Any:
        if is_moment(*arguments, **named):
            die()
        return original(*arguments, **named)

    setattr(owner, name, wrapper)


def after(owner: Any, name: str, is_moment: Callable[..., bool] = lambda *_a, **_k: True) -> None:
    """Die when the coroutine *owner*.*name* has returned."""
    original = getattr(owner, name)

    async def wrapper(*arguments: Any, **named: Any) -> Any:
        result = await original(*arguments, **named)
        if is_moment(*arguments, **named):
            die()
        return result

    setattr(owner, name, wrapper)


def before_the_row() -> None:
    """The directory is made; the row is not."""
    from runtime import acceptance

    before(acceptance, "_acceptance")


def between_intent_and_spawn() -> None:
    """The row is durable; nobody was asked for a process."""
    from providers.keeper.client import Keeper

    before(Keeper, "spawn")


def between_spawn_and_owner() -> None:
    """The order is with the keeper; who the process is may not be written yet."""
    from providers.keeper.keeper_connection import KeeperConnection

    after(KeeperConnection, "send", lambda _self, frame, *_: frame["kind"] == "spawn")


def between_owner_and_first_byte() -> None:
    """The process is known and has printed nothing."""
    from providers.keeper.client import Keeper

    after(Keeper, "spawn")


def between_terminal_in_file_and_journal() -> None:
    """The agent's last frame was read; nothing of the end is written."""
    from runtime.run import LiveRun

    before(LiveRun, "_end")


def between_ticket_and_terminal() -> None:
    """Slot and session are free; the terminal is not written."""
    from runtime.run import LiveRun

    before(LiveRun, "_store_terminal")


def between_journal_and_wire() -> None:
    """An event is in the journal; no reader was told."""
    from runtime.feed import Feed

    before(Feed, "publish", lambda _self, events: events[-1].sequence > 10)


def between_terminal_in_journal_and_wire() -> None:
    """The terminal is in the journal; no reader was told, and the index does not know."""
    from runtime.feed import Feed

    before(Feed, "publish", lambda _self, events: events[-1].is_terminal)


def between_wire_and_index() -> None:
    """Readers have the terminal; the index does not know."""
    from runtime.execution import Executor

    before(Executor, "_tidy")


def between_cancel_and_signal() -> None:
    """The cancel is durable; nobody was told to stop."""
    from runtime.provider import RunContext

    before(RunContext, "request_stop")


def between_part_and_turn() -> None:
    """A run's part of its process's output is written; nothing was sent. Only once the test has put ``armed`` there."""
    from providers.keeper.client import WardenLink

    before(WardenLink, "send_input", lambda *_a, **_k: Path("armed").exists())


def warden_dies_before_owner() -> None:
    """Not the node: the first warden dies between taking the lock and writing who its child is."""
    from providers.keeper import client, home

    install = home.install
    trap = (
        "def write_owner(*, pid, start_time, marker):\n"
        f"    if not os.path.exists({str(MARK.absolute())!r}):\n"
        f"        open({str(MARK.absolute())!r}, 'w').close()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return _write_owner(pid=pid, start_time=start_time, marker=marker)\n"
    )

    def install_trapped(data_dir: Path) -> Path:
        place = install(data_dir)
        code = (place / "run_directory.py").read_text()
        (place / "run_directory.py").write_text(code.replace("def write_owner(", "def _write_owner(") + "\n\n" + trap)
        return place

    setattr(client, "install", install_trapped)  # noqa: B010  # the name is not exported


def with_frozen_keeper() -> None:
    """Not a crash: the keeper of an earlier build, from the files kept beside the chaos tests."""
    import shutil

    from providers.keeper import client

    frozen = Path(__file__).parents[1] / "chaos" / "frozen_keeper"

    def install_frozen(data_dir: Path) -> Path:
        home = data_dir / "keeper-frozen-protocol-1"
        home.mkdir(mode=0o700, exist_ok=True)
        for path in frozen.glob("*.py"):
            shutil.copy(path, home / path.name)
        return home

    setattr(client, "install", install_frozen)  # noqa: B010  # the name is not exported


WINDOWS: dict[str, Patch] = {
    patch.__name__: patch
    for patch in (
        before_the_row, between_intent_and_spawn, between_spawn_and_owner, between_owner_and_first_byte,
        between_terminal_in_file_and_journal, between_ticket_and_terminal, between_journal_and_wire,
        between_terminal_in_journal_and_wire, between_wire_and_index, between_cancel_and_signal, between_part_and_turn,
        warden_dies_before_owner, with_frozen_keeper,
    )
}  # fmt: skip


def main() -> None:
    window, *sys.argv = sys.argv[1:]
    if not MARK.exists():
        WINDOWS[window]()
    from node.__main__ import main as node_main

    sys.exit(node_main())


if __name__ == "__main__":
    main()
