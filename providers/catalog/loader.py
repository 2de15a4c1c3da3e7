"""Reads the catalog file: one YAML document, safely, every mistake named with its place."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeVar

import yaml
from pydantic import ValidationError

from providers.catalog.schema import CatalogFile
from runtime.failure import FailureCode, FailureError

FILE_NAME = "iop-agent.providers.yaml"
LIMIT_BYTES = 1 << 20


class CatalogInvalid(FailureError):
    """The catalog file cannot be used; the message names file, place, value and what is wanted."""

    code = FailureCode.INVALID_REQUEST


class _Named(Protocol):
    @property
    def id(self) -> str: ...


N = TypeVar("N", bound=_Named)


class _Loader(yaml.SafeLoader):
    """Safe, and strict where YAML is lax: a repeated key is an error, an alias is refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML's stubs leave it out
            raise yaml.composer.ComposerError(None, None, "aliases are not allowed", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is repeated", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_shipped() -> CatalogFile:
    """The catalog that ships with the package."""
    return parse_catalog(files("providers.catalog").joinpath(FILE_NAME).read_bytes(), name=FILE_NAME)


def load_catalog(path: Path) -> CatalogFile:
    """The catalog at *path*.

    Raises:
        CatalogInvalid: it cannot be read, or is not a catalog.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CatalogInvalid(f"catalog {path} cannot be read: {error.strerror}") from error
    return parse_catalog(data, name=str(path))


def parse_catalog(data: bytes, *, name: str) -> CatalogFile:
    """The catalog in *data*, checked as a whole and brought into ID order."""
    if len(data) > LIMIT_BYTES:
        raise CatalogInvalid(f"{name} has {len(data)} bytes; a catalog has at most {LIMIT_BYTES}")
    try:
        documents = list(yaml.load_all(data.decode("utf-8-sig"), Loader=_Loader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CatalogInvalid(f"{name}: {' '.join(str(error).split())}") from error
    if len(documents) != 1:
        raise CatalogInvalid(f"{name} holds {len(documents)} YAML documents; a catalog is exactly one")
    try:
        catalog = CatalogFile.model_validate(documents[0])
    except ValidationError as error:
        raise CatalogInvalid(f"{name}: {_first(error)}") from error
    _check(catalog, name)
    return CatalogFile(
        version=catalog.version,
        providers=_ordered(catalog.providers),
        models=_ordered(catalog.models),
        profiles=_ordered(catalog.profiles),
    )


def _ordered(items: Iterable[N]) -> tuple[N, ...]:
    return tuple(sorted(items, key=lambda item: item.id))


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "file"
    return f"{place}: {first['msg']} (found {first['input']!r})"[:500]


def _check(catalog: CatalogFile, name: str) -> None:
    """References, and ids that are unique in their array."""
    for kind in ("providers", "models", "profiles"):
        ids = [item.id for item in getattr(catalog, kind)]
        if repeated := sorted({i for i in ids if ids.count(i) > 1}):
            raise CatalogInvalid(f"{name}: {kind} repeat the id {repeated[0]!r}")
    providers = {p.id for p in catalog.providers}
    owners = {m.id: m.provider for m in catalog.models}
    for model in catalog.models:
        if model.provider not in providers:
            raise CatalogInvalid(f"{name}: model {model.id!r} names provider {model.provider!r}, which is not declared")
    for profile in catalog.profiles:
        if profile.provider not in providers:
            raise CatalogInvalid(
                f"{name}: profile {profile.id!r} names provider {profile.provider!r}, which is not declared"
            )
        if profile.model not in owners:
            raise CatalogInvalid(f"{name}: profile {profile.id!r} names model {profile.model!r}, which is not declared")
        if owners[profile.model] != profile.provider:
            raise CatalogInvalid(
                f"{name}: profile {profile.id!r} uses model {profile.model!r} of provider {owners[profile.model]!r}"
            )
