"""A network namespace from which nothing leaves, with the scripted model in it: who tries to leave is written down.

``python -m tests.real_cli.closed RESOLV_CONF FILE`` is its first process. The one way out is a tunnel whose other end it
reads itself: it keeps a line for every packet, the address it was meant for, and the name that was asked for where the
packet asks for one. Needs Linux and root.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.real_cli.install import ROOT
from tests.support.mockllm.server import serving

_TUNNEL, _SET_NAME, _LAYER_3_BARE = "/dev/net/tun", 0x400454CA, 0x1001
_SETUP = (
    "ip link set lo up",
    "ip addr add 10.255.255.2/24 dev out",
    "ip link set out up",
    "ip route add default dev out",
)
_UDP, _NAMES = 17, 53


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """The namespace of process *pid*; the model in it listens at *url*."""

    pid: int
    url: str
    record: Path

    @property
    def prefix(self) -> tuple[str, ...]:
        """Before a command that is to run in it."""
        return ("nsenter", "-t", str(self.pid), "--net", "--mount", "--")

    def attempts(self) -> list[str]:
        """Whom somebody in it tried to reach, a line a packet."""
        return self.record.read_text().split("\n")[:-1]


@contextmanager
def closed_network(folder: Path) -> Iterator[Closed]:
    """The namespace, until the block ends.

    Raises:
        OSError: it cannot be made on this machine, or by this user.
    """
    resolver, record = folder / "resolv.conf", folder / "attempts"
    resolver.write_text("nameserver 10.255.255.1\noptions timeout:1 attempts:1\n")
    record.touch()
    inside = [sys.executable, "-m", "tests.real_cli.closed", str(resolver), str(record)]
    process = subprocess.Popen(
        ["unshare", "--net", "--mount", *inside],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stdout.readline() if select.select([process.stdout], [], [], 20)[0] else ""
        if not line:
            process.kill()
            raise OSError(f"no closed network here: {process.stderr.read().strip()[-300:]}")
        yield Closed(pid=process.pid, url=line.strip(), record=record)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)
        process.stdout.close()
        process.stderr.close()


def knock(network: Closed) -> None:
    """One packet from within to an address that nobody has: proof that it would be seen."""
    send = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))"
    subprocess.run([*network.prefix, sys.executable, "-c", send], check=True)


def destination(packet: bytes) -> str:
    """Whom an IPv4 packet is meant for, with the name that it asks for; empty for what the kernel says on its own."""
    if packet[0] >> 4 != 4:
        return ""
    address, body = socket.inet_ntoa(packet[16:20]), packet[(packet[0] & 15) * 4 :]
    port = int.from_bytes(body[2:4])
    asked = f" {_asked_name(body[20:])}" if packet[9] == _UDP and port == _NAMES else ""
    return f"{address}:{port}{asked}"


def _asked_name(question: bytes) -> str:
    labels = []
    while question and (size := question[0]):
        labels.append(question[1 : size + 1].decode("ascii", "replace"))
        question = question[size + 1 :]
    return ".".join(labels)


def _only_way_out(resolver: str) -> int:
    """The descriptor that reads whatever this namespace sends elsewhere."""
    tunnel = os.open(_TUNNEL, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(tunnel, _SET_NAME, struct.pack("16sH", b"out", _LAYER_3_BARE))
    for command in (*_SETUP, f"mount --bind {resolver} /etc/resolv.conf"):
        subprocess.run(command.split(), check=True)
    return tunnel


async def _main(resolver: str, record: Path) -> None:
    tunnel = _only_way_out(resolver)

    def note() -> None:
        if found := destination(os.read(tunnel, 65_536)):
            with record.open("a") as file:
                file.write(f"{found}\n")

    asyncio.get_running_loop().add_reader(tunnel, note)
    async with serving() as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], Path(sys.argv[2])))
