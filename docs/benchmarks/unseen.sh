#!/usr/bin/env bash
# Real programs that nothing else here measures: 13 of different kinds, under every allocator that `hakmem ab`
# finds, with `hakmem ab`'s own method. 15 minutes on 2 cores, on an otherwise idle machine.
#
#   docs/benchmarks/unseen.sh FOLDER [OPTION of hakmem ab]...      (all paths absolute)
#
# Example: docs/benchmarks/unseen.sh /tmp/unseen --peers PEERS --with before=/tmp/before.so --baseline before
#
# Needs, as Debian calls them: libxml2-utils lua5.4 ruby gawk tcl graphviz z3 swi-prolog-nox g++ tidy povray
# binutils php-cli. A program that is missing is left out, and said to be. ROUNDS=6 rounds. SET=survey: 17
# others, which programs.sh names; 20 minutes with ROUNDS=3.
set -euo pipefail
cd "$(dirname "$0")/../.."
. docs/benchmarks/programs.sh
hakmem=$PWD/target/release/hakmem
[ $# -ge 1 ] || { sed -n '2,11s/^# \{0,1\}//p' docs/benchmarks/unseen.sh >&2; exit 2; }
set=${SET:-unseen}
declare -F "each_$set" >/dev/null || { echo "SET=$set: there are unseen and survey" >&2; exit 2; }
cargo build --quiet --release -p hakmem-capi -p hakmem-cli
mkdir -p "$1"
cd "$1"
shift
git -C "$OLDPWD" rev-parse HEAD >commit.txt

"prepare_$set"
options=("$@")
program() {
    local name=$1
    shift
    # The first word that is a program, after `env` and its settings.
    local program=$1
    [ "$program" != env ] || program=$3
    command -v "$program" >/dev/null || { echo "$name: no $program, left out" >&2; return; }
    "$hakmem" ab --rounds "${ROUNDS:-6}" --warmups 0 "${options[@]}" --json "$name.json" --markdown "$name.md" -- "$@" >/dev/null ||
        echo "$name: failed" >&2
    echo "$name" >&2
}
"each_$set" "$hakmem"
