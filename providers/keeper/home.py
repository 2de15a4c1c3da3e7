"""Where a keeper lives: ``<data>/keeper-<hash>/``, with a copy of its code, its lock, its socket and its log.

The hash is taken over the code, so another build of the node never finds this build's keeper and starts its own beside it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from providers.keeper.keeper import SOCKET

CODE_FILES = (
    "ending.py",
    "keeper.py",
    "kernel.py",
    "launch.py",
    "node_links.py",
    "output_bound.py",
    "process_tree.py",
    "protocol.py",
    "run_directory.py",
    "spares.py",
    "stderr_file.py",
    "stdin_pipe.py",
    "warden.py",
)
"""Everything a keeper runs; a test starts one from exactly these."""

HOME_PREFIX = "keeper-"
LOG = "log"

_HASH_DIGITS = 16


def install(data_dir: Path) -> Path:
    """Copy the code below *data_dir* unless it is there, and return the keeper's home. Blocks for some small files."""
    source = Path(__file__).parent
    code = {name: (source / name).read_bytes() for name in CODE_FILES}
    home = data_dir / f"{HOME_PREFIX}{_digest(code)}"
    home.mkdir(mode=0o700, exist_ok=True)
    for name, text in code.items():
        _put(home / name, text)
    return home


def other_homes(home: Path) -> list[Path]:
    """The homes of keepers of other builds in the same data directory."""
    return [path for path in home.parent.glob(f"{HOME_PREFIX}*") if path != home and (path / SOCKET).is_socket()]


def _digest(code: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, text in sorted(code.items()):
        digest.update(b"%s %d\n" % (name.encode(), len(text)))
        digest.update(text)
    return digest.hexdigest()[:_HASH_DIGITS]


def _put(path: Path, text: bytes) -> None:
    """Write *path* whole or not at all; a node killed in the middle must not leave half a module under the right hash."""
    try:
        if path.read_bytes() == text:
            return
    except FileNotFoundError:
        pass
    temporary = path.with_suffix(".new")
    temporary.write_bytes(text)
    os.replace(temporary, path)
