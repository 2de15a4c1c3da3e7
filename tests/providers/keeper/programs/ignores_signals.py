"""Parent and worker both ignore polite signals; each says so on stdout once it does."""

import os
import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
worker = os.fork()
os.write(1, b"worker ready\n" if worker == 0 else b"parent ready\n")
while True:
    time.sleep(60)
