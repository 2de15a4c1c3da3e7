"""As many medium events as the prompt says, as fast as they can be written."""

import sys

pad = "p" * 400
sys.stdout.write('{"type":"system","subtype":"init","session_id":"sess-1"}\n')
for number in range(int(sys.stdin.read())):
    content = '[{"type":"text","text":"%s"}]' % pad
    message = '{"id":"m%d","role":"assistant","content":%s}' % (number, content)
    sys.stdout.write('{"type":"assistant","message":%s}\n' % message)
sys.stdout.write('{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}\n')
