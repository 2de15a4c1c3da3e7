"""A small MCP server on stdio. Asked for its tools, it leaves a digest of its secret in the file it is given.

The tool ``tell`` tells nothing; ``ask`` asks whoever uses the client for a colour, and tells the client's answer.
"""

import hashlib
import json
import os
import sys
from typing import Any

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "tell", "description": "Tells nothing.", "inputSchema": NOTHING},
    {"name": "ask", "description": "Asks for a colour.", "inputSchema": NOTHING},
]
COLOUR = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}


def say(**message: Any) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def ask() -> str:
    """The client's answer to the question, as JSON."""
    say(id="colour", method="elicitation/create", params={"message": "Which colour?", "requestedSchema": COLOUR})
    for line in sys.stdin:
        told = json.loads(line)
        if told.get("id") == "colour" and "method" not in told:
            return json.dumps(told.get("result") or told.get("error"))
    sys.exit(0)


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
        return {"tools": TOOLS}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": ask()}] if params["name"] == "ask" else []}
    return {}


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and "method" in asked:
        say(id=asked["id"], result=answer(asked["method"], asked.get("params") or {}))
