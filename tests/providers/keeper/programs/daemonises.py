"""Leaves a daemon (double fork, own session, own stdio) and ends by itself at once; the daemon says its pid first."""

import os
import signal
import sys
import time

ready, ready_end = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if "stubborn" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"daemon %d\n" % os.getpid())
        null = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(null, target)
        os.write(ready_end, b"r")
        time.sleep(300)
    os._exit(0)
os.read(ready, 1)
