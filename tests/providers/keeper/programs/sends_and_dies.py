"""A node in small that is killed after it handed over one message, or part of it.

Usage: sends_and_dies.py DATA_DIR RUN_NAME SIZE PART PROGRAM [ARGUMENT ...]

Hands over SIZE bytes of "x" and a line end; with PART "part" it dies before the last piece has left it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

from providers.keeper.client import SpawnRequest, open_keeper
from providers.keeper.inputs import PIECE_BYTES
from providers.keeper.protocol import encode


async def main() -> None:
    data_dir, name, size, part, *argv = sys.argv[1:]
    directory = Path(data_dir) / name
    directory.mkdir(mode=0o700)
    stdout = os.open(directory / "stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o400)
    async with open_keeper(Path(data_dir), generation=1) as keeper:
        link = await keeper.spawn(
            SpawnRequest(
                directory=directory,
                argv=tuple(argv),
                cwd=data_dir,
                env={"PATH": os.environ["PATH"]},
                marker=name,
                stdout_fd=stdout,
                stdin_pipe=True,
            )
        )
        message = b"x" * int(size) + b"\n"
        assert link._sock is not None and link._writer is not None
        if part == "part":
            assert len(message) > PIECE_BYTES
            piece = {"kind": "input", "key": "one", "offset": 0, "data": "eHh4", "last": False}
            link._sock.send(encode(piece))  # the rest never follows
        else:
            link.send_input(message, key="one")
            while link._writer._held:  # until the warden has it, and the child has read next to nothing
                await asyncio.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(main())
