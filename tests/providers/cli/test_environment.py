"""The environment of a child: an allow-list, and secrets from the sources that an operator named."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from providers.cli.environment import SecretSource, SecretUnavailable, base_environment, is_secret_name, resolve_secrets

SCRIPTS = sysconfig.get_path("scripts")


@pytest.mark.req("E-10")
def test_only_what_is_listed_is_passed_on_and_terminal_features_are_off() -> None:
    inherited = {
        "PATH": "/usr/bin", "HOME": "/home/x", "LANG": "C.UTF-8", "LC_TIME": "de_DE", "TZ": "UTC", "TMPDIR": "/t",
        "TERM": "xterm", "FORCE_COLOR": "0", "CLICOLOR_FORCE": "1", "COLORTERM": "truecolor", "LD_PRELOAD": "x.so",
        "PYTHONPATH": "/p", "NODE_OPTIONS": "--inspect", "HTTPS_PROXY": "http://proxy", "EDITOR": "vi", "IOP_RUN": "forged",
    }  # fmt: skip

    assert base_environment(inherited) == {
        "PATH": f"/usr/bin:{SCRIPTS}", "HOME": "/home/x", "LANG": "C.UTF-8", "LC_TIME": "de_DE", "TZ": "UTC", "TMPDIR": "/t",
        "TERM": "dumb", "NO_COLOR": "1",
    }  # fmt: skip


@pytest.mark.req("E-10")
def test_a_name_that_looks_secret_is_dropped_even_where_its_kind_is_listed() -> None:
    assert base_environment({"PATH": "/bin", "LC_API_KEY": "x", "LC_TOKEN": "y"}) == {
        "PATH": f"/bin:{SCRIPTS}", "TERM": "dumb", "NO_COLOR": "1",
    }  # fmt: skip


def test_without_a_path_the_systems_own_serves() -> None:
    assert base_environment({})["PATH"].endswith(f":{SCRIPTS}")


@pytest.mark.req("E-10")
@pytest.mark.parametrize(
    "name",
    [
        "API_KEY",
        "OPENAI_API_KEY",
        "GITHUB_TOKEN",
        "token",
        "DB_PASSWORD",
        "MY_SECRET",
        "AWS_SECRET_ACCESS_KEY",
        "AUTHORIZATION",
    ],
)
def test_names_of_secrets_are_known(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["HOME", "KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "AUTHOR", "PATH", "SECRETARY"]
)
def test_innocent_names_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.req("E-10")
def test_secrets_come_from_a_variable_of_the_node_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("line one\nline two\r\n")
    sources = {"A": SecretSource(env="OURS"), "B": SecretSource(file=str(tmp_path / "key"))}

    assert resolve_secrets(sources, {"OURS": "value"}) == {"A": "value", "B": "line one\nline two"}


@pytest.mark.req("E-10")
@pytest.mark.parametrize("content", [None, b"\xff\xfe\xff"])
def test_a_file_that_cannot_be_read_is_named_and_nothing_of_it_is_told(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(SecretUnavailable, match=f"secret B comes from file {path}, which cannot be read"):
        resolve_secrets({"B": SecretSource(file=str(path))}, {})


@pytest.mark.req("E-10")
@pytest.mark.parametrize("inherited", [{}, {"OURS": ""}])
def test_a_variable_that_is_not_there_or_empty_is_named(inherited: dict[str, str]) -> None:
    with pytest.raises(SecretUnavailable, match="secret A comes from variable OURS, which the node does not have"):
        resolve_secrets({"A": SecretSource(env="OURS")}, inherited)
