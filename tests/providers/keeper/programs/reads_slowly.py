"""Says "ready", then reads stdin to its end in small reads, and prints the size and the SHA-256 of each line.

Usage: reads_slowly.py [PAUSE_S]. With a pause it sleeps that long before the first read.
"""

import hashlib
import io
import sys
import time

print("ready", flush=True)
time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 0)
digest, size = hashlib.sha256(), 0
stdin = sys.stdin.buffer
assert isinstance(stdin, io.BufferedReader)
while data := stdin.read1(10_000):
    *ended, rest = data.split(b"\n")
    for piece in ended:
        digest.update(piece)
        print(size + len(piece), digest.hexdigest(), flush=True)
        digest, size = hashlib.sha256(), 0
    digest.update(rest)
    size += len(rest)
print("left", size, flush=True)
