#!/bin/sh -e
# A server with three threads under a short load; the server alone is recorded. HAKMEM is the command.
socket=$(mktemp -u)
${HAKMEM:-hakmem} record -o "$1" -- redis-server --port 0 --unixsocket "$socket" --save '' --loglevel warning \
    --io-threads 3 --io-threads-do-reads yes >/dev/null &
while ! redis-cli -s "$socket" ping >/dev/null 2>&1; do sleep 0.1; done
redis-benchmark -s "$socket" -q -n 4000 -c 20 -r 2000 -d 100 -t set,get,lpush,lpop,hset,zadd >/dev/null
redis-cli -s "$socket" shutdown nosave
wait $!
