"""What a child process may know: an allow-list, never the node's own environment.

Secret-looking names are dropped even when listed; the one way in for a secret is a named source of the operator's
configuration, resolved here at spawn and held in memory only.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.failure import FailureCode, FailureError

ALLOWED = frozenset({
    "HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "SSL_CERT_DIR", "SSL_CERT_FILE", "TEMP", "TMP", "TMPDIR", "TZ",
    "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME",
})  # fmt: skip
FIXED = {"TERM": "dumb", "NO_COLOR": "1"}
"""Forcing variables (FORCE_COLOR, CLICOLOR_FORCE) are not on the list: many tools test their presence, not their value."""

_SCRIPTS = sysconfig.get_path("scripts")
_SECRET_NAME = re.compile(
    r"(?i)(^|_)(API_?KEY|KEY|TOKEN|SECRET|SECRETS|PASSWORD|PASSWD|AUTHORIZATION|AUTH|CREDENTIAL|CREDENTIALS|COOKIE)($|_)"
)


class SecretUnavailable(FailureError):
    """A secret that the operator named cannot be read; the agent was not started."""

    code = FailureCode.PROCESS_FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSource:
    """Where one secret of a profile comes from: exactly one of an environment variable of the node, and a file."""

    env: str = ""
    file: str = ""


def is_secret_name(name: str) -> bool:
    """Whether a variable of this name is likely to hold a credential."""
    return _SECRET_NAME.search(name) is not None


def base_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The part of *inherited* that any child may see, with terminal features off and our own scripts on PATH."""
    kept = {k: v for k, v in inherited.items() if (k in ALLOWED or k.startswith("LC_")) and not is_secret_name(k)}
    kept["PATH"] = os.pathsep.join(part for part in (kept.get("PATH", os.defpath), _SCRIPTS) if part)
    return kept | FIXED


def resolve_secrets(sources: Mapping[str, SecretSource], inherited: Mapping[str, str]) -> dict[str, str]:
    """The values of *sources* by variable name.

    Raises:
        SecretUnavailable: a source is empty or unreadable; the message names the variable, never a value.
    """
    return {name: _resolve(name, source, inherited) for name, source in sources.items()}


def _resolve(name: str, source: SecretSource, inherited: Mapping[str, str]) -> str:
    if source.env:
        if not (value := inherited.get(source.env, "")):
            raise SecretUnavailable(f"secret {name} comes from variable {source.env}, which the node does not have")
        return value
    try:
        return Path(source.file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SecretUnavailable(
            f"secret {name} comes from file {source.file}, which cannot be read ({type(error).__name__})"
        ) from error
