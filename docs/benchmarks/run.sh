#!/usr/bin/env bash
# The run behind docs/benchmarks.md: everything, on an otherwise idle machine.
#   docs/benchmarks/run.sh [FOLDER [PART]...]
# The default is all parts into target/benchmarks/DATE, which takes 40 minutes on 2 cores.
# Parts: bench sizes latency replay presets programs memory rust remote instructions fairness (memory judges
# the peaks of the programs, too, if their files are in the folder) Writes to the folder: raw JSON, the commit
# that was built, Markdown tables, pages with plots, tables.md (what page.py makes of all that), and
# for-docs/, which holds what docs/ keeps of a run (pack.py). First it builds Hakmem, the peers
# (benches/peers) and the Rust programs (benches/rust-programs), which takes ten minutes more the first time.
# QUICK=1 runs each thing once or twice, to see that all works; its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-target/benchmarks/$(date +%F)}
parts=("${@:2}")
all=(bench sizes latency replay presets programs memory rust remote instructions fairness)
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
    [[ " ${all[*]} " == *" $part "* ]] || { echo "$part: not one of ${all[*]}" >&2; exit 2; }
done
mkdir -p "$out"
# The build that all figures are of; "-dirty" where there are changes that no commit has.
git describe --always --dirty --abbrev=10 >"$out/commit.txt"
# Clocks, as the parts see them, must not depend on who runs this.
export PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# One by one: built together they would share features of their dependencies, and the command would build the
# library anew.
cargo build --release -p hakmem-cli
cargo build --release -p hakmem-capi
hakmem=$target/release/hakmem
benches/peers/build.sh "$target/peer-libraries"
peers=(--peers "$target/peer-libraries")
[[ " ${parts[*]} " != *" rust "* ]] || benches/rust-programs/build.sh "$target/linked-programs"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# "N" or, for a quick try, 1; and whether a round comes before that does not count.
rounds() { if [ -n "${QUICK:-}" ]; then echo --rounds 1 --warmups 0; else echo --rounds "$1" --warmups "$2"; fi; }

# A failed allocator is a row of the result, and no reason to stop; anything else is.
run() {
    local status=0
    "$hakmem" "$@" || status=$?
    [ "$status" -le 1 ] || exit "$status"
}
# NAME COMMAND...: a command of the lab, with all peers.
measure() {
    run "$2" "${peers[@]}" --json "$out/$1.json" --markdown "$out/$1.md" "${@:3}" >/dev/null
}
# NAME PROGRAM ARGS...: what a program prints must not depend on when it runs, or it could not be compared.
ab() {
    local name=$1
    shift
    # shellcheck disable=SC2046
    measure "ab-$name" ab $(rounds 10 1) -- "$@"
}

part_bench() {
    # shellcheck disable=SC2046
    measure bench bench $(rounds 10 0) \
        lifo fifo random-order interleaved mixed random-mixed random-mixed:origins random-mixed:large-set \
        larson larson:churn larson:oversubscribed producer-consumer producer-consumer:one-to-many \
        producer-consumer:many-to-one asymmetric burst burst:random realloc-growth large server thread-churn fork-storm
    run report "$out/bench.json" --report "$out/bench" >/dev/null
    # The page has the JSON beside it; one copy is enough here.
    rm -f "$out/bench/experiment.json"
}

part_sizes() {
    local sizes=()
    for size in 32k 64k 128k 256k 512k 1m 2m 4m 16m 64m 128m 512m; do sizes+=("one-size:$size" "one-size:grow-$size"); done
    # shellcheck disable=SC2046
    measure sizes bench $(rounds 3 0) "${sizes[@]}"
}

# The targets: what these are about hardly varies from run to run. That one is missed is a result, and no
# reason to stop.
part_memory() {
    local programs=() file
    # The lab makes its file at the start and fills it at the end.
    for file in "$out"/ab-*.json; do [ ! -s "$file" ] || programs+=("$file"); done
    [ ${#programs[@]} -eq 0 ] || programs=(--programs "${programs[@]}")
    # shellcheck disable=SC2046
    measure memory memory $(rounds 3 0) "${programs[@]}"
    run report "$out/memory.json" --report "$out/memory" >/dev/null
    rm -f "$out/memory/experiment.json"
}

part_latency() {
    # shellcheck disable=SC2046
    measure latency bench $(rounds 3 0) --latency --set iterations=5000000 --set requests=100000 random-mixed server
}

# shellcheck disable=SC2046
part_replay() { measure replay replay $(rounds 5 0) benches/traces/*.trace; }

# The defaults, the first column, are the preset `balanced`.
part_presets() {
    # shellcheck disable=SC2046
    run bench $(rounds 5 0) --preset throughput --preset memory --preset latency \
        random-mixed larson large server burst oscillation idle-return idle-return:keep-50 drift thread-cost:seven \
        --json "$out/presets.json" --markdown "$out/presets.md" >/dev/null
}

part_programs() {
    seq 1 100000 | awk '{print "{\"id\":" $1 ",\"name\":\"n" $1 "\",\"tags\":[\"a\",\"b" $1 % 97 "\"]}"}' >"$work/lines.json"
    awk 'BEGIN { for (i = 0; i < 150; i++) printf "#include <stddef.h>\nint f%d(int *a, size_t n) { int s = 0; for (size_t i = 0; i < n; i++) s += a[i] * %d; return s; }\n", i, i }' >"$work/many.c"
    awk 'BEGIN { print "#include <map>\n#include <string>\n#include <vector>"; for (i = 0; i < 5; i++) printf "struct T%d { int v; bool operator<(const T%d &o) const { return v < o.v; } };\nint f%d(std::map<T%d, std::vector<std::string>> &m) { m[T%d{%d}].push_back(\"x\"); int n = 0; for (auto &[k, v] : m) n += k.v + v.size(); return n; }\n", i, i, i, i, i, i }' >"$work/many.cc"
    sed "s/range(800)/range(30000)/" benches/traces/python-json.py >"$work/app.py"
    awk 'BEGIN { print "%!PS\n/Times-Roman findfont 11 scalefont setfont"; for (p = 0; p < 40; p++) { for (l = 0; l < 60; l++) printf "40 %d moveto (Page %d, line %d: the quick brown fox jumps over the lazy dog) show\nnewpath %d %d %d 0 360 arc stroke\n", 760 - 12 * l, p, l, 100 + 7 * l, 400 + p, 5 + l; print "showpage" } }' >"$work/pages.ps"
    clang++ -std=c++17 -g -O0 -c -o "$work/many.o" "$work/many.cc"
    # A history that stays as it is when the project goes on.
    local early
    early=$(git rev-list --reverse --first-parent HEAD | sed -n 40p)

    PYTHONMALLOC=malloc ab python "$(python3 -c 'import sys; print(sys.executable)')" "$work/app.py"
    ab redis docs/benchmarks/redis.sh 60000
    ab sqlite sqlite3 :memory: "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<300000) SELECT count(*), sum(length(y)) FROM (SELECT printf('%08d-%s', x, hex(x*7919)) y FROM c ORDER BY y)"
    ab gcc gcc -O2 -c -o /dev/null "$work/many.c"
    ab clang clang++ -std=c++17 -O1 -c -o /dev/null "$work/many.cc"
    ab node node -e 'const m=new Map();for(let i=0;i<300000;i++)m.set("k"+i,{a:[i]});let s=0;for(const v of m.values())s+=v.a[0];console.log(s)'
    ab xz xz -T2 -2 -k -c "$work/lines.json"
    ab jq jq -s 'map(select(.id % 3 == 0) | .name) | length' "$work/lines.json"
    ab perl perl -e 'my %h; $h{"key$_"} = "value" x ($_ % 7) for 1..200000; my $n = 0; $n += length $h{$_} for sort keys %h; print "$n\n"'
    ab git git log -p --stat --format=%H "${early:-HEAD}"
    ab ghostscript gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=pdfwrite -sOutputFile=/dev/null "$work/pages.ps"
    ab gdb gdb -nx -batch -ex 'info functions push_back' -ex 'info types basic_string' "$work/many.o"
}

part_rust() {
    local linked allocator program
    for program in json maps server ast; do
        linked=()
        for allocator in glibc hakmem jemalloc mimalloc2 mimalloc3 rusty_alloc snmalloc tcmalloc; do
            linked+=("$allocator=$target/linked-programs/$program-$allocator")
        done
        # shellcheck disable=SC2046
        run ab $(rounds 10 0) --linked "$(IFS=, && echo "${linked[*]}")" \
            --json "$out/rust-$program.json" --markdown "$out/rust-$program.md" >/dev/null
    done
}

part_remote() {
    local goes=7 name library
    [ -z "${QUICK:-}" ] || goes=1
    cc -O2 -pthread -o "$work/remote-free" docs/benchmarks/remote-free.c
    # The same allocators as everywhere.
    "$hakmem" ab --rounds 1 --warmups 0 "${peers[@]}" --json "$work/true.json" -- true >/dev/null
    for ((go = 0; go < goes; go++)); do
        jq -r '.subjects[] | [.name, .library // ""] | join(" ")' "$work/true.json" | shuf |
            while read -r name library; do
                LD_PRELOAD=$library "$work/remote-free" 11 | jq -c --arg name "$name" --argjson go "$go" '{subject: $name, go: $go} + .'
            done
    done >"$work/remote-free.jsonl"
    # In the order of the other reports.
    jq --slurpfile order <(jq -c '[.subjects[].name]' "$work/true.json") -s \
        'sort_by(.subject as $name | ($order[0] | index($name)), .go)' "$work/remote-free.jsonl" >"$out/remote-free.json"
}

part_instructions() {
    local only=()
    [ -z "${QUICK:-}" ] || only=(--only hit-64)
    # Its exit status tells of the budgets, which are CI's.
    run instructions "${only[@]}" "${peers[@]}" --json "$out/instructions.json" >"$out/instructions.txt"
}

# An allocator against itself: the harness must find nothing.
part_fairness() {
    local tries=20
    [ -z "${QUICK:-}" ] || tries=1
    {
        run ab --allocators hakmem --fairness "$tries" -- env PYTHONMALLOC=malloc python3 benches/traces/python-json.py
        run ab --allocators hakmem --fairness "$tries" -- sqlite3 :memory: \
            "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<60000) SELECT count(DISTINCT hex(x)) FROM c"
    } >"$out/fairness.txt"
}

for part in "${parts[@]}"; do
    start=$SECONDS
    "part_$part"
    echo "$part: $((SECONDS - start)) s"
done
docs/benchmarks/page.py "$out" >"$out/tables.md"
docs/benchmarks/pack.py "$out" "$out/for-docs"
echo "$out/tables.md; to publish the run copy $out/for-docs/* to docs/benchmarks/"
