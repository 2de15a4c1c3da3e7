"""Homes for the vendors' CLIs that point them at the scripted model and at nothing else.

Each function makes the folder and gives the environment to run the CLI in. No other variable is needed; nothing of the
user's own configuration is read, and the CLIs' own traffic (telemetry, updates, plugins) is off.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DUMMY_KEY = "dummy-key-of-no-account"

_CODEX_CONFIG = """\
model = "mock-model"
model_provider = "mock"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = "{url}/v1"
env_key = "CODEX_API_KEY"
wire_api = "responses"
request_max_retries = {retries}
stream_max_retries = {retries}
stream_idle_timeout_ms = 20000
supports_websockets = false

[analytics]
enabled = false

[features]
plugins = false
"""


_NO_TELEMETRY = {"privacy": {"usageStatisticsEnabled": False}, "telemetry": {"enabled": False}}


def claude_home(folder: Path, url: str, *, retries: int = 2) -> dict[str, str]:
    """The environment of a Claude Code that asks the server at *url* and tries again *retries* times."""
    home = _made(folder / "claude")
    return {
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": DUMMY_KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # also keeps it from asking the model for a title
        "CLAUDE_CODE_MAX_RETRIES": str(retries),
        "IS_SANDBOX": "1",  # root may not bypass permissions without it
    }


def codex_home(folder: Path, url: str, *, retries: int = 2) -> dict[str, str]:
    """The environment of a Codex that asks the server at *url* and tries again *retries* times."""
    home, temporary = _made(folder / "codex"), _made(folder / "codex-tmp")
    config = _made(home / ".codex") / "config.toml"
    config.write_text(_CODEX_CONFIG.format(url=url, retries=retries))
    return {
        "HOME": str(home),
        "CODEX_HOME": str(config.parent),
        "CODEX_API_KEY": DUMMY_KEY,
        "TMPDIR": str(temporary),  # every sandboxed command fails where CODEX_HOME lies below it
    }


def gemini_home(folder: Path, url: str) -> dict[str, str]:
    """The environment of a Gemini CLI that asks the server at *url*; how often it tries again cannot be set."""
    home = _made(folder / "gemini")
    settings: dict[str, Any] = {
        # without a type the base URL selects another kind of login
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
        "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
        **_NO_TELEMETRY,
    }
    _write_json(home / ".gemini" / "settings.json", settings)
    return {"HOME": str(home), "GEMINI_API_KEY": DUMMY_KEY, "GOOGLE_GEMINI_BASE_URL": url}


def opencode_home(folder: Path, url: str) -> dict[str, str]:
    """The environment of an opencode whose provider ``anthropic`` is the server at *url*."""
    home = _made(folder / "opencode")
    settings = {
        "autoupdate": False,
        "share": "disabled",
        "small_model": "anthropic/claude-sonnet-4-5",
        "provider": {"anthropic": {"options": {"baseURL": f"{url}/v1"}}},
    }
    _write_json(home / ".config" / "opencode" / "opencode.json", settings)
    return {"HOME": str(home), "ANTHROPIC_API_KEY": DUMMY_KEY}


def qwen_home(folder: Path, url: str) -> dict[str, str]:
    """The environment of a Qwen Code that asks the server at *url*; how often it tries again cannot be set."""
    home = _made(folder / "qwen")
    settings: dict[str, Any] = {
        "security": {"auth": {"selectedType": "openai"}},
        "general": {"enableAutoUpdate": False},
        **_NO_TELEMETRY,
    }
    _write_json(home / ".qwen" / "settings.json", settings)
    return {"HOME": str(home), "OPENAI_API_KEY": DUMMY_KEY, "OPENAI_BASE_URL": f"{url}/v1"}


def pi_home(folder: Path, url: str) -> dict[str, str]:
    """The environment of a pi whose provider ``anthropic`` is the server at *url*."""
    home = _made(folder / "pi")
    _write_json(home / ".pi" / "agent" / "models.json", {"providers": {"anthropic": {"baseUrl": url}}})
    return {"HOME": str(home), "ANTHROPIC_API_KEY": DUMMY_KEY}


def copilot_home(folder: Path, url: str) -> dict[str, str]:
    """The environment of a Copilot CLI that asks the server at *url* and needs no login."""
    return {
        "HOME": str(_made(folder / "copilot")),
        "COPILOT_PROVIDER_BASE_URL": f"{url}/v1",
        "COPILOT_PROVIDER_API_KEY": DUMMY_KEY,
        "COPILOT_OFFLINE": "true",
    }


def _write_json(path: Path, value: object) -> None:
    _made(path.parent)
    path.write_text(json.dumps(value, indent=1))


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
