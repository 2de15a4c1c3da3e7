"""A node in small: opens the keeper, spawns one run, says what it knows as a JSON line, and keeps the link until stdin ends.

Usage: node.py DATA_DIR RUN_NAME GENERATION PROGRAM [ARGUMENT ...]
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from providers.keeper.client import SpawnRequest, open_keeper


async def main() -> None:
    data_dir, name, generation, *argv = sys.argv[1:]
    directory = Path(data_dir) / name
    directory.mkdir(mode=0o700)
    stdin = os.open(os.devnull, os.O_RDONLY)
    stdout = os.open(directory / "stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o400)
    async with open_keeper(Path(data_dir), generation=int(generation)) as keeper:
        request = SpawnRequest(
            directory=directory,
            argv=tuple(argv),
            cwd=data_dir,
            env={"PATH": os.environ["PATH"]},
            marker=name,
            stdin_fd=stdin,
            stdout_fd=stdout,
        )
        link = await keeper.spawn(request)
        print(json.dumps({"keeper": keeper.pid, "is_protected": link.is_protected}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        gone = await link.wait_gone(10)
        print(json.dumps({"gone": gone, "code": link.exit.code if link.exit else None}), flush=True)


asyncio.run(main())
