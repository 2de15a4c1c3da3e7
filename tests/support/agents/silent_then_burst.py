"""Says nothing for as many seconds as the prompt says, then the whole run in one write."""

import json
import sys
import time

time.sleep(float(sys.stdin.read()))
rows: list[dict[str, object]] = [{"type": "system", "subtype": "init", "session_id": "sess-1"}]
for number in range(298):
    content = [{"type": "text", "text": str(number)}]
    rows.append({"type": "assistant", "message": {"id": f"m{number}", "role": "assistant", "content": content}})
rows.append({"type": "result", "subtype": "success", "is_error": False, "result": "297", "session_id": "sess-1"})
sys.stdout.write("".join(json.dumps(row) + "\n" for row in rows))
