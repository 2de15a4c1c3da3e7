"""Homes for the vendors' CLIs that point them at the scripted model and at nothing else.

Each function makes the folder and gives the environment to run the CLI in. No other variable is needed; nothing of the
user's own configuration is read, and the CLIs' own traffic (telemetry, updates, plugins) is off.
"""

from __future__ import annotations

from pathlib import Path

DUMMY_KEY = "dummy-key-of-no-account"

_CODEX_CONFIG = """\
model = "mock-model"
model_provider = "mock"
check_for_update_on_startup = false

[model_providers.mock]
name = "mock"
base_url = "{url}/v1"
env_key = "MOCK_API_KEY"
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
        "MOCK_API_KEY": DUMMY_KEY,
        "TMPDIR": str(temporary),  # every sandboxed command fails where CODEX_HOME lies below it
    }


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
