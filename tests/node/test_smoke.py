"""`iop-provider-smoke` and `iop-node doctor` as a shell sees them: with none, some and all CLIs, and nothing leaks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.catalogs import PROBED, calls, cli, many, script, text

_SCRIPTS = Path(sys.executable).parent
CLAUDE = """case "$1 $2" in
'--version ') echo '2.1.197 (Claude Code)' ;;
'auth status') echo '{"loggedIn": true, "email": "canary@example.com", "orgName": "Canary Corp"}' ;;
*) echo executed >> "$0.executed" ;;
esac"""
CODEX = """case "$1 $2" in
'--version ') echo 'codex-cli 0.171.0' ;;
'login status') echo 'Not logged in' >&2; exit 1 ;;
*) echo executed >> "$0.executed" ;;
esac"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    out: str
    err: str


class Shell:
    """Runs the project's programs with a PATH and a HOME of the test's own."""

    def __init__(self, root: Path) -> None:
        self.bin, self.home, self.root = root / "bin", root / "home", root
        self.bin.mkdir()
        self.home.mkdir()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8", "TMPDIR": str(root),
            "CANARY_TOKEN": "canary-in-the-environment",
        }  # fmt: skip

    def run(self, program: str, *arguments: str) -> Ended:
        done = subprocess.run(
            [_SCRIPTS / program, *arguments], env=self.env, cwd=self.root, capture_output=True, text=True, timeout=200,
            stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return Ended(code=done.returncode, out=done.stdout, err=done.stderr)

    def config(self, *names: str) -> str:
        """A node.yaml with a catalog of profiles of these names."""
        (self.root / "catalog.yaml").write_bytes(text(many(**{name: {"login": ["login"]} for name in names})))
        (self.root / "node.yaml").write_text("catalog: catalog.yaml\n")
        return str(self.root / "node.yaml")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def rows(out: str) -> dict[str, str]:
    """Profile and readiness of each line of a table."""
    return {line.split()[0]: line.split()[1] for line in out.splitlines()[1:]}


# --- smoke


@pytest.mark.req("PKG-07", "CAT-26")
def test_with_no_cli_every_profile_has_its_line_and_its_next_command(shell: Shell) -> None:
    ended = shell.run("iop-provider-smoke")

    assert ended.code == 1
    found = rows(ended.out)
    assert found["claude-code"] == found["codex"] == "missing_binary"
    assert found["demo-agent"] == "ready"
    for line in ended.out.splitlines()[1:]:
        assert line.split()[1] == "ready" or len(line.rsplit("  ", 1)[1]) > 5, line


@pytest.mark.req("PKG-07", "CAT-32")
def test_with_some_clis_each_is_told_apart_and_nobody_is_named(shell: Shell) -> None:
    script(shell.bin, "claude", CLAUDE)
    script(shell.bin, "codex", CODEX)

    ended = shell.run("iop-provider-smoke", "--profile", "claude-code", "codex")
    as_json = shell.run("iop-provider-smoke", "--json")

    assert (ended.code, rows(ended.out)) == (1, {"claude-code": "ready", "codex": "unauthenticated"})
    assert "iop-node login codex" in ended.out
    assert "2.1.197" in ended.out
    assert "anary" not in ended.out + ended.err + as_json.out + as_json.err
    assert list(shell.bin.glob("*.executed")) == []


@pytest.mark.req("PKG-07")
def test_all_ready_is_exit_0(shell: Shell) -> None:
    for name in ("alpha", "beta", "gamma"):
        cli(shell.bin, f"{name}-cli")

    ended = shell.run("iop-provider-smoke", "--config", shell.config("alpha", "beta", "gamma"))

    assert (ended.code, rows(ended.out)) == (0, {"alpha": "ready", "beta": "ready", "gamma": "ready"})
    assert [path for path in shell.root.iterdir() if path.name.startswith("iop-node-")] == []


@pytest.mark.req("PKG-07")
def test_only_the_requested_profiles_count(shell: Shell) -> None:
    cli(shell.bin, "alpha-cli")
    config = shell.config("alpha", "beta")

    assert shell.run("iop-provider-smoke", "--config", config, "--profile", "alpha").code == 0
    assert shell.run("iop-provider-smoke", "--config", config, "--profile", "alpha", "--profile", "beta").code == 1


@pytest.mark.req("PKG-07", "BAN-12")
def test_an_unknown_profile_is_wrong_usage(shell: Shell) -> None:
    ended = shell.run("iop-provider-smoke", "--profile", "claude")

    assert (ended.code, ended.out) == (2, "")
    assert "profile 'claude' is not in the agent catalog; it has " in ended.err


@pytest.mark.req("PKG-07", "GRD-33")
def test_one_prompt_is_executed_when_asked_for_and_its_answer_is_not_shown(shell: Shell) -> None:
    ended = shell.run("iop-provider-smoke", "--profile", "demo-agent", "--execute", "say canary")
    as_json = shell.run(
        "iop-provider-smoke", "--profile", "demo-agent", "--json", "--execute", "[[demo:fail kind=auth]]"
    )

    assert (ended.code, ended.out.splitlines()[-1].startswith("demo-agent: run complete, ")) == (0, True)
    assert "canary" not in ended.out
    assert as_json.code == 1
    outcome = json.loads(as_json.out.splitlines()[-1])
    assert outcome == {"profile_id": "demo-agent", "run": "error", "failure": "auth_required", "answer_chars": 0}


@pytest.mark.req("PKG-07")
def test_a_prompt_goes_to_exactly_one_profile_that_is_ready(shell: Shell) -> None:
    script(shell.bin, "codex", CODEX)

    several = shell.run("iop-provider-smoke", "--execute", "hi")
    not_ready = shell.run("iop-provider-smoke", "--profile", "codex", "--execute", "hi")

    assert (several.code, several.out) == (2, "")
    assert (not_ready.code, rows(not_ready.out)) == (1, {"codex": "unauthenticated"})
    assert list(shell.bin.glob("*.executed")) == []


@pytest.mark.req("CAT-17", "CAT-19")
def test_a_broken_catalog_is_told_with_its_line(shell: Shell) -> None:
    config = shell.config("alpha")
    with open(shell.root / "catalog.yaml", "a") as file:
        file.write("version: 1\n")

    ended = shell.run("iop-provider-smoke", "--config", config)

    assert ended.code == 2
    assert "catalog.yaml, line " in ended.err
    assert "key version is repeated; line 1 has it already" in ended.err


@pytest.mark.req("PKG-07", "BAN-03")
def test_smoke_and_login_hold_no_grpc() -> None:
    code = "import sys, node.smoke, node.login; print(sorted({'grpc', 'google.protobuf'} & sys.modules.keys()))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


# --- doctor


@pytest.mark.req("CAT-31", "CAT-32")
def test_doctor_shows_what_to_type_next(shell: Shell) -> None:
    cli(shell.bin, "alpha-cli")
    cli(shell.bin, "beta-cli", auth="echo Not logged in as canary@example.com")
    cli(shell.bin, "delta-cli", version="echo sk-canary0123456789; exit 2")
    config = shell.config("alpha", "beta", "gamma", "delta")

    ended = shell.run("iop-node", "doctor", "--config", config)

    assert ended.code == 0
    assert [line.split("  ")[0].strip() for line in ended.out.splitlines()] == [
        "PROFILE",
        "alpha",
        "beta",
        "delta",
        "gamma",
    ]
    table = {line.split()[0]: line for line in ended.out.splitlines()}
    assert "ready" in table["alpha"]
    assert table["beta"].endswith("iop-node login beta")
    assert table["gamma"].endswith("install gamma-cli, or put its directory on the node's PATH")
    assert table["delta"].endswith("delta-cli --version")
    assert "canary" not in ended.out + ended.err
    assert calls(shell.bin, "alpha-cli") == ["--version", "auth"]


@pytest.mark.req("CAT-29")
def test_doctor_speaks_json(shell: Shell) -> None:
    cli(shell.bin, "alpha-cli")

    ended = shell.run("iop-node", "doctor", "--config", shell.config("alpha", "beta"), "--json", "alpha")

    (line,) = [json.loads(line) for line in ended.out.splitlines()]
    assert (line["profile_id"], line["readiness"], line["version"]) == ("alpha", "ready", "1.4.2")


@pytest.mark.req("BAN-12")
def test_doctor_knows_no_other_profile(shell: Shell) -> None:
    ended = shell.run("iop-node", "doctor", "--config", shell.config("alpha"), "alph")

    assert (ended.code, ended.out) == (2, "")
    assert "is not in the agent catalog; it has alpha" in ended.err


# --- login


@pytest.mark.req("E-10")
def test_login_is_the_vendors_own_with_the_environment_of_a_run(shell: Shell) -> None:
    shows = 'test "$1" = login || exit 9; id -u; env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= -e ^OLDPWD= | sort; exit 7'
    script(shell.bin, "alpha-cli", shows)
    made = many(alpha={**PROBED, "login": ["login"], "env": {"ALPHA_MODE": "quiet"}})
    (shell.root / "catalog.yaml").write_bytes(text(made))
    (shell.root / "node.yaml").write_text(
        "catalog: catalog.yaml\nprofiles: {alpha: {secrets: {ALPHA_KEY: {env: CANARY_TOKEN}}}}\n"
    )

    ended = shell.run("iop-node", "login", "alpha", "--config", str(shell.root / "node.yaml"))

    uid, *environment = ended.out.splitlines()
    variables = dict(line.split("=", 1) for line in environment)
    assert (ended.code, uid) == (7, str(os.getuid()))
    assert variables == {
        "PATH": f"{shell.bin}:/usr/bin:/bin:{_SCRIPTS}", "HOME": str(shell.home), "LANG": "C.UTF-8",
        "TMPDIR": str(shell.root), "TERM": "dumb", "NO_COLOR": "1", "ALPHA_MODE": "quiet",
        "ALPHA_KEY": "canary-in-the-environment",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("profile", "sentence"),
    [
        ("nobody", "profile 'nobody' is not in the agent catalog; it has alpha"),
        ("alpha", "binary 'alpha-cli' was not found"),
    ],
)
def test_there_is_no_login_of_what_is_not_there(shell: Shell, profile: str, sentence: str) -> None:
    ended = shell.run("iop-node", "login", profile, "--config", shell.config("alpha"))

    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err


def test_a_provider_without_a_login_says_so(shell: Shell) -> None:
    ended = shell.run("iop-node", "login", "demo-agent")

    assert ended.code == 2
    assert "has no login of its own; `iop-node doctor` says what to do" in ended.err
