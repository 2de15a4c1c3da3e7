"""Two MiB of stderr before the first event on stdout."""

import os

left = 2 * 1024 * 1024
while left > 0:
    left -= os.write(2, b"helper: still loading plugin metadata, please wait ........\n")
os.write(1, b'{"type":"system","subtype":"init","session_id":"sess-1"}\n')
os.write(1, b'{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"sess-1"}\n')
