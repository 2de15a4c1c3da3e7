# A first turn that works; a resume that says on stderr that there is nothing to resume, and exits 0.
if [ $# -gt 0 ]; then echo "NotFoundError: Session not found: $2" >&2; exit 0; fi
echo '{"type":"system","subtype":"init","session_id":"ses_missing"}'
echo '{"type":"result","subtype":"success","is_error":false,"result":"ok","session_id":"ses_missing"}'
