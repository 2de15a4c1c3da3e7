# Asked to linger it is done and has told so, but stays, deaf to SIGTERM. Any other prompt names a file to be made.
trap '' TERM
prompt=$(cat)
echo '{"type":"system","subtype":"init","session_id":"sess-1"}'
[ "$prompt" = linger ] || touch "$prompt"
echo '{"type":"result","subtype":"success","is_error":false,"result":"done","session_id":"sess-1"}'
[ "$prompt" != linger ] || exec sleep 600
