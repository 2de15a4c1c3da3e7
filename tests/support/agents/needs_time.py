"""On SIGTERM it needs two seconds to leave things in order; a second SIGTERM changes nothing."""

import os
import signal
import sys
import time


def stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(2.0)
    with open("clean.txt", "w") as file:
        file.write("clean\n")
    sys.exit(0)


signal.signal(signal.SIGTERM, stop)
os.write(1, b'{"type":"system","subtype":"init","session_id":"sess-1"}\n')
text = b'{"type":"assistant","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"ready"}]}}\n'
os.write(1, text)
while True:
    time.sleep(0.1)
