# A resume of an id it has forgotten: an error, and a fresh id in the output all the same.
if [ $# -gt 0 ]; then
  echo "No conversation found with session ID: $2" >&2
  echo '{"type":"system","subtype":"init","session_id":"fresh-9"}'
  exit 1
fi
echo '{"type":"system","subtype":"init","session_id":"dead-1"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"dead-1"}'
