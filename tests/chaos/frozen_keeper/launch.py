"""Starting the one child: fork, wait at a barrier until its owner record is on disk, then become the asked program.

The warden has a single thread, so code may run between fork and exec. What goes wrong there comes back over a pipe that a
successful exec closes, with the stage that failed: a missing working directory and a missing program give the same errno.
"""

from __future__ import annotations

import os
import resource
import signal
from typing import NamedTuple

from providers.keeper import kernel
from providers.keeper.protocol import SpawnOrder

MARKER_VARIABLE = "IOP_RUN"

SETUP = "setup"
LIMITS = "limits"
CWD = "cwd"
EXEC = "exec"

_NOTED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)

_GO = b"g"


class Stdio(NamedTuple):
    """The descriptors that become 0, 1 and 2 of the child."""

    stdin: int
    stdout: int
    stderr: int


class LaunchError(NamedTuple):
    """Why the child did not become the program."""

    stage: str
    errno: int
    message: str


class Launch(NamedTuple):
    """A forked child that waits for :meth:`go`."""

    pid: int
    barrier: int
    errors: int

    def go(self) -> LaunchError | None:
        """Let the child become the program; None once it has. The caller reaps it in either case."""
        try:
            os.write(self.barrier, _GO)
        except BrokenPipeError:
            pass  # it failed before the barrier; the report says why
        os.close(self.barrier)
        with open(self.errors, "rb") as pipe:
            report = pipe.read()
        if not report:
            return None
        stage, number, message = report.decode("utf-8", "replace").split(" ", 2)
        return LaunchError(stage, int(number), message)

    def abandon(self) -> None:
        """Let the child end without having become anything."""
        os.close(self.barrier)
        os.close(self.errors)


def arrange_signals() -> None:
    """Once in the keeper, for the wardens too: what wakes a poll, and nothing that was inherited (a ``nohup``, a mask).

    An exec resets handlers but not ignored signals: so these are noted by a handler that does nothing, and whoever polls
    finds the number in its wake-up descriptor. Done here because every page a warden touches is a page it pays for.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, *_IGNORED_BY_PYTHON}:
        signal.signal(number, _note if number in _NOTED else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _note(number: int, frame: object) -> None:
    pass


def fork_child(order: SpawnOrder, stdio: Stdio) -> Launch:
    """Fork; the child prepares itself and waits.

    Raises:
        OSError: no process could be made.
    """
    barrier, barrier_end = os.pipe()
    errors, errors_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_child(order, stdio, barrier, errors_end)
    os.close(barrier)
    os.close(errors_end)
    return Launch(pid, barrier_end, errors)


def _be_child(order: SpawnOrder, stdio: Stdio, barrier: int, errors: int) -> None:
    """Never returns."""
    stage = SETUP
    try:
        _prepare(stdio, barrier, errors)
        stage = LIMITS
        _limit(order)
        if os.read(barrier, 1) != _GO:
            os._exit(0)
        stage = CWD
        os.chdir(order.cwd)
        stage = EXEC
        os.execve(order.argv[0], order.argv, {**order.env, MARKER_VARIABLE: order.marker})
    except OSError as error:
        _report(errors, stage, error.errno or 0, error.strerror or str(error))
    except BaseException as error:  # a NUL in an argument, for one; the parent must hear of everything
        _report(errors, stage, 0, f"{type(error).__name__}: {error}")
    finally:
        os._exit(127)


def _report(errors: int, stage: str, number: int, message: str) -> None:
    os.write(errors, f"{stage} {number} {message}"[:2000].encode("utf-8", "replace"))


def _prepare(stdio: Stdio, barrier: int, errors: int) -> None:
    os.setsid()
    for target, source in enumerate(stdio):
        os.dup2(source, target, inheritable=True)
    # the descriptor of the warden's lock above all: a lock lives as long as any copy of its descriptor
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in (barrier, errors):
            _close(int(name))
    signal.set_wakeup_fd(-1)
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        pass  # the one that listed the directory


def _limit(order: SpawnOrder) -> None:
    kernel.forbid_core_dumps()
    kernel.set_oom_score(kernel.CHILD_OOM_SCORE)
    if not kernel.autogroup_is_on():
        os.nice(kernel.CHILD_NICE)
    if order.process_limit is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (order.process_limit, order.process_limit))
