"""The vendors' CLIs, installed by the ordinary npm client: pinned versions, one folder each, made once.

They lie under ``.cache/real-cli/`` or where ``IOP_REAL_CLI_CACHE`` says. A folder that has the pinned version is left
alone, so that a second run needs no network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 600
VERSION_S = 60  # the first start of a CLI may unpack itself

_UNREACHABLE = re.compile(
    r"ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|EPIPE|ERR_SOCKET_TIMEOUT"
    r"|network (?:request|connectivity|timeout)|\bE(?:429|50[0-9])\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What is installed: ``binary`` is the command it brings, which says ``prints`` (its version) when it is asked for it."""

    name: str
    version: str
    binary: str
    version_args: tuple[str, ...] = ("--version",)
    prints: str = ""


PACKAGES = {
    "claude": Package(name="@anthropic-ai/claude-code", version="2.1.197", binary="claude"),
    "claude-acp": Package(
        name="@agentclientprotocol/claude-agent-acp",
        version="0.49.0",
        binary="claude-agent-acp",
        version_args=("--cli", "--version"),
        prints="2.1.185",
    ),
    "codex": Package(name="@openai/codex", version="0.171.0", binary="codex"),
    "gemini": Package(name="@google/gemini-cli", version="0.61.0", binary="gemini"),
    "opencode": Package(name="opencode-ai", version="1.18.33", binary="opencode"),
    "qwen": Package(name="@qwen-code/qwen-code", version="0.15.10", binary="qwen"),
    "pi": Package(name="@mariozechner/pi-coding-agent", version="0.73.1", binary="pi"),
    "copilot": Package(name="@github/copilot", version="1.0.102", binary="copilot"),
}


class RegistryUnreachable(Exception):
    """The network or the registry failed, not the package."""


class InstallFailed(Exception):
    """The package could not be installed for another reason; the text says which."""


def cache() -> Path:
    """Where the CLIs lie."""
    return Path(os.environ.get("IOP_REAL_CLI_CACHE") or ROOT / ".cache" / "real-cli").absolute()


def commands(cli: str) -> Path:
    """The directory that has the command of *cli*."""
    return cache() / cli / "node_modules" / ".bin"


def is_installed(cli: str) -> bool:
    """Whether the pinned version is there, by its own manifest, with its command."""
    package = PACKAGES[cli]
    manifest = cache() / cli / "node_modules" / package.name / "package.json"
    try:
        version = json.loads(manifest.read_text("utf-8"))["version"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(version == package.version) and (commands(cli) / package.binary).exists()


def install(cli: str) -> None:
    """Install the pinned version of *cli*, unless it is there, and see that it starts.

    Raises:
        RegistryUnreachable: try again later.
        InstallFailed: npm is missing, refuses, or what it installed does not start.
    """
    if is_installed(cli):
        return
    if shutil.which("npm") is None:
        raise InstallFailed("npm was not found; install Node.js 20 or newer with npm (Debian: nodejs npm)")
    package, folder = PACKAGES[cli], cache() / cli
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true}\n')
    _npm_install(f"{package.name}@{package.version}", folder)
    _check_starts(cli)


def install_all(clis: Iterable[str]) -> list[str]:
    """Install all of *clis*; those that could not be had because the registry does not answer.

    Raises:
        InstallFailed: as :func:`install` does.
    """
    missing = []
    for cli in clis:
        try:
            install(cli)
        except RegistryUnreachable:
            missing.append(cli)
    return missing


def _npm_install(what: str, folder: Path) -> None:
    print(f"installing {what} ...", flush=True)
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--no-update-notifier",
        "--loglevel=error",
        "--save-exact",
        what,
    ]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        shutil.rmtree(folder, ignore_errors=True)
        raise RegistryUnreachable(f"npm had not installed {what} after {INSTALL_S} s") from None
    if done.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        if _UNREACHABLE.search(done.stderr):
            raise RegistryUnreachable(done.stderr.strip())
        raise InstallFailed(f"npm install {what} failed:\n{done.stderr.strip()[-2000:]}")


def _check_starts(cli: str) -> None:
    """An installer that left out an optional package leaves a stub behind: only a start tells."""
    package = PACKAGES[cli]
    if not is_installed(cli):
        raise InstallFailed(f"npm ended well, but {package.name} {package.version} is not installed")
    home = cache() / cli / "home"
    home.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [str(commands(cli) / package.binary), *package.version_args],
        env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=VERSION_S, check=False,
    )  # fmt: skip
    found = re.search(r"\d+\.\d+\.\d+", done.stdout + done.stderr)  # pi tells it on stderr
    if done.returncode or found is None or found[0] != (package.prints or package.version):
        raise InstallFailed(
            f"{cli} --version says {(done.stdout + done.stderr).strip()[:500]!r}, not {package.version}"
        )
    shutil.rmtree(home, ignore_errors=True)
