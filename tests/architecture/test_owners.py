"""One home per component: what runtime and providers own is neither copied nor re-made in the node or in a command."""

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.source import ROOT, definitions, imports, modules, parse, shown

BRIDGES = {"runtime_bridge.py", "bridge_tasks.py", "bridge_workers.py"}

RUN_VALUES = {
    "runtime.events": {"Draft", "RuntimeEvent"},
    "runtime.types": {"ExecutionSpec", "RunRequest"},
}
"""What only a bridge may hold together with a generated message."""

OWNERS = {
    "provider lifecycle": ("runtime/provider.py", "Provider"),
    "execution request": ("runtime/types.py", "ExecutionSpec"),
    "stream events": ("runtime/events.py", "RuntimeEvent"),
    "emitter": ("runtime/emitter.py", "Emitter"),
    "logical sessions": ("runtime/sessions.py", "Sessions"),
    "cancel": ("runtime/provider.py", "RunContext"),
    "typed failure": ("runtime/failure.py", "Failure"),
    "registry lifecycle": ("runtime/registry.py", "Registry"),
    "agent configuration": ("runtime/config.py", "RuntimeConfig"),
    "CLI provider": ("providers/cli/provider.py", "CliProvider"),
    "usage and quota": ("runtime/status.py", "AgentUsageStatus"),
    "catalog": ("providers/catalog/schema.py", "CatalogFile"),
    "readiness": ("providers/catalog/readiness.py", "Readiness"),
    "profile factory": ("providers/catalog/factory.py", "ProfileSettings"),
}
"""Component, its home, and the one name by which it is known."""

FUNCTIONS = {"encode_failure", "decode_failure", "failure_from_exception", "terminal_of_stop", "request_digest"}
"""Functions whose name says the component. Others (``load``, ``start``) may rightly occur in several modules."""

MACHINERY = ("emitter", "sessions", "journal", "feed", "registry", "capacity", "runs", "recovery", "index")
"""Modules of runtime that act; a subclass of theirs elsewhere is a copy."""


def homes() -> list[Path]:
    """The modules that own a component, where they exist: that they do has its own test."""
    return [path for path in sorted({ROOT / home for home, _ in OWNERS.values()}) if path.exists()]


def owned_names() -> dict[str, Path]:
    """Public class names of the homes, and the functions that stand for one, with their home."""
    return {
        name: home
        for home in homes()
        for name, node in definitions(parse(home)).items()
        if isinstance(node, ast.ClassDef) or name in FUNCTIONS
    }


def second_definitions(paths: Iterable[Path]) -> list[str]:
    owned = owned_names()
    return [
        f"{shown(path)} defines {name}, which {shown(owned[name])} owns"
        for path in paths
        for name in definitions(parse(path))
        if name in owned and owned[name] != path
    ]


def bases(node: ast.ClassDef) -> set[str]:
    """The last names of the base classes: ``Emitter`` for ``Emitter``, ``emitter.Emitter`` and ``Emitter[T]``."""
    names = [base.value if isinstance(base, ast.Subscript) else base for base in node.bases]
    return {ast.unparse(name).rpartition(".")[2] for name in names}


def machinery_classes() -> set[str]:
    present = [path for name in MACHINERY if (path := ROOT / "runtime" / f"{name}.py").exists()]
    found = [(name, node) for path in present for name, node in definitions(parse(path)).items()]
    return {name for name, node in found if isinstance(node, ast.ClassDef) and not bases(node) & {"Protocol"}}


def messages_built(tree: ast.Module) -> Iterator[int]:
    """Lines at which a generated message is constructed."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=str() as module)), lineno=line) if module.endswith(
                "_pb2"
            ):
                yield line
            case _:
                pass


@pytest.mark.req("RT-02")
@pytest.mark.parametrize(("home", "name"), OWNERS.values(), ids=OWNERS)
def test_every_component_has_its_home(home: str, name: str) -> None:
    assert name in definitions(parse(ROOT / home))


@pytest.mark.req("RT-02", "BAN-02", "BAN-03")
def test_no_second_definition_of_an_owned_name() -> None:
    """Re-exports are imports and stay allowed. Commands and the node are scanned like the rest."""
    everywhere = [path for folder in ("runtime", "providers", "node") for path in modules(folder)]

    assert second_definitions(everywhere) == []


@pytest.mark.req("BAN-02")
def test_a_second_definition_is_seen(tmp_path: Path) -> None:
    copy = tmp_path / "copy.py"
    copy.write_text("class Emitter: ...\ndef encode_failure(): ...\nclass Other: ...\n")

    found = second_definitions([copy])

    assert found == [
        "copy.py defines Emitter, which runtime/emitter.py owns",
        "copy.py defines encode_failure, which runtime/failure.py owns",
    ]


@pytest.mark.req("BAN-02", "BAN-03")
def test_no_host_refines_the_machinery_by_a_subclass() -> None:
    machinery = machinery_classes()
    refined = [
        f"{shown(path)}: {name}"
        for path in modules("node")
        for name, node in definitions(parse(path)).items()
        if isinstance(node, ast.ClassDef) and bases(node) & machinery
    ]

    assert refined == []


@pytest.mark.req("BAN-02", "BAN-03")
def test_the_node_starts_no_process() -> None:
    """Children are the keeper's; a fork beside gRPC's threads kills some of them. Two hold no gRPC and no run."""
    without_grpc = {"node/supervise.py", "node/commands/login.py"}
    offenders = [
        f"{shown(path)}: {module}"
        for path in modules("node")
        if shown(path) not in without_grpc
        for module, _ in imports(parse(path))
        if module.partition(".")[0] in {"subprocess", "multiprocessing", "pty"}
    ]

    assert offenders == []


@pytest.mark.req("PKG-04")
def test_only_a_bridge_holds_messages_and_run_values_together() -> None:
    offenders = []
    for path in modules("node"):
        found = set(imports(parse(path)))
        messages = {name for module, name in found if module.startswith("node.pb") and name.endswith("_pb2")}
        values = {name for module, names in RUN_VALUES.items() for name in names if (module, name) in found}
        if messages and values and path.name not in BRIDGES:
            offenders.append(f"{shown(path)}: {sorted(messages | values)}")

    assert offenders == []


@pytest.mark.req("PKG-04")
def test_services_build_no_message() -> None:
    """Every answer comes out of a bridge."""
    services = [path for path in modules("node") if path.name.endswith("_service.py") or path.name == "server.py"]
    offenders = [f"{shown(path)}, line {line}" for path in services for line in messages_built(parse(path))]

    assert services != []
    assert offenders == []
