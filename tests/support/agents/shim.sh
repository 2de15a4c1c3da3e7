# A launcher: the program that matters is its child, and the launcher forwards nothing.
sh -c 'echo "{\"type\":\"system\",\"subtype\":\"init\",\"session_id\":\"sess-1\"}"; exec sleep 300'
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}'
