"""That a machine hides processes is said at start, by a real mount of ``/proc`` where one can be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from providers.keeper import visibility

PROJECT = Path(__file__).parents[3]
PROC = "25 30 0:24 / /proc rw,nosuid - proc proc rw"


@pytest.mark.parametrize(
    ("lines", "hides"),
    [
        ([PROC], ""),
        ([f"{PROC},hidepid=2"], "hidepid=2"),
        ([f"{PROC},gid=9,hidepid=invisible"], "hidepid=invisible"),
        ([f"{PROC},hidepid=0"], ""),
        ([f"{PROC},hidepid=off"], ""),
        ([f"{PROC},hidepid=2", f"{PROC},hidepid=0"], ""),
        ([f"{PROC},hidepid=2".replace("/proc ", "/other ", 1)], ""),
        (["nonsense", ""], ""),
    ],
)
def test_what_hides_processes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[str], hides: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (mounts := tmp_path / "mountinfo").write_text("\n".join(lines))

    found = visibility.note(mounts)

    assert bool(found) is bool(hides)
    assert hides in found


def test_root_sees_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (mounts := tmp_path / "mountinfo").write_text(f"{PROC},hidepid=2")

    assert visibility.note(mounts) == ""


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="/proc is mounted anew: only root can")
def test_a_real_mount_is_seen() -> None:
    ask = "import os; os.geteuid = lambda: 1000\nfrom providers.keeper import visibility\nprint(visibility.note(), end='')"
    mount = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    shown = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", mount, "sh", sys.executable, "-c", ask],
        capture_output=True, text=True, timeout=60, check=False, cwd=PROJECT,
    )  # fmt: skip
    if shown.stderr.startswith(("unshare:", "mount:")):
        pytest.skip(f"root of a container: {shown.stderr.strip()}")

    assert "/proc is mounted with hidepid=" in shown.stdout
