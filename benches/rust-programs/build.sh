#!/usr/bin/env bash
# Builds the Rust programs with each allocator built in (about five minutes on 2 cores; needs C, C++, cmake):
#   benches/rust-programs/build.sh FOLDER      writes PROGRAM-ALLOCATOR there; then, for example:
#              hakmem ab --linked glibc=FOLDER/json-glibc,hakmem=FOLDER/json-hakmem
#   benches/rust-programs/build.sh --check     only checks them, with the allocators that are Rust
set -euo pipefail
[ $# = 1 ] || { sed -n '2,5p' "$0"; exit 2; }
cd "$(dirname "$0")"
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/../../target}/rust-programs
if [ "$1" = --check ]; then
    cargo fmt --check
    for features in "" hakmem rusty_alloc; do cargo clippy --locked --quiet --features "$features" -- -D warnings; done
    exit
fi
out=$OLDPWD/$1
[[ $1 == /* ]] && out=$1
mkdir -p "$out"
for allocator in glibc hakmem jemalloc mimalloc2 mimalloc3 rusty_alloc snmalloc tcmalloc; do
    features=$allocator
    [ "$allocator" = glibc ] && features=
    # The crate makes mimalloc without what its own project adds for a static library, and so that it cannot
    # inline its own functions.
    flags=
    [[ $allocator == mimalloc* ]] && flags="-fvisibility=hidden -fno-semantic-interposition -fno-builtin-malloc"
    CFLAGS=$flags cargo build --release --locked --quiet --features "$features"
    for program in json maps server ast; do
        cp "$CARGO_TARGET_DIR/release/$program" "$out/$program-$allocator"
    done
    echo "$allocator: done"
done
