"""The catalog that ships: what programs rely on is there, and nothing in it is secret or shared with other lists."""

from __future__ import annotations

import ast
import subprocess
from importlib.resources import files

import pytest
from pydantic import BaseModel

from providers.catalog import schema
from providers.catalog.factory import ProfileSettings, build_profile
from providers.catalog.loader import FILE_NAME, CatalogInvalid, load_shipped, parse_catalog
from providers.catalog.readiness import Readiness
from providers.cli.dialects import known_dialects
from runtime.redact import MASK, scrub
from tests.support.source import ROOT, modules, parse, shown

SHIPPED = {
    "providers": {"claude", "codex", "copilot", "demo", "gemini", "opencode", "pi", "qwen"},
    "models": {
        *("claude-opus", "claude-sonnet", "copilot-auto", "demo-model", "gemini-pro", "gpt-codex"),
        *("opencode-sonnet", "pi-sonnet", "qwen-coder"),
    },
    "profiles": {
        *("claude-code", "claude-code-bypass", "codex", "copilot", "copilot-bypass", "demo-agent"),
        *("gemini", "gemini-bypass", "opencode", "opencode-bypass", "pi", "qwen", "qwen-bypass"),
        *("claude-session", "codex-session", "demo-session"),
    },
}
"""Ids that were shipped once: others use them, so they stay. New ones are added here when they ship."""

EDGE_POOL = b"""version: 1
providers:
  - name: lab
    node_providers: [{type: openai, base_url: http://127.0.0.1:8000}]
models:
  - model: claude-sonnet
    capacity: 4
profiles: []
"""


@pytest.mark.req("CAT-01", "CAT-04")
@pytest.mark.parametrize("array", ["providers", "models", "profiles"])
def test_an_id_that_was_shipped_stays(array: str) -> None:
    found = {item.id for item in getattr(load_shipped(), array)}

    assert SHIPPED[array] - found == set()


@pytest.mark.req("CAT-01", "CAT-08", "CAT-09")
def test_every_shipped_provider_can_be_probed() -> None:
    for provider in load_shipped().providers:
        assert provider.version is not None, provider.id
        assert provider.auth is not None, provider.id
        assert provider.dialect in known_dialects()
        assert provider.install is not None or provider.id == "demo", provider.id


@pytest.mark.req("CAT-01")
def test_no_module_spells_a_profile_id() -> None:
    """They are the catalog's. A docstring may give one as an example; a value may not."""
    ids = {profile.id for profile in load_shipped().profiles}
    offenders = [
        f"{shown(path)}, line {node.lineno}: {node.value!r}"
        for folder in ("runtime", "providers", "node")
        for path in modules(folder)
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Constant) and node.value in ids
    ]

    assert offenders == []


@pytest.mark.req("CAT-03", "BAN-09")
def test_neither_the_file_nor_its_history_holds_a_secret() -> None:
    path = f"providers/catalog/{FILE_NAME}"
    texts = [files("providers.catalog").joinpath(FILE_NAME).read_text("utf-8")]
    log = subprocess.run(
        ["git", "log", "-p", "--follow", "--format=", "--", path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    texts += log.stdout.splitlines()  # empty where the project was unpacked without its history

    assert [line for text in texts for line in text.splitlines() if MASK in scrub(line)] == []


@pytest.mark.req("CAT-12", "CAT-13")
def test_every_shipped_profile_builds_both_command_lines() -> None:
    catalog = load_shipped()

    for stanza in catalog.profiles:
        profile = build_profile(catalog, stanza.id, ProfileSettings())
        assert "{{model}}" not in "".join((*profile.args, *profile.resume_args))
        assert stanza.mode != "resumable" or any("{{session}}" in argument for argument in profile.resume_args)


# --- another list of providers and models is another world


@pytest.mark.req("CAT-42", "BAN-07")
def test_an_edge_pool_document_is_refused_field_by_field() -> None:
    with pytest.raises(CatalogInvalid) as refused:
        parse_catalog(EDGE_POOL, name="pool.yaml")

    report = str(refused.value)
    for field in ("providers[0].name", "providers[0].node_providers", "models[0].model", "models[0].capacity"):
        assert f"{field}: is not known here" in report


@pytest.mark.req("CAT-42", "BAN-07")
def test_the_schema_shares_no_class_with_another_one() -> None:
    own = [one for one in vars(schema).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    bases = {base for one in own for base in one.__mro__}
    foreign = {base.__module__.partition(".")[0] for base in bases if base.__module__ != schema.__name__}
    names = {node.name for path in modules("node") for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)}

    assert foreign <= {"pydantic", "builtins"}
    assert names.isdisjoint({"NodeProviderConf", "ModelCatalogEntry"})


@pytest.mark.req("BAN-08", "CAT-42", "BAN-12")
@pytest.mark.parametrize("name", ["claude-sonnet", "sonnet", "claude", "Claude-Code", "claude-code ", "claude-cod", ""])
def test_an_id_of_elsewhere_is_no_profile_and_the_error_says_of_which_list(name: str) -> None:
    with pytest.raises(CatalogInvalid, match=r"is not in the agent catalog; it has .*claude-code"):
        build_profile(load_shipped(), name, ProfileSettings())


@pytest.mark.req("CAT-28")
def test_there_are_five_readiness_values() -> None:
    assert [value.value for value in Readiness] == [
        "ready",
        "missing_binary",
        "unauthenticated",
        "unsupported_model",
        "probe_error",
    ]
