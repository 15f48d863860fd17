#!/usr/bin/env bash
# How allocators do with 1 to as many threads as there are processors: the built-in workloads that have
# threads, by `hakmem bench`, with as much work for each thread (asymmetric, one-to-many and many-to-one: for
# all together).
#
#   docs/benchmarks/scaling.sh FOLDER [OPTION of hakmem bench]...     (paths absolute; 5 minutes on 16 cores)
#
# Example: docs/benchmarks/scaling.sh /tmp/scaling --peers PEERS
#
# ROUNDS=3 rounds. THREADS="1 2 4": with so many threads. HAKMEM=/path/to/hakmem LIB=/path/to/libhakmem.so: made
# elsewhere, for a machine that has no Rust; nothing is built then. Memory is not made equal before each run:
# these workloads use little.
set -euo pipefail
. "$(dirname "$0")/made.sh"
if [ -z "${THREADS:-}" ]; then
    THREADS=1
    for ((n = 2; n <= $(nproc); n *= 2)); do THREADS+=" $n"; done
fi

# NAME WORKLOAD SETTING...: of as many threads as `threads` says.
measure() {
    local name=$1 workload=$2 setting settings=()
    shift 2
    for setting; do settings+=(--set "$setting"); done
    "$hakmem" bench "$workload" "${settings[@]}" --lib "$library" --rounds "${ROUNDS:-3}" --warmups 0 \
        --no-equal-memory --timeout 60s "${options[@]}" --json "$out/$name-$threads.json" >/dev/null ||
        echo "$name with $threads threads: failed" >&2
}

for threads in $THREADS; do
    half=$((threads > 1 ? threads / 2 : 1))
    measure larson larson threads=$threads rounds=10000
    measure larson-churn larson threads=$threads rounds=5000 handovers=1000
    measure server server threads=$threads requests=$((60000 * threads))
    measure pairs producer-consumer producers=$half consumers=$half blocks=$((1500000 * half))
    measure one-to-many producer-consumer producers=1 consumers=$threads blocks=2000000
    measure many-to-one producer-consumer producers=$threads consumers=1 blocks=2000000
    measure asymmetric asymmetric threads=$threads rounds=4
    measure thread-churn thread-churn at_once=$threads threads=$((3000 * threads))
done
docs/benchmarks/scaling.py "$out"
