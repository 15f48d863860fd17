#!/bin/sh -e
# A redis server and its load generator, which pipelines 16 requests, as one program for `hakmem ab`: both run
# under the allocator that is preloaded. They meet on a socket of their own and leave nothing behind. Prints
# the same in every run.
folder=$(mktemp -d)
socket=$folder/socket
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
redis-server --port 0 --unixsocket "$socket" --save '' --appendonly no --loglevel warning --dir "$folder" >"$folder/log" 2>&1 &
server=$!
tries=0
until [ -S "$socket" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 5000 ] || { cat "$folder/log" >&2; exit 1; }
    sleep 0.002
done
redis-benchmark -s "$socket" -q -P 16 -c 20 -n "${1:-60000}" -r 20000 -d 100 -t set,get,lpush,hset,zadd >"$folder/figures" 2>&1
[ "$(grep -c 'requests per second' "$folder/figures")" -eq 5 ] || { cat "$folder/figures" >&2; exit 1; }
redis-cli -s "$socket" shutdown nosave
wait "$server"
server=
echo done
