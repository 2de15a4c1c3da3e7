"""``python -m tests.real_cli CLI ...`` (``make real-cli``): install the vendors' CLIs, then run their cells.

Exit codes: 0 all cells green, or nothing could be installed because the registry does not answer, which is no fault of
the product and said in one loud line; 1 a cell is red, or an install failed for another reason; 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tests.real_cli.install import PACKAGES, ROOT, InstallFailed, install_all


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_cli")
    parser.add_argument("clis", nargs="*", metavar="CLI", help=f"some of {', '.join(PACKAGES)}; default: all")
    options, pytest_arguments = parser.parse_known_args(arguments)
    clis = options.clis or list(PACKAGES)
    if unknown := sorted(set(clis) - set(PACKAGES)):
        parser.error(f"{unknown[0]!r} is not known; known: {', '.join(PACKAGES)}")
    try:
        missing = install_all(clis)
    except InstallFailed as error:
        print(error, file=sys.stderr)
        return 1
    if missing:
        print(f"REAL-CLI SKIPPED: the registry cannot be reached; not installed and not tried: {', '.join(missing)}")
    return _run([cli for cli in clis if cli not in missing], pytest_arguments)


def _run(clis: Sequence[str], arguments: Sequence[str]) -> int:
    if not clis:
        return 0
    sys.stdout.flush()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/real_cli",
        "--ignore=tests/real_cli/test_machinery.py",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "IOP_REAL_CLIS": " ".join(clis)}, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
