# The work is done and told, but the process stays.
echo '{"type":"system","subtype":"init","session_id":"sess-1"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}'
sleep 600
