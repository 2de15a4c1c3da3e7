"""The wire is a promise to programs we never see; ``tests/node/golden/node.binpb`` is what was promised.

When the proto gains something, extend the promise in the same change::

    buf build proto --as-file-descriptor-set --exclude-source-info -o tests/node/golden/node.binpb

``make proto-check`` refuses a change that breaks it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet

from node.pb import node_pb2

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/node/golden/node.binpb"
NAME = "iop/node/v1/node.proto"


def promised() -> FileDescriptorProto:
    files = FileDescriptorSet.FromString(GOLDEN.read_bytes()).file
    return next(file for file in files if file.name == NAME)


def facts(file: FileDescriptorProto) -> dict[str, Any]:
    """All that the bytes on the wire and their JSON depend on, by full name."""
    found: dict[str, Any] = {}
    for message in file.message_type:
        found |= dict(_of_message(message, message.name))
    for enum in file.enum_type:
        found |= {f"{enum.name}.{value.name}": value.number for value in enum.value}
    for service in file.service:
        for method in service.method:
            kinds = (method.input_type, method.client_streaming, method.output_type, method.server_streaming)
            found[f"{service.name}/{method.name}"] = kinds
    return found


def _of_message(message: DescriptorProto, path: str) -> Iterator[tuple[str, Any]]:
    oneofs = [oneof.name for oneof in message.oneof_decl]
    for field in message.field:
        oneof = oneofs[field.oneof_index] if field.HasField("oneof_index") else ""
        kind = (field.number, field.type, field.label, field.type_name, field.proto3_optional, oneof)
        yield f"{path}.{field.name}", kind
    for nested in message.nested_type:
        yield from _of_message(nested, f"{path}.{nested.name}")


def breaking(proto: Path) -> subprocess.CompletedProcess[str]:
    buf = Path(sys.executable).with_name("buf")
    return subprocess.run(
        [buf, "breaking", proto, "--against", GOLDEN], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.req("NB-04", "BAN-16")
def test_the_wire_is_what_was_promised() -> None:
    current = FileDescriptorProto()
    node_pb2.DESCRIPTOR.CopyToProto(current)

    assert current.package == promised().package
    assert facts(current) == facts(promised())


@pytest.mark.req("NB-04", "BAN-16")
def test_the_promise_stands_by_itself() -> None:
    """A descriptor set without its imports is of no use to the tools that compare with it."""
    files = FileDescriptorSet.FromString(GOLDEN.read_bytes()).file

    assert {name for file in files for name in file.dependency} <= {file.name for file in files}


@pytest.mark.req("NB-04", "BAN-16")
def test_the_fields_that_the_contract_names_are_there() -> None:
    fields = {f.name for f in node_pb2.RunEvent.DESCRIPTOR.fields}

    assert fields >= {
        "run_id", "type", "delta", "message", "error", "usage", "metadata", "timestamp", "session_id", "background", "node_id",
    }  # fmt: skip


@pytest.mark.req("NB-04", "BAN-16")
def test_the_proto_breaks_nothing() -> None:
    found = breaking(ROOT / "proto")

    assert (found.returncode, found.stdout) == (0, "")


@pytest.mark.req("NB-04", "BAN-16")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("string delta = 3;", "string delta = 33;"),
        ("string delta = 3;", "bytes delta = 3;"),
        ("string delta = 3;", "string text = 3;"),
        ("RUN_STATE_ERROR = 4;", "RUN_STATE_FAILED = 4;"),
    ],
    ids=["renumbered", "retyped", "renamed", "renamed value"],
)
def test_a_change_of_meaning_is_refused(before: str, after: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    path = tmp_path / "proto" / NAME
    source = path.read_text()
    assert before in source
    path.write_text(source.replace(before, after))

    assert breaking(tmp_path / "proto").returncode != 0


@pytest.mark.req("NB-04", "BAN-16")
def test_a_method_that_goes_missing_is_noticed() -> None:
    """``buf breaking`` at the level of the wire does not look at services, so the comparison with the promise must."""
    changed = promised()
    del changed.service[0].method[2]

    assert facts(changed) != facts(promised())


@pytest.mark.req("NB-04")
def test_the_committed_code_is_that_of_the_proto() -> None:
    """The generated descriptor speaks of the canonical file, so that reflection and other languages agree on its name."""
    assert node_pb2.DESCRIPTOR.name == NAME
