"""Writes MEBIBYTES of numbered lines to a stream, then a last line on stdout. Usage: floods.py stdout|stderr MEBIBYTES."""

import os
import sys

target, left = (1 if sys.argv[1] == "stdout" else 2), int(sys.argv[2]) << 20
number = 0
while left > 0:
    block = b"".join(b"line %08d of a flood that says nothing new at all\n" % (number + i) for i in range(1000))
    number += 1000
    view = memoryview(block)[:left]
    left -= len(view)
    while view:
        view = view[os.write(target, view) :]
os.write(1, b"done\n")
