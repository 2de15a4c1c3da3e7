"""The project's command as a shell sees it: output, and exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.nodes import Node

PROGRAM = Path(sys.executable).parent / "iop-node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


async def iop(node: Node, *arguments: str, stdin: bytes = b"", within_s: float = 60) -> Ended:
    """``iop-node`` with *arguments*, told where *node* is."""
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env={**os.environ, "IOP_NODE": node.address},
    )  # fmt: skip
    try:
        async with asyncio.timeout(within_s):
            out, err = await process.communicate(stdin)
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise
    assert process.returncode is not None
    return Ended(code=process.returncode, out=out.decode(errors="replace"), err=err.decode(errors="replace"))
