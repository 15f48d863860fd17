#!/usr/bin/env bash
# Builds the allocators that no distribution packages as libraries to preload:
#   benches/peers/build.sh FOLDER      writes mimalloc3.so, snmalloc.so and rusty_alloc.so there; then:
#                                      hakmem bench --peers FOLDER
#   benches/peers/build.sh --check     only checks the Rust part
# It takes about a minute on 2 cores and needs C, C++, cmake and jq. Each allocator is built as its own
# project builds its release of a library to preload, from the sources that Cargo.lock names.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,5p' "$0"; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}/peers
if [ "$1" = --check ]; then
    cd "$here"
    cargo fmt --check
    exec cargo clippy --locked --quiet --target-dir "$target" -- -D warnings
fi
mkdir -p "$1" "$target"
out=$(cd "$1" && pwd)
cd "$here"

packages=$(cargo metadata --locked --format-version 1)
# The folder of a package's sources, which cargo fetched.
sources() {
    jq -er --arg name "$1" '.packages[] | select(.name == $name) | .manifest_path | rtrimstr("/Cargo.toml")' <<<"$packages"
}
# "NAME VERSION" of a package.
version() { jq -er --arg name "$1" '.packages[] | select(.name == $name) | .name + " " + .version' <<<"$packages"; }

# mimalloc: the sources, definitions and flags of the shared library in its CMakeLists.txt,
# CMAKE_BUILD_TYPE=Release. (The package leaves out a file that cmake would need.) The package's own flags,
# made for Rust programs, override nothing and are slower. On 64-bit Arm that file turns on the atomics of 2016.
[ "$(uname -m)" = aarch64 ] && arch=(-march=armv8.1-a) || arch=()
mimalloc=$(sources libmimalloc-sys)/c_src/mimalloc/v3
mapfile -t files < <(sed -n '/^set(mi_sources/,/)/p' "$mimalloc/CMakeLists.txt" | grep -o 'src/[a-z/-]*\.c' | sed "s|^|$mimalloc/|")
[ "${#files[@]}" -gt 10 ] || { echo "$mimalloc/CMakeLists.txt names its sources in another way now" >&2; exit 1; }
"${CC:-cc}" -std=gnu11 -O3 "${arch[@]}" -DNDEBUG -DMI_BUILD_RELEASE -DMI_CMAKE_BUILD_TYPE=release -DMI_MALLOC_OVERRIDE -DMI_SHARED_LIB \
    -DMI_SHARED_LIB_EXPORT -fPIC -fvisibility=hidden -ftls-model=initial-exec -fno-builtin-malloc -I "$mimalloc/include" \
    -shared -o "$out/mimalloc3.so" "${files[@]}" -lpthread -lrt
number=$(grep -oP 'define MI_MALLOC_VERSION +\K[0-9]+' "$mimalloc/include/mimalloc.h")
echo "mimalloc $((number / 10000)).$((number / 100 % 100)).$((number % 100)) ($(version libmimalloc-sys))" >"$out/mimalloc3.version"

# snmalloc: its own cmake target of a library to preload, without the checks that it also offers.
snmalloc=$(sources snmalloc-sys)/upstream
cmake -S "$snmalloc" -B "$target/snmalloc" -DCMAKE_BUILD_TYPE=Release -DSNMALLOC_BUILD_TESTING=OFF >"$target/snmalloc.log"
cmake --build "$target/snmalloc" --target snmallocshim --parallel >>"$target/snmalloc.log" ||
    { cat "$target/snmalloc.log" >&2; exit 1; }
cp "$target/snmalloc/libsnmallocshim.so" "$out/snmalloc.so"
version snmalloc-sys >"$out/snmalloc.version"

# rusty_alloc: src/lib.rs around its core.
cargo build --release --locked --quiet --target-dir "$target"
cp "$target/release/librusty_alloc_preload.so" "$out/rusty_alloc.so"
version rusty_alloc >"$out/rusty_alloc.version"
grep . "$out"/*.version
