"""A small MCP server on stdio with one tool. Asked for its tools, it leaves a digest of its secret in the file it is given."""

import hashlib
import json
import os
import sys
from typing import Any

TOOL = {"name": "tell", "description": "Tells nothing.", "inputSchema": {"type": "object", "properties": {}}}


def answer(method: str, params: dict[str, Any]) -> Any:
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tiny", "version": "1"},
        }
    if method == "tools/list":
        with open(sys.argv[1], "w") as file:
            file.write(hashlib.sha256(os.environ.get("TINY_TOKEN", "").encode()).hexdigest())
        return {"tools": [TOOL]}
    return {"content": []} if method == "tools/call" else {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and "method" in asked:
        told = {"jsonrpc": "2.0", "id": asked["id"], "result": answer(asked["method"], asked.get("params") or {})}
        print(json.dumps(told), flush=True)
