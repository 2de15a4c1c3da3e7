"""Who may import what, where the import contracts cannot see it: lazily, in tests, and when the module is run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.source import ROOT, imports, modules, parse, roots, shown

WIRE = {"google", "grpc", "grpc_health", "grpc_reflection", "grpc_status", "grpc_tools", "grpc_channelz"}

# Imports every module below the packages named on the command line, in an interpreter that refuses the names before --.
IMPORT_ALL = """
import importlib, importlib.abc, pkgutil, sys

split = sys.argv.index("--")
blocked, wanted = sys.argv[1:split], sys.argv[split + 1:]

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == entry or name.startswith(entry + ".") for entry in blocked):
            raise ImportError(f"{name} is blocked")
        return None

sys.meta_path.insert(0, Refuse())
for name in wanted:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), name + "."):
        importlib.import_module(found.name)
"""


def import_all(*wanted: str, blocked: set[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", IMPORT_ALL, *sorted(blocked), "--", *wanted]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=200)


def below(*folders: str) -> list[Path]:
    return [path for folder in folders for path in modules(folder)]


@pytest.mark.req("NB-01", "BAN-01")
def test_runtime_and_providers_import_neither_wire_nor_node() -> None:
    """Every import counts, also one inside a function or for the type checker only."""
    offenders = {shown(path): sorted(roots(parse(path)) & (WIRE | {"node"})) for path in below("runtime", "providers")}

    assert {path: names for path, names in offenders.items() if names} == {}


@pytest.mark.req("NB-01", "BAN-01", "PKG-02")
def test_runtime_and_providers_work_where_grpc_and_protobuf_are_missing() -> None:
    done = import_all("runtime", "providers", blocked={"grpc", "google.protobuf", "node"})

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.req("NB-01", "BAN-01")
def test_blocking_blocks() -> None:
    done = import_all("node.pb", blocked={"grpc"})

    assert "grpc is blocked" in done.stderr


def test_the_composition_root_works_where_grpc_and_protobuf_are_missing() -> None:
    """The third import contract, at run time: it cannot follow generated code, which has no package files."""
    done = import_all("node.host", blocked={"grpc", "google.protobuf"})

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.req("PKG-09", "NB-01")
def test_generated_code_is_imported_in_node_alone() -> None:
    """Tests of runtime and providers are held to it as well: what they need is not on the wire."""
    outside = below("runtime", "providers", "tests/runtime", "tests/providers")
    offenders = [
        f"{shown(path)}: {module}.{name}"
        for path in outside
        for module, name in imports(parse(path))
        if "_pb2" in f"{module}.{name}" or module.startswith("node.pb")
    ]

    assert offenders == []


@pytest.mark.req("PKG-09")
def test_generated_code_lies_in_node_alone() -> None:
    kept = [
        path for folder in ("runtime", "providers", "tests", "proto") for path in (ROOT / folder).rglob("*_pb2*.py")
    ]

    assert kept == []
    assert list((ROOT / "node").rglob("*_pb2*.py")) != []
