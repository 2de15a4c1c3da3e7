# Ends after 0 to 60 ms.
echo '{"type":"system","subtype":"init","session_id":"sess-1"}'
sleep "0.0$(($$ % 7))"
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}'
