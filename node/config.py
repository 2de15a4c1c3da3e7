"""``node.yaml`` → validated settings; every mistake names file, key, value and what is wanted.

All of it is optional: a node without a file serves the shipped catalog on loopback. The runtime's own bounds become a
frozen :class:`~runtime.config.RuntimeConfig`; nothing else reads the file.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic_core import ErrorDetails

from providers.catalog.factory import ProfileSettings
from providers.cli.environment import SecretSource, is_secret_name
from providers.cli.mcp import McpServer
from runtime.config import KeepRaw, RuntimeConfig
from runtime.types import PermissionRules

DEFAULT_LISTEN = "127.0.0.1:50400"
UNIX_PREFIX = "unix:"
_DEFAULTS = RuntimeConfig(data_dir=Path())  # a default is written once, where the bound is documented
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Seconds = Annotated[float, Field(gt=0, le=366 * 86_400)]
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Count = Annotated[int, Field(gt=0, le=1_000_000, strict=True)]
Bytes = Annotated[int, Field(gt=0, le=1 << 50, strict=True)]


class ConfigError(Exception):
    """The configuration cannot be used; the text is a whole sentence for the operator."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Secret(_Strict):
    env: str = ""
    file: str = ""

    @model_validator(mode="after")
    def _one_source(self) -> _Secret:
        if bool(self.env) == bool(self.file):
            raise ValueError("give exactly one of env and file")
        return self


class _Permissions(_Strict):
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    patience_s: Seconds = PermissionRules().patience_s


class _Profile(_Strict):
    permissions: _Permissions = _Permissions()
    env: dict[str, str] = {}
    secrets: dict[str, _Secret] = {}
    default_workspace: str = ""
    silence_timeout_s: Seconds | None = None
    max_concurrency: Annotated[int, Field(ge=0, strict=True)] | None = None

    @model_validator(mode="after")
    def _no_secret_values(self) -> _Profile:
        for name in self.env:
            if is_secret_name(name):
                raise ValueError(f"env.{name} looks like a secret; name its source under secrets instead")
        if self.default_workspace and not os.path.isabs(self.default_workspace):
            raise ValueError(f"default_workspace {self.default_workspace!r} is not an absolute path")
        return self


class _McpServer(_Strict):
    """Exactly one of a command and an address; an address has headers, all of them secret, in place of variables."""

    command: (
        Annotated[tuple[Annotated[str, StringConstraints(min_length=1, strict=True)], ...], Field(min_length=1)] | None
    ) = None
    url: str = ""
    env: dict[str, str] = {}
    secrets: dict[str, _Secret] = {}

    @model_validator(mode="after")
    def _is_whole(self) -> _McpServer:
        if (self.command is None) != bool(self.url):
            raise ValueError("give exactly one of command and url")
        if self.url and self.env:
            raise ValueError("an url has no env; its headers are named under secrets")
        if self.url:
            _check_url(self.url)
        for name in self.env:
            if is_secret_name(name):
                raise ValueError(f"env.{name} looks like a secret; name its source under secrets instead")
        return self


class _Limits(_Strict):
    keep_runs_count: Count = _DEFAULTS.keep_runs_count
    keep_runs_bytes: Bytes = _DEFAULTS.keep_runs_bytes
    max_concurrent_runs: Count = _DEFAULTS.max_concurrent_runs
    max_queued_runs: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = _DEFAULTS.max_queued_runs
    max_queued_per_session: Annotated[int, Field(ge=0, le=10_000, strict=True)] = _DEFAULTS.max_queued_per_session
    max_warm_processes: Count = _DEFAULTS.max_warm_processes
    max_input_bytes: Annotated[int, Field(gt=0, le=7_000_000, strict=True)] = _DEFAULTS.max_input_bytes
    output_bytes: Bytes = _DEFAULTS.output_bytes
    disk_watermark_bytes: Bytes = _DEFAULTS.disk_watermark_bytes
    max_processes: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = _DEFAULTS.max_processes
    max_line_bytes: Bytes = _DEFAULTS.max_line_bytes


class _Times(_Strict):
    drain_s: Annotated[float, Field(ge=0, le=86_400)] = 0.0
    queue_timeout_s: Seconds = _DEFAULTS.queue_timeout_s
    warm_idle_s: Seconds = _DEFAULTS.warm_idle_s
    foreground_grace_s: Annotated[float, Field(ge=0, le=86_400)] = _DEFAULTS.foreground_grace_s
    cancel_grace_s: Seconds = _DEFAULTS.cancel_grace_s
    exit_grace_s: Seconds = _DEFAULTS.exit_grace_s
    silence_timeout_s: Seconds = _DEFAULTS.silence_timeout_s
    anonymous_session_ttl_s: Seconds = _DEFAULTS.anonymous_session_ttl_s
    keep_runs_s: Seconds = _DEFAULTS.keep_runs_s
    tombstone_s: Seconds = _DEFAULTS.tombstone_s


class _File(_Strict):
    listen: Annotated[str, StringConstraints(min_length=1)] = DEFAULT_LISTEN
    data_dir: str = ""
    node_id: Annotated[str, StringConstraints(pattern=rf"^{_NODE_ID.pattern}$")] | None = None
    catalog: str = ""
    insecure: bool = False
    keep_raw: KeepRaw = _DEFAULTS.keep_raw
    reflection: bool = True
    limits: _Limits = _Limits()
    times: _Times = _Times()
    profiles: dict[str, _Profile] = {}
    mcp_servers: dict[ServerName, _McpServer] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Everything a node needs to start. ``catalog`` None means the shipped one; ``node_id`` None: the data directory's."""

    listen: str
    runtime: RuntimeConfig
    node_id: str | None = None
    catalog: Path | None = None
    reflection: bool = True
    drain_s: float = 0.0
    """How long a node that was told to stop lets running runs end before it leaves them to the next process."""
    profiles: Mapping[str, ProfileSettings] = field(default_factory=dict)
    mcp_servers: Mapping[str, McpServer] = field(default_factory=dict)


def load_config(path: Path | None = None, *, listen: str = "", data_dir: str = "") -> NodeConfig:
    """The settings of the file at *path* (None: all defaults), with *listen* and *data_dir* from the command line first.

    Raises:
        ConfigError: it cannot be read or used.
    """
    name = "configuration" if path is None else str(path)
    file = _parse(_read(path), name)
    address = listen or file.listen
    _check_listen(address, insecure=file.insecure)
    values = file.limits.model_dump() | file.times.model_dump(exclude={"drain_s"}) | {"keep_raw": file.keep_raw}
    return NodeConfig(
        listen=address,
        runtime=RuntimeConfig(data_dir=Path(data_dir or file.data_dir or _default_data_dir()).absolute(), **values),
        node_id=file.node_id,
        catalog=_beside(path, file.catalog),
        reflection=file.reflection,
        drain_s=file.times.drain_s,
        profiles={key: _settings(profile) for key, profile in file.profiles.items()},
        mcp_servers={name: _server(name, server) for name, server in file.mcp_servers.items()},
    )


def is_loopback(address: str) -> bool:
    """Whether *address* (``host:port`` or ``unix:path``) can be reached from this machine only."""
    if address.startswith(UNIX_PREFIX):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read(path: Path | None) -> Any:
    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return {} if found is None else found


def _parse(data: Any, name: str) -> _File:
    try:
        return _File.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ConfigError(f"{name}: {place}: {_wanted(first)}; found {_shown(first['loc'], first['input'])}") from None


def _wanted(error: ErrorDetails) -> str:
    return "it must be a section" if error["type"] == "model_type" else error["msg"].removeprefix("Value error, ")


def _shown(place: tuple[int | str, ...], value: Any) -> str:
    """What stands there, for a message: of a section the names only, since a value below may be a secret by mistake."""
    if isinstance(value, Mapping):
        return f"a section with {', '.join(map(str, value)) or 'nothing in it'}"[:200]
    if "secrets" in place or "env" in place or not isinstance(value, str | int | float | bool | None):
        return f"a value of type {type(value).__name__}"
    return repr(value)[:200]


def _check_listen(address: str, *, insecure: bool) -> None:
    if address.startswith(UNIX_PREFIX):
        if not address[len(UNIX_PREFIX) :]:
            raise ConfigError(f"listen {address!r} has no path; use unix:/path/to/socket")
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"listen {address!r} is not host:port (such as {DEFAULT_LISTEN}) or unix:PATH")
    if not is_loopback(address) and not insecure:
        raise ConfigError(
            f"listen {address!r} can be reached from other machines, and neither TLS nor authentication is configured; "
            "listen on 127.0.0.1 or a unix socket, or write insecure: true in the configuration to accept that"
        )


def _settings(profile: _Profile) -> ProfileSettings:
    return ProfileSettings(
        env=dict(profile.env),
        secrets=_sources(profile.secrets),
        default_workspace=profile.default_workspace,
        silence_timeout_s=profile.silence_timeout_s,
        max_concurrency=profile.max_concurrency,
        permissions=PermissionRules(**profile.permissions.model_dump()),
    )


def _server(name: str, server: _McpServer) -> McpServer:
    return McpServer(
        name=name,
        command=server.command or (),
        env=dict(server.env),
        url=server.url,
        secrets=_sources(server.secrets),
    )


def _sources(secrets: Mapping[str, _Secret]) -> dict[str, SecretSource]:
    return {name: SecretSource(env=secret.env, file=secret.file) for name, secret in secrets.items()}


def _check_url(url: str) -> None:
    """An address carries secrets, so it is encrypted or stays on this machine, and holds none itself."""
    parts = urlsplit(url)
    is_near = parts.scheme == "http" and is_loopback(f"{parts.hostname or ''}:0")
    if not parts.hostname or not (parts.scheme == "https" or is_near):
        raise ValueError("url must begin with https://, or with http:// and a loopback address")
    if "@" in parts.netloc:
        raise ValueError("url holds a login; name its source under secrets as a header instead")


def _beside(path: Path | None, catalog: str) -> Path | None:
    """A relative catalog path is meant relative to the file that names it."""
    if not catalog:
        return None
    return (path.parent if path is not None else Path()) / catalog


def _default_data_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "iop-node"
