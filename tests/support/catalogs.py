"""Catalogs made for a test, and the scripts they name as CLIs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from providers.catalog.loader import parse_catalog
from providers.catalog.schema import CatalogFile

Content = dict[str, Any]

BASE: Content = {
    "version": 1,
    "providers": [{"id": "alpha", "command": ["alpha-cli"], "dialect": "plain_text"}],
    "models": [{"id": "alpha-one", "provider": "alpha", "target": "one"}],
    "profiles": [{"id": "alpha-main", "provider": "alpha", "model": "alpha-one"}],
}
"""The smallest catalog; copy it with :func:`content`."""

PROBED: Content = {
    "version": {"args": ["--version"], "timeout_s": 30},
    "auth": {"args": ["auth"], "ready": "^Logged in", "unauthenticated": "^Not logged in", "timeout_s": 30},
}
"""The probes of a provider whose script is a :func:`cli`."""


def content(*, provider: Mapping[str, Any] | None = None, profile: Mapping[str, Any] | None = None) -> Content:
    """:data:`BASE` with more in its provider and its profile."""
    made = copy.deepcopy(BASE)
    made["providers"][0].update(provider or {})
    made["profiles"][0].update(profile or {})
    return made


class _Plain(yaml.SafeDumper):
    """Writes a value out each time it occurs: a catalog has no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def text(made: Mapping[str, Any]) -> bytes:
    """The file."""
    return yaml.dump(dict(made), Dumper=_Plain, sort_keys=False).encode()


def loaded(made: Mapping[str, Any]) -> CatalogFile:
    """The catalog in *made*."""
    return parse_catalog(text(made), name="test.yaml")


def many(**providers: Mapping[str, Any]) -> Content:
    """A catalog with a provider, a model and a profile of each name."""
    return {
        "version": 1,
        "providers": [
            {"id": name, "command": [f"{name}-cli"], "dialect": "plain_text", **PROBED, **more}
            for name, more in providers.items()
        ],
        "models": [{"id": name, "provider": name, "target": "one"} for name in providers],
        "profiles": [{"id": name, "provider": name, "model": name} for name in providers],
    }


def script(folder: Path, name: str, body: str) -> Path:
    """An executable shell script in *folder*."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def cli(
    folder: Path,
    name: str,
    *,
    version: str = "echo 1.4.2",
    auth: str = "echo Logged in",
    models: str = "echo one",
    status: str = "exit 3",
) -> Path:
    """A scripted CLI: each argument is a shell command of its own; every call is noted in ``NAME.calls``."""
    log = folder / f"{name}.calls"
    return script(
        folder,
        name,
        f'echo "$1" >> {log}\ncase "$1" in\n--version) {version} ;;\nauth) {auth} ;;\nmodels) {models} ;;\n'
        f"status) {status} ;;\nesac",
    )


def calls(folder: Path, name: str) -> list[str]:
    """What a scripted CLI was asked, sorted."""
    path = folder / f"{name}.calls"
    return sorted(path.read_text().split()) if path.exists() else []
