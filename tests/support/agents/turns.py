"""Notes in its workspace when each turn ran and what it resumed; overlapping lines would mean two writers."""

import json
import sys
import time

resumed = ([a.partition("=")[2] for a in sys.argv[1:] if a.startswith("--resume=")] or ["none"])[0]
began = time.monotonic()
print(json.dumps({"type": "system", "subtype": "init", "session_id": "prov-1"}), flush=True)
time.sleep(float(sys.stdin.read() or 0))
with open("turns.log", "a") as log:
    log.write(f"{resumed} {began:.3f} {time.monotonic():.3f}\n")
print(
    json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": resumed, "session_id": "prov-1"})
)
