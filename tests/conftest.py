"""The default suite is offline: no test of this process reaches beyond this machine, and none finds a credential.

Property tests try the same examples in every run, however long each takes: a busy machine is no failure. Other examples are
tried with ``make test PYTEST_ARGS=--hypothesis-profile=explore``.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from providers.cli.environment import is_secret_name

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # before grpc is imported, as the node itself does it


settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", settings.get_profile("explore"), derandomize=True)
settings.load_profile("steady")


class NetworkDenied(RuntimeError):
    """A test tried to reach another machine."""


def is_here(host: object) -> bool:
    """Whether *host* means this machine: a loopback address, its name, or none at all."""
    name = host.decode() if isinstance(host, bytes) else host
    if name in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(str(name).partition("%")[0]).is_loopback
    except ValueError:
        return False


def deny_network(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook; it sees every socket of Python's, whoever opens it, and cannot be removed."""
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[-1]
        if isinstance(address, tuple) and not is_here(address[0]):
            raise NetworkDenied(f"{event} to {address[0]}: the default suite runs without a network")
    elif event == "socket.getaddrinfo" and not is_here(arguments[0]):
        raise NetworkDenied(f"looking up {arguments[0]!r}: the default suite runs without a network")


sys.addaudithook(deny_network)


@pytest.fixture(scope="session", autouse=True)
def _no_credentials() -> Iterator[None]:
    """Whatever the developer's shell holds, the suite does not."""
    removed = {name: os.environ.pop(name) for name in tuple(os.environ) if is_secret_name(name)}
    yield
    os.environ.update(removed)
