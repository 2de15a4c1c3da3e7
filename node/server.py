"""The gRPC server: where it listens, how its handlers are guarded, when it says that it serves, how it leaves."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from node.agents_service import AgentsService
from node.config import UNIX_PREFIX
from node.health import report_health, set_health
from node.host import Host
from node.node_service import NodeInfoService
from node.pb import node_pb2
from node.profile_health import report_readiness
from node.run_service import RunService
from node.session_service import SessionService
from node.wire_errors import ErrorGuard, deserializer
from runtime.background import Background

SERVICE = node_pb2.DESCRIPTOR.services_by_name["NodeService"]
STOP_GRACE_S = 2.0

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),  # two nodes on one port would share its calls at random
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the wait for the answer; its default of a minute hides a frozen client
    ("grpc.keepalive_permit_without_calls", 1),
    (
        "grpc.http2.min_ping_interval_without_data_ms",
        10_000,
    ),  # a reader of a quiet run pings; the default is five minutes
    ("grpc.max_receive_message_length", 8 << 20),  # over our own input limit, so that the refusal is ours and typed
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.max_concurrent_streams", 10_000),
]


class CannotListen(Exception):
    """The address cannot be listened on; the text says which and why."""


@asynccontextmanager
async def serving(host: Host) -> AsyncIterator[str]:
    """Serve *host* until the block ends, and yield the address in use (the port is known then, also for port 0)."""
    server = grpc.aio.server(options=OPTIONS, interceptors=(ErrorGuard(),))
    servicers = (RunService(host), SessionService(host), NodeInfoService(host), AgentsService(host))
    server.add_generic_rpc_handlers((_handlers(*servicers),))
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    if host.config.reflection:
        reflection.enable_server_reflection((SERVICE.full_name, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    address = _listen(server, host.config.listen)
    services = ("", SERVICE.full_name)
    await set_health(health_servicer, services, is_serving=False)
    await server.start()
    reports = Background()
    reports.start(report_health(host.runs, health_servicer, services), name="health")
    reports.start(report_readiness(host.agents, health_servicer), name="readiness")
    try:
        yield address
    finally:
        await reports.end(within_s=STOP_GRACE_S)
        host.runs.leave()
        await set_health(health_servicer, services, is_serving=False)
        await server.stop(STOP_GRACE_S)


def _listen(server: grpc.aio.Server, listen: str) -> str:
    path = listen[len(UNIX_PREFIX) :] if listen.startswith(UNIX_PREFIX) else None
    if path is not None:
        _remove_stale_socket(path)
    before = os.umask(0o177)  # a unix socket is its owner's alone
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise CannotListen(f"cannot listen on {listen}: it is in use, or not an address of this machine") from error
    finally:
        os.umask(before)
    return listen if path is not None else f"{listen.rpartition(':')[0]}:{port}"


def _remove_stale_socket(path: str) -> None:
    """A node that was killed leaves its socket behind, on which nobody answers; gRPC would take away a living one too."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise CannotListen(f"cannot listen on {UNIX_PREFIX}{path}: it is something else than a socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise CannotListen(f"cannot listen on {UNIX_PREFIX}{path}: {error.strerror or error}") from error
    raise CannotListen(f"cannot listen on {UNIX_PREFIX}{path}: another process does")


def _handlers(*servicers: object) -> grpc.GenericRpcHandler:
    """A handler for every method of the service; two RPCs write bytes that are ready to be sent."""
    methods: Mapping[str, Any] = {m.name: m for m in SERVICE.methods}
    found = {name: getattr(s, name) for s in servicers for name in methods if hasattr(s, name)}
    handlers = {name: _handler(methods[name], found[name]) for name in methods}
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _handler(method: Any, behaviour: Any) -> Any:
    make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
    return make(behaviour, deserializer(GetMessageClass(method.input_type)), _serialize)


def _serialize(response: bytes | Message) -> bytes:
    return response if isinstance(response, bytes) else response.SerializeToString()
