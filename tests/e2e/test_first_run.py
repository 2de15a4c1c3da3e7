"""What `make run` does: the first thing that a newcomer sees."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.source import ROOT


@pytest.mark.req("PKG-01", "PKG-08", "PKG-10")
def test_the_first_run_shows_a_streamed_run_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "HOME": str(tmp_path),
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    }  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        [ROOT / "examples" / "first_run.sh"], env=environment, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines[1].startswith("turn 1: Hello! You said “say hi, and list what is here”")
    assert lines[2] == "$ iop-node ps --all"
    assert re.match(r"run-[0-9a-f]{32} +complete +demo-agent ", lines[4])
    assert lines[-1].startswith("first run: a node served at 127.0.0.1:")
    assert time.monotonic() - began < 100, "a quiet machine takes three seconds"
    assert list(tmp_path.glob("iop-first-run.*")) == []
