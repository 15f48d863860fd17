#!/usr/bin/env bash
# What a heap profile costs: the real programs of ../benchmarks.md with Hakmem, one profiled from its start
# beside one that is not, by `hakmem ab`; their processor time and peak memory, and the geometric means.
#
#   docs/benchmarks/armed.sh FOLDER [PROGRAM]...    10 rounds; all programs take 10 minutes on 2 cores
#   docs/benchmarks/armed.py FOLDER                 the table again, of all programs measured into FOLDER so far
#
# ROUNDS=3: fewer rounds. LIB=/path/to/libhakmem.so: another build of the library. RATE=64K: mean bytes between
# samples. INSTRUCTIONS=1: counts instructions under valgrind instead, once, which hardly depends on the
# machine; programs of several processes are left out. STACKS=1 RATE=16K: instead, once, how many of the
# samples have whole call stacks. HARDENED=on, or its parts: hardened mode beside the default instead of a
# profile; then "armed" in the tables means hardened.
#
# On an otherwise idle machine. A program that is missing (see programs.sh) is left out, and said to be.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,16s/^# \{0,1\}//p' "$0" >&2; exit 2; }
out=$(realpath -m "$1")
chosen=" ${*:2} "
cd "$(dirname "$0")/../.."
. docs/benchmarks/programs.sh
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cargo build --quiet --release -p hakmem-cli
cargo build --quiet --release -p hakmem-capi
hakmem=$target/release/hakmem
lib=${LIB:-$target/release/libhakmem.so}
rate=$(numfmt --from=iec "${RATE:-512K}")
export PYTHONHASHSEED=0 LC_ALL=C.UTF-8 TZ=UTC
mkdir -p "$out"
git describe --always --dirty --abbrev=10 >"$out/commit.txt"
[ -z "${LIB:-}" ] || echo "library $LIB" >"$out/commit.txt"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# SETTING COMMAND...: the instructions of all threads of the command.
instructions() {
    env LD_PRELOAD="$lib" "$1" valgrind --tool=callgrind --callgrind-out-file=/dev/null "${@:2}" 2>&1 >/dev/null |
        sed -n 's/.*Collected : //p'
}

# NAME COMMAND...: samples, those with whole stacks, and those whose stacks come to the start of the program or
# of a thread, of all processes.
stacks() {
    local file
    env LD_PRELOAD="$lib" HAKMEM_PROFILE="$work/profiles/p" HAKMEM_PROFILE_RATE="$rate" "${@:2}" >/dev/null 2>&1 || true
    for file in "$work"/profiles/*.hakprof; do "$hakmem" profile "$file" --format json; done |
        jq -c --arg name "$1" -s '{name: $name, samples: (map(.stacks.samples) | add), whole: (map(.stacks.whole) | add), to_start: (map(.stacks.to_start) | add)}' >"$out/$1.stacks"
}

names=()
# NAME COMMAND...
program() {
    local name=$1 first=$2 armed unarmed
    shift
    names+=("$name")
    [ "$chosen" = "  " ] || [[ "$chosen" == *" $name "* ]] || return 0
    # The first word that is a program, after `env` and its settings.
    [ "$first" != env ] || first=$3
    command -v "$first" >/dev/null || { echo "$name: no $first, left out" >&2; return 0; }
    case ${INSTRUCTIONS:+$name} in redis | gcc | clang | g++ | tidy | php)
        echo "$name: several processes, left out" >&2
        return 0 ;;
    esac
    mkdir "$work/profiles"
    if [ -n "${HARDENED:-}" ]; then
        if [ -n "${INSTRUCTIONS:-}" ]; then
            unarmed=$(instructions HARDENED=no "$@")
            armed=$(instructions "HAKMEM_HARDENED=$HARDENED" "$@")
            echo "{\"name\":\"$name\",\"unarmed\":$unarmed,\"armed\":$armed}" >"$out/$name.instructions"
        else
            "$hakmem" ab --lib "$lib" --rounds "${ROUNDS:-10}" --warmups 0 --env "HARDENED=$HARDENED" \
                --json "$out/$name.json" -- "$@" >/dev/null || echo "$name: see the warnings in $out/$name.json" >&2
        fi
        rm -rf "$work/profiles"
        return 0
    fi
    if [ -n "${STACKS:-}" ]; then
        stacks "$name" "$@"
    elif [ -n "${INSTRUCTIONS:-}" ]; then
        unarmed=$(instructions PROFILED=no "$@")
        # Under valgrind a program takes 50 times as long, and would write 50 times as many snapshots.
        armed=$(HAKMEM_PROFILE_RATE=$rate HAKMEM_PROFILE_INTERVAL=50000 instructions HAKMEM_PROFILE="$work/profiles/p" "$@")
        if [ -z "$armed" ] || [ -z "$unarmed" ]; then
            echo "$name: valgrind counted nothing, left out" >&2
        else
            echo "{\"name\":\"$name\",\"unarmed\":$unarmed,\"armed\":$armed}" >"$out/$name.instructions"
        fi
    else
        "$hakmem" ab --lib "$lib" --rounds "${ROUNDS:-10}" --warmups 0 \
            --env "PROFILE=$work/profiles/p,PROFILE_RATE=$rate" --json "$out/$name.json" -- "$@" >/dev/null ||
            echo "$name: see the warnings in $out/$name.json" >&2
    fi
    # A profile for each process; only that it was written counts here.
    [ -n "$(find "$work/profiles" -name '*.hakprof' -print -quit)" ] || echo "$name: no profile was written" >&2
    rm -rf "$work/profiles"
}

prepare_programs "$work"
each_program "$work"
mkdir "$work/unseen"
cd "$work/unseen"
prepare_unseen
each_unseen "$hakmem"
cd "$OLDPWD"
for name in $chosen; do
    [[ " ${names[*]} " == *" $name "* ]] || { echo "$name: not one of ${names[*]}" >&2; exit 2; }
done
docs/benchmarks/armed.py "$out"
