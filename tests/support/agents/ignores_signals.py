"""Parent and worker both ignore polite signals, and tick."""

import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
worker = os.fork()
if worker:
    os.write(1, b'{"type":"system","subtype":"init","session_id":"sess-1"}\n')
for tick in range(1500):
    if worker:
        text = b'{"type":"assistant","message":{"id":"m%d","role":"assistant","content":[{"type":"text","text":"tick"}]}}\n'
        os.write(1, text % tick)
    time.sleep(0.2)
