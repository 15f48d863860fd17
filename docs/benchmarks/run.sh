#!/usr/bin/env bash
# The run behind docs/benchmarks.md: everything, on an otherwise idle machine.
#   docs/benchmarks/run.sh [FOLDER [PART]...]
# The default is all parts into target/benchmarks/DATE, which takes 50 minutes on 2 cores.
# Parts: bench sizes latency replay presets programs memory rust remote instructions fairness (memory judges
# the peaks of the programs, too, if their files are in the folder) Writes to the folder: raw JSON, the commit
# that was built, Markdown tables, pages with plots, tables.md (what page.py makes of all that), and
# for-docs/, which holds what docs/ keeps of a run (pack.py). First it builds Hakmem, the peers
# (benches/peers) and the Rust programs (benches/rust-programs), which takes ten minutes more the first time.
# QUICK=1 runs each thing once or twice, to see that all works; its figures mean nothing.
set -euo pipefail
cd "$(dirname "$0")/../.."
. docs/benchmarks/programs.sh
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
# NAME PROGRAM ARGS...: a program of programs.sh.
program() {
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
    prepare_programs "$work"
    each_program "$work"
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
