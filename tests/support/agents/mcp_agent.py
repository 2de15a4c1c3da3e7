"""Tells what it was told of MCP servers, of each secret only a digest; the prompt may name a file to wait for first.

It takes servers from a file (``--mcp-config FILE``) and from overrides (``-c mcp_servers.NAME.KEY=VALUE``), as the vendors'
command lines do.
"""

import hashlib
import json
import os
import stat
import sys
import time
from typing import Any


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:12]


def secrets_hidden(value: Any) -> Any:
    """Every text in *value* by its digest."""
    if isinstance(value, dict):
        return {key: secrets_hidden(item) for key, item in value.items()}
    return [secrets_hidden(item) for item in value] if isinstance(value, list) else digest(str(value))


def of_file() -> dict[str, Any]:
    path = sys.argv[sys.argv.index("--mcp-config") + 1]
    mode = oct(stat.S_IMODE(os.stat(path).st_mode))
    with open(path) as file:
        return {
            "mode": mode,
            "path": path,
            "strict": "--strict-mcp-config" in sys.argv,
            "told": secrets_hidden(json.load(file)),
        }


told: dict[str, Any] = {
    "argv": sys.argv[1:],
    "env": {k: digest(v) for k, v in os.environ.items() if "TOKEN" in k or "IOP_MCP" in k},
}
if "--mcp-config" in sys.argv:
    told["file"] = of_file()
with open("/proc/self/cmdline", "rb") as file:
    told["cmdline"] = file.read().decode().split("\0")
print(json.dumps({"type": "system", "subtype": "init", "session_id": "s-mcp"}), flush=True)
time.sleep(float(sys.stdin.read() or 0))
frame = {"type": "result", "subtype": "success", "is_error": False, "session_id": "s-mcp", "result": json.dumps(told)}
print(json.dumps(frame), flush=True)
