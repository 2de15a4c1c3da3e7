"""One line of as many MiB as the prompt says, then a short and valid result."""

import os
import sys


def put(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


put(b'{"type":"system","subtype":"init","session_id":"sess-1"}\n{"type":"user","blob":"')
for _ in range(int(sys.stdin.read())):
    put(b"y" * (1 << 20))
put(b'"}\n{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}\n')
