#!/usr/bin/env bash
# The first run: a node with a data directory of its own, one run of the demo agent through gRPC, and nothing left after it.
# Needs `iop-node` and `iop-demo-agent` on PATH (`make run` sees to that); no key, no network.
set -euo pipefail

home=$(mktemp -d "${TMPDIR:-/tmp}/iop-first-run.XXXXXX")
node=""

finish() {
    status=$?
    trap - EXIT
    if [ -n "$node" ]; then
        kill -TERM "$node" 2>/dev/null || true
        wait "$node" || status=$?
    fi
    if [ "$status" -ne 0 ]; then
        echo "first run: it did not work (exit $status); the node's log:" >&2
        tail -n 20 "$home/node.log" >&2 || true
    fi
    rm -rf "$home"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

# A port of 0 means any free one; the node's first line tells which.
HOME="$home" iop-node serve --listen 127.0.0.1:0 --data-dir "$home/data" \
    > "$home/address" 2> "$home/node.log" &
node=$!
for _ in $(seq 100); do
    [ -s "$home/address" ] && break
    kill -0 "$node" 2>/dev/null || { wait "$node"; exit 1; }
    sleep 0.1
done
IOP_NODE=$(awk '{ print $NF }' "$home/address")
export IOP_NODE
[ -n "$IOP_NODE" ] || { echo "first run: the node did not say where it listens" >&2; exit 1; }
iop-node status --wait 10 > /dev/null

echo "\$ iop-node run --target demo-agent --activity \"say hi, and list what is here\""
iop-node run --target demo-agent --activity "say hi, and list what is here"
echo
echo "\$ iop-node ps --all"
iop-node ps --all
echo
echo "first run: a node served at $IOP_NODE, ran the demo agent, streamed its events and is stopped now; next: iop-node --help"
