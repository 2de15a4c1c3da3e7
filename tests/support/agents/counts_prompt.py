"""Tells how many bytes of prompt arrived, and by which way."""

import json
import os
import sys

argv = sum(len(os.fsencode(argument)) for argument in sys.argv[1:])
stdin = len(sys.stdin.buffer.read())
print(json.dumps({"type": "system", "subtype": "init", "session_id": "sess-1"}))
result = f"argv={argv} stdin={stdin}"
print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "session_id": "sess-1", "result": result}))
