#!/usr/bin/env bash
# The run behind docs/benchmarks.md: everything, on an otherwise idle machine (about 25 minutes on 2 cores).
#   docs/benchmarks/run.sh [FOLDER]        default: docs/benchmarks/DATE
# Writes raw JSON, Markdown tables and pages with plots there.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-docs/benchmarks/$(date +%F)}
mkdir -p "$out"
cargo build --release -p hakmem-cli -p hakmem-capi
hakmem=${CARGO_TARGET_DIR:-target}/release/hakmem

# A failed allocator is a row of the result, and no reason to stop; anything else is.
measure() {
    local name=$1
    shift
    local status=0
    "$hakmem" "$@" --json "$out/$name.json" --markdown "$out/$name.md" --report "$out/$name" || status=$?
    [ "$status" -le 1 ] || exit "$status"
    # The page has the JSON beside it; one copy is enough here.
    rm -f "$out/$name/experiment.json"
}

# What a program prints must not depend on when it runs, or it could not be compared.
ab() {
    local name=$1
    shift
    local status=0
    "$hakmem" ab --json "$out/ab-$name.json" --markdown "$out/ab-$name.md" -- "$@" >/dev/null || status=$?
    [ "$status" -le 1 ] || exit "$status"
}

measure bench bench \
    lifo fifo random-order interleaved mixed random-mixed random-mixed:origins random-mixed:large-set \
    larson larson:churn larson:oversubscribed producer-consumer producer-consumer:one-to-many \
    producer-consumer:many-to-one asymmetric burst burst:random realloc-growth large server thread-churn fork-storm
# What these are about hardly varies from run to run.
measure memory bench --rounds 5 \
    drift oscillation dead-thread thread-cost thread-cost:seven idle-return idle-return:other-parked \
    idle-return:other-busy idle-return:other-exited idle-return:keep-100 idle-return:keep-50
measure latency bench --rounds 5 --latency --set iterations=5000000 --set requests=100000 random-mixed server
measure replay replay benches/traces/*.trace
measure presets bench --profile throughput --profile memory --profile latency random-mixed larson large server

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONHASHSEED=0
seq 1 200000 | awk '{print "{\"id\":" $1 ",\"name\":\"n" $1 "\",\"tags\":[\"a\",\"b" $1 % 97 "\"]}"}' >"$work/lines.json"
awk 'BEGIN { for (i = 0; i < 400; i++) printf "#include <stddef.h>\nint f%d(int *a, size_t n) { int s = 0; for (size_t i = 0; i < n; i++) s += a[i] * %d; return s; }\n", i, i }' >"$work/many.c"
sed "s/range(800)/range(40000)/" benches/traces/python-json.py >"$work/app.py"
PYTHONMALLOC=malloc ab python python3 "$work/app.py"
ab sqlite sqlite3 :memory: "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<300000) SELECT count(*), sum(length(y)) FROM (SELECT printf('%08d-%s', x, hex(x*7919)) y FROM c ORDER BY y)"
ab jq jq -s 'map(select(.id % 3 == 0) | .name) | length' "$work/lines.json"
ab gcc gcc -O2 -c -o /dev/null "$work/many.c"
ab xz xz -T2 -3 -k -c "$work/lines.json"
ab node node -e 'const m=new Map();for(let i=0;i<300000;i++)m.set("k"+i,{a:[i]});let s=0;for(const v of m.values())s+=v.a[0];console.log(s)'
ab perl perl -e 'my %h; $h{"key$_"} = "value" x ($_ % 7) for 1..300000; my $n = 0; $n += length $h{$_} for sort keys %h; print "$n\n"'
ab git git -C . log --stat --format=%H
"$hakmem" instructions --json "$out/instructions.json" >"$out/instructions.txt"

# An allocator against itself: the harness must find nothing.
{
    "$hakmem" ab --allocators hakmem --fairness 20 -- env PYTHONMALLOC=malloc python3 benches/traces/python-json.py || true
    "$hakmem" ab --allocators hakmem --fairness 20 -- sqlite3 :memory: \
        "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<100000) SELECT count(DISTINCT hex(x)) FROM c" || true
} >"$out/fairness.txt"
