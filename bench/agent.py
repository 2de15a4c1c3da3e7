"""The agent of the measurements: prints Claude-like partial messages, one ``write`` a line, as it is told.

Its orders are one JSON object, on stdin or as its argument:

``events``      lines to print; 0 for none
``gate``        path of a FIFO that is opened first: all agents begin when somebody opens its other end
``us``          pause between two lines; 0 prints as fast as it can
``phase_us``    pause before the first line, so that several agents do not tick together
``text_bytes``  length of the text of a line, beyond the stamp it begins with
``apart``       every other line is thinking: neighbours that no reader is given in one message
``hold_s``      seconds to stay before the end, after everything was printed
``family``      also start a child that sleeps; the first text names both process ids

The text of a line begins with the monotonic time in nanoseconds at which it was printed. The first line's text is
``ready`` and is printed before the gate.
"""

import json
import os
import sys
import time

HEAD = [
    '{"type":"system","subtype":"init","cwd":"/tmp","session_id":"f3b1c8de-7d3a-4c55-9b7e-0c6e1a2b3c4d","tools":[]}',
    '{"type":"stream_event","event":{"type":"message_start","message":{"id":"msg_01XyZbench00000000000001","role":"assistant"}},'
    '"session_id":"f3b1c8de-7d3a-4c55-9b7e-0c6e1a2b3c4d","parent_tool_use_id":null}',
]
LINE = (
    '{"type":"stream_event","event":{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"%s"}},'
    '"session_id":"f3b1c8de-7d3a-4c55-9b7e-0c6e1a2b3c4d","parent_tool_use_id":null,"uuid":"0d0f3c52-8a5e-4f6e-9a55-2f7b6f1f0a11"}\n'
)
THINKING = LINE.replace("text_delta", "thinking_delta").replace('"text":', '"thinking":')
TAIL = (
    '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":'
    '"f3b1c8de-7d3a-4c55-9b7e-0c6e1a2b3c4d","usage":{"input_tokens":12,"output_tokens":34},"total_cost_usd":0.01}\n'
)


def line(text: str) -> bytes:
    """One partial message, as the agent prints it."""
    return (LINE % text).encode()


def head() -> bytes:
    """What comes before the first partial message."""
    return "".join(f"{each}\n" for each in HEAD).encode()


def _main() -> None:
    orders = json.loads(sys.argv[1] if len(sys.argv) > 1 else sys.stdin.buffer.read())
    write, now = os.write, time.monotonic_ns
    pids = str(os.getpid())
    if orders.get("family"):
        pids += f" {os.posix_spawn('/bin/sleep', ['sleep', '300'], {})}"
    write(1, head() + line(f"ready {pids}"))
    if gate := orders.get("gate"):
        with open(gate, "rb"):
            pass
    text = "%019d " + "x" * orders.get("text_bytes", 40)
    patterns = [LINE % text, (THINKING if orders.get("apart") else LINE) % text]
    pause_ns = orders.get("us", 0) * 1000
    due = now() + orders.get("phase_us", 0) * 1000
    for number in range(orders["events"]):
        if pause_ns:
            due += pause_ns
            if (ahead := due - now()) > 0:
                time.sleep(ahead / 1e9)
        write(1, (patterns[number & 1] % now()).encode())
    time.sleep(orders.get("hold_s", 0))
    write(1, TAIL.encode())


if __name__ == "__main__":
    _main()
