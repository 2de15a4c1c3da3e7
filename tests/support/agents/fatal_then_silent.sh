# A fatal error on stderr, and then nothing for ever.
echo '{"type":"system","subtype":"init","session_id":"sess-1"}'
echo "APICallError: Monthly usage limit reached" >&2
exec sleep 600
