"""A real node as a process of its own, with agents from a catalog made for the test, and proof that nothing of it stays.

Everything a node starts is found again by two marks that it cannot lose: the keeper and its wardens carry the data
directory in their command line, an agent and its children carry their run's key as ``IOP_RUN`` in their environment.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from providers.keeper.client import clear_append_only

AGENTS = Path(__file__).parent / "agents"
DEMO = ("iop-demo-agent",)
_SYSTEM_PYTHON = "/usr/bin/python3"
SHELL = ("/bin/sh", "-s")
"""An agent whose prompt is the script it executes."""

START_S = 60.0
STOP_S = 30.0
GONE_S = 30.0
"""Bounds of waits, for a machine that is slow and busy; none of them takes as long where all is well."""

_SCRIPTS = Path(sys.executable).parent
_PYTHONPATH = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
"""Who tests a copy of the tree means the node of that copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One profile with a provider of its own, as a catalog writes it."""

    command: Sequence[str]
    dialect: str = "claude_stream_json"
    args: Sequence[str] = ()
    resume_args: Sequence[str] = ()
    fork_args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cancel: Sequence[str] = ("term",)
    policy: Sequence[str] = ()
    max_concurrency: int = 0
    mode: str = "oneshot"
    verbs: Sequence[str] = ()
    opening: Mapping[str, str] = field(default_factory=dict)
    mcp: str = ""


def fake(name: str, **more: Any) -> Agent:
    """A script of ``tests/support/agents`` as an agent."""
    path = AGENTS / name
    interpreter = [sys.executable, "-I", "-S"] if path.suffix == ".py" else ["/bin/sh"]
    return Agent(command=[*interpreter, str(path)], **more)


def shell(**more: Any) -> Agent:
    """The prompt is a shell script, its output the answer."""
    return Agent(command=SHELL, dialect="plain_text", **more)


def fork_bomb() -> Agent | None:
    """An agent that forks without end as a user without privileges; None where it cannot be one.

    A limit of processes does not bind root, and of any other user it counts all: hence a user that runs nothing else.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("setpriv", _SYSTEM_PYTHON))):
        return None
    forks = "import os,time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.05)"
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return Agent(command=[*nobody, _SYSTEM_PYTHON, "-I", "-S", "-c", forks])


def catalog_of(agents: Mapping[str, Agent]) -> dict[str, Any]:
    """The content of a catalog file in which each agent is a profile of the same name."""
    return {
        "version": 1,
        "providers": [
            {
                "id": name, "command": list(agent.command), "dialect": agent.dialect, "env": dict(agent.env),
                "policy": list(agent.policy), **({"mcp": agent.mcp} if agent.mcp else {}),
                "capabilities": ["fork"] if agent.fork_args else [],
            }
            for name, agent in agents.items()
        ],
        "models": [{"id": name, "provider": name, "target": "test-model"} for name in agents],
        "profiles": [
            {
                "id": name, "provider": name, "model": name, "args": list(agent.args),
                "resume_args": list(agent.resume_args), "max_concurrency": agent.max_concurrency,
                "capabilities": ["fork"] if agent.fork_args else [], "fork_args": list(agent.fork_args),
                "mode": agent.mode, "verbs": list(agent.verbs), "cancel": list(agent.cancel),
                **({"opening": dict(agent.opening)} if agent.opening else {}),
            }
            for name, agent in agents.items()
        ],
    }  # fmt: skip


class Node:
    """One node of one directory; it may be started again after it ended. Not running when made."""

    def __init__(
        self,
        root: Path,
        *,
        agents: Mapping[str, Agent] | None = None,
        listen: str = "127.0.0.1:0",
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """*settings* are the members of ``node.yaml``; without *agents* the shipped catalog serves."""
        self.root, self.data_dir, self.log = root, root / "data", root / "node.log"
        self.home = root / "home"
        self.home.mkdir(parents=True, exist_ok=True)
        self._listen, self._prefix = listen, prefix
        self._env = {
            "PATH": f"{_SCRIPTS}:{os.environ['PATH']}", "HOME": str(self.home), "LANG": "C.UTF-8", **_PYTHONPATH,
            **(env or {}),
        }  # fmt: skip
        if agents is not None:
            (root / "catalog.yaml").write_text(yaml.safe_dump(catalog_of(agents)))
            settings["catalog"] = "catalog.yaml"
        (root / "node.yaml").write_text(yaml.safe_dump(settings))
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.node_id = ""

    # -- the process --------------------------------------------------------------------------------------------------

    def launch(self, *arguments: str) -> subprocess.Popen[bytes]:
        """``iop-node serve`` with this node's files and *arguments*; its log goes to ``self.log``, unread."""
        command = [*self._prefix, str(_SCRIPTS / "iop-node"), "serve", "--config", str(self.root / "node.yaml")]
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [*command, "--listen", self._listen, "--data-dir", str(self.data_dir), *arguments],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=self._env, cwd=self.root,
            )  # fmt: skip

    def start(self) -> Node:
        """Return when the node says that it serves: what earlier runs left is taken up by then."""
        assert self._process is None, "the node runs already"
        self._process = self.launch()
        try:
            line = self._first_line()
            assert line.startswith("iop-node ") and " listening on " in line, f"{line!r}\n{self.logged()}"
            self.node_id, self.address = line.split()[1], line.split()[-1]
            self._wait_serving()
        except BaseException:
            self.kill()
            raise
        return self

    def _first_line(self) -> str:
        assert self._process is not None and self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        return self._process.stdout.readline().decode().strip() if ready else "(silence)"

    def _wait_serving(self) -> None:
        with grpc.insecure_channel(self.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answers = stub.Watch(health_pb2.HealthCheckRequest(), timeout=START_S, wait_for_ready=True)
            for answer in answers:
                if answer.status == health_pb2.HealthCheckResponse.SERVING:
                    answers.cancel()
                    return
        raise AssertionError(f"the node does not serve\n{self.logged()}")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"the node did not end within {STOP_S:g} s of {number.name}\n{self.logged()}"
            ) from None
        finally:
            if process.stdout is not None:
                process.stdout.close()

    # -- what it left -------------------------------------------------------------------------------------------------

    def logged(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def run_directories(self) -> list[Path]:
        """The directories of all runs, oldest first."""
        return sorted((self.data_dir / "runs").iterdir()) if (self.data_dir / "runs").is_dir() else []

    def warm_directories(self) -> list[Path]:
        """The directories of the processes of sessions, oldest first."""
        root = self.data_dir / "processes"
        return sorted(root.iterdir()) if root.is_dir() else []

    def agent_processes(self) -> dict[int, str]:
        """Living processes that carry the mark of one of this node's runs or sessions, with their command lines."""
        marks = {b"IOP_RUN=" + os.fsencode(path.name) for path in [*self.run_directories(), *self.warm_directories()]}
        return {pid: command for pid, command, env in _processes() if not marks.isdisjoint(env.split(b"\0"))}

    def started_processes(self, home: Path | None = None) -> dict[int, str]:
        """All that agents of this node with *home* (its own) are or have started, also when no directory names them."""
        mark = b"HOME=" + os.fsencode(home or self.home)
        living = ((pid, command, env.split(b"\0")) for pid, command, env in _processes())
        return {
            pid: command
            for pid, command, env in living
            if mark in env and any(each.startswith(b"IOP_RUN=") for each in env)
        }

    def own_processes(self) -> dict[int, str]:
        """The keeper and the wardens of this node's data directory."""
        mark = f"{self.data_dir}/keeper-"
        return {pid: command for pid, command, _ in _processes() if mark in command}

    def assert_no_agents(self, within_s: float = GONE_S) -> None:
        """No process of any run is left; a run's last processes may end shortly after its terminal."""
        wait_until(lambda: not self.agent_processes(), within_s, lambda: f"agents left: {self.agent_processes()}")

    def close(self) -> None:
        """End everything of this node, the keeper included, and make its directory removable."""
        try:
            self.kill()
        finally:
            for pid in [*self.own_processes(), *self.agent_processes()]:
                kill(pid)
            wait_until(lambda: not self.own_processes() and not self.agent_processes(), GONE_S)
            for directory in [*self.run_directories(), *self.warm_directories()]:
                clear_append_only(directory / "stdout")


@contextmanager
def running(root: Path, **options: Any) -> Iterator[Node]:
    """A started :class:`Node`; on leaving, its runs are expected to have ended, and nothing of it remains."""
    node = Node(root, **options)
    try:
        yield node.start()
        node.assert_no_agents()
        assert node.stop() == 0, node.logged()
    finally:
        node.close()


def files_holding(directory: Path, *words: str) -> list[Path]:
    """The files below *directory* in which one of *words* stands; a node may make and remove files meanwhile."""
    found = []
    for path in directory.rglob("*"):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        if any(word.encode() in data for word in words):
            found.append(path)
    return found


def wait_until(
    is_so: Callable[[], object], within_s: float = GONE_S, problem: Callable[[], str] = lambda: "it did not come about"
) -> None:
    """Return when *is_so* holds; looked at every 20 ms."""
    ends_at = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < ends_at, problem()
        time.sleep(0.02)


def _processes() -> Iterator[tuple[int, str, bytes]]:
    """(pid, command line, environment) of every process whose both can be read; zombies have neither."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            command, env = Path(f"/proc/{name}/cmdline").read_bytes(), Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        if command:
            yield int(name), command.replace(b"\0", b" ").decode(errors="replace").strip(), env


def end_keepers(data_dir: Path) -> None:
    """Kill the keepers and wardens of *data_dir*, some of which may be leaving by themselves."""
    mark = f"{data_dir}/keeper-"
    for pid in [pid for pid, command, _ in _processes() if mark in command]:
        kill(pid)


def kill(pid: int) -> None:
    """SIGKILL, to a process that may have ended since it was found."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
