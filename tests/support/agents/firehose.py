"""As many medium events as the prompt says, as fast as they can be written."""

import sys

pad = "p" * 400
sys.stdout.write('{"type":"system","subtype":"init","session_id":"sess-1"}\n')
for number in range(int(sys.stdin.read())):
    content = f'[{{"type":"text","text":"{pad}"}}]'
    message = f'{{"id":"m{number}","role":"assistant","content":{content}}}'
    sys.stdout.write(f'{{"type":"assistant","message":{message}}}\n')
sys.stdout.write('{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}\n')
