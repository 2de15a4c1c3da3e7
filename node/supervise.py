"""``iop-node supervise``: the entry point of a container. It starts a node, starts it again when it dies, and reaps.

As process 1 of a container somebody has to collect what nobody else is the parent of: keeper and wardens outlive their
node by design. This process does only that; it holds no run and no gRPC. A node that ends because it was told to ends the
supervisor too, with the node's exit code.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

PR_SET_CHILD_SUBREAPER = 36
FIRST_PAUSE_S = 0.5
PAUSE_LIMIT_S = 30.0
STABLE_S = 60.0  # a node that ran this long starts again without a pause

EXIT_USAGE = 2
"""A node that exits so was started wrongly; starting it again cannot help."""


def main(argv: Sequence[str]) -> int:
    """Supervise ``iop-node serve`` with *argv* until it is told to stop; the last node's exit code."""
    if argv[:1] in (["-h"], ["--help"]):
        print("usage: iop-node supervise [the arguments of serve]\n\nStart a node, and start it again when it dies.")
        return 0
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # outside of a container, reap as if inside of one
    return Supervisor(list(argv)).run()


class Supervisor:
    """One node at a time. Signals that mean something to the node are passed on to it."""

    def __init__(self, arguments: list[str]) -> None:
        self._arguments = arguments
        self._node: subprocess.Popen[bytes] | None = None
        self._is_stopping = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._pass_on)
        pause_s = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            code = self._run_node()
            if self._is_stopping or code == EXIT_USAGE:
                return code
            pause_s = FIRST_PAUSE_S if time.monotonic() - began > STABLE_S else min(pause_s * 2, PAUSE_LIMIT_S)
            print(f"iop-node: the node ended ({code}); starting it again in {pause_s:g} s", file=sys.stderr, flush=True)
            if not self._reap_for(pause_s):
                return 0

    def _run_node(self) -> int:
        command = [sys.executable, "-m", "node", "serve", "--as-pid-1", *self._arguments]
        self._node = subprocess.Popen(command)
        if self._is_stopping:  # told to stop while there was nobody to pass it on to
            self._node.terminate()
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._node.pid:
                code = os.waitstatus_to_exitcode(status)
                self._node.returncode = code  # reaped here: Popen must not look for it again
                self._node = None
                return code

    def _reap_for(self, pause_s: float) -> bool:
        """Wait, collecting whoever ends meanwhile; False when a signal to stop ended the wait."""
        ends_at = time.monotonic() + pause_s
        while time.monotonic() < ends_at and not self._is_stopping:
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                pass
            signal.sigtimedwait([signal.SIGCHLD], 0.1)
        return not self._is_stopping

    def _pass_on(self, number: int, _frame: object) -> None:
        if number != signal.SIGHUP:
            self._is_stopping = True
        if self._node is not None:
            self._node.send_signal(number)
