#!/usr/bin/env bash
# Every test there is. On a machine that lacks something, run it as root: .ci/install then installs it
# (Debian).
#   ./test.sh            all of it (25 to 50 minutes on 2 cores)
#   ./test.sh --quick    formatting, lints and cargo test only
set -euo pipefail
cd "$(dirname "$0")"
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
if [ "$(id -u)" = 0 ]; then .ci/install; fi

# The last net against what hangs, on CI, where nobody looks on: about twice the longest that any of these has taken.
# One for a group of its own, with all that it has started; and one in the group of what goes on beside.
net=(env) net_beside=(env)
if [ -n "${CI:-}" ]; then
    # A third of the disk space, and what no test needs.
    export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=line-tables-only
    net=(timeout --kill-after=60 60m) net_beside=(timeout --foreground --kill-after=60 120m)
fi
cargo() { "${net[@]}" cargo "$@"; }
# Builds the other allocators' C and C++ in half the time that gcc takes.
for_peers() { if [ -n "${CI:-}" ]; then CC=clang CXX=clang++ "$@"; else "$@"; fi; }

logs=$(mktemp -d)
# What the tests skip, each of them: tests/support/skips.rs.
export TEST_SKIPS=$logs/skips
declare -A running=()
end_all() {
    for name in "${!running[@]}"; do
        kill -- "-${running[$name]}" 2>/dev/null || true
        printf '\n== was going on: %s\n' "$name"
        cat "$logs/$name"
    done
    if [ -s "$TEST_SKIPS" ]; then printf '\n== skipped\n' && sort "$TEST_SKIPS" | uniq -c; fi
    rm -rf "$logs"
}
trap end_all EXIT

step() { printf '\n== %s (%s, %s free)\n' "$1" "$(date +%H:%M:%S)" "$(df --output=avail -h . | tail -n 1 | tr -d ' ')"; }
# On CI, where nobody builds again and the disk may be small: what no later step uses goes.
spent() { [ -z "${CI:-}" ] || rm -rf "$@"; }

step "formatting and lints"
cargo fmt --all --check
for_peers cargo clippy --workspace --all-targets --quiet -- -D warnings
# With other features, as programs that depend on the crate see it.
for features in --no-default-features --all-features "--features asan" "--features checked,valgrind"; do
    # shellcheck disable=SC2086
    cargo clippy -p hakmem-alloc $features --quiet -- -D warnings
done
RUSTDOCFLAGS="-D warnings" cargo doc -p hakmem-alloc --no-deps --quiet
# Without the lab: what the first command of the README builds, and its tests.
cargo clippy -p hakmem-cli --no-default-features --all-targets --quiet -- -D warnings

# The workspaces of their own lock what the crate needs, too: they are built with --locked, by hand.
needs() { sed -n '/^name = "hakmem-alloc"/,/^$/s/^ "\([^ "]*\).*/\1/p' "$1"; }
needs Cargo.lock >"$logs/needs"
test -s "$logs/needs" || { echo "Cargo.lock: nothing is found of hakmem-alloc" >&2 && exit 1; }
for workspace in fuzz benches/rust-programs; do
    needs $workspace/Cargo.lock >"$logs/its-needs"
    diff "$logs/needs" "$logs/its-needs" || {
        echo "$workspace/Cargo.lock: cargo update --workspace --manifest-path $workspace/Cargo.toml" >&2
        exit 1
    }
done

# These use one core each for minutes, so they go on beside all else, with what that leaves: it often waits.
# What they print comes at the end.
beside() {
    set -m # in a process group of its own, which can be ended as a whole
    { net=("${net_beside[@]}"); "$2"; } >"$logs/$2" 2>&1 &
    running[$2]=$!
    set +m
    renice -n 19 -g "${running[$2]}" >/dev/null
    printf '\n== beginning: %s (%s)\n' "$1" "$(date +%H:%M:%S)"
}
ended() {
    local failed=0
    wait "${running[$2]}" || failed=$?
    # What it may have left.
    kill -- "-${running[$2]}" 2>/dev/null || true
    unset "running[$2]"
    step "ended: $1"
    cat "$logs/$2"
    return $failed
}

loom() {
    # Runs each model as it is, first of all.
    CARGO_TARGET_DIR="$PWD/target/loom" "${net[@]}" .ci/weaken
}
# FOLDER FLAGS ARGUMENTS...
miri() {
    # When nothing else wants to run: beside two such that are only nice, processes that come and go took 30%
    # longer.
    chrt --idle --pid 0 "$BASHPID" || true
    # The two that run at once do not build Miri's standard library at once. What it builds of this project is
    # read as each test begins, so each has a folder of its own.
    flock "$logs" "${net[@]}" cargo +nightly miri setup
    # Provenance is strict: no pointer is made of a number. The two other flags take no check away: the clocks
    # are the system's (without isolation), and memory is kept by design, for the next thread (leaks).
    MIRIFLAGS="-Zmiri-strict-provenance -Zmiri-disable-isolation -Zmiri-ignore-leaks $2" \
        CARGO_TARGET_DIR=$1 HAKMEM_SHADOW_ROUNDS=20 cargo +nightly miri test "${@:3}"
}
models=(--test miri --test races --test hardened_races --test shadow)
loom_and_stacked_borrows() {
    loom
    spent target/loom
    step "Miri, Stacked Borrows"
    miri target/miri "" "${models[@]}"
    # Of the unit tests those that say what only Miri sees.
    miri target/miri "" -p hakmem-alloc --lib base::list
    # The beginnings of some of the fuzzer's programs; `.ci/deep miri` takes them whole.
    miri target/miri "" --test fuzz_corpus the_corpus
}
tree_borrows() { miri target/miri-tree -Zmiri-tree-borrows "${models[@]}"; }
if [ "${1:-}" != --quick ]; then
    beside "lock-free types under loom, every memory ordering is needed; Miri, Stacked Borrows" \
        loom_and_stacked_borrows
    beside "Miri, Tree Borrows" tree_borrows
fi

step "cargo test"
# What runs under callgrind or counts resident memory shares the machine badly: two tests at a time.
cargo test --workspace --no-fail-fast -- --test-threads=2
[ "${1:-}" = --quick ] && exit 0

step "release build of the shadow model, and the checked feature"
for seed in 1 2 3; do HAKMEM_SHADOW_SEED=$seed cargo test --release --test shadow; done
# Debug assertions make the same checks: so in release.
cargo test --release --features checked --test checked
# As a program's debug build has it; what else is tested here has a little optimisation (Cargo.toml).
plain=(--config profile.dev.package.hakmem-alloc.opt-level=0)
cargo test "${plain[@]}" --lib
# With the entries for ASan and valgrind, which have unit tests of their own.
cargo test "${plain[@]}" --features checked,asan,valgrind --lib

step "every preset: the shadow model, the C interface and real programs (balanced is what all else runs with)"
for preset in throughput memory latency; do
    HAKMEM_PRESET=$preset HAKMEM_SHADOW_ROUNDS=50000 cargo test --quiet --release --test shadow
    HAKMEM_PRESET=$preset cargo test --quiet -p hakmem-capi --test c_api -- ::preloaded --test-threads=2
    HAKMEM_PRESET=$preset cargo test --quiet -p hakmem-capi --test programs -- jq_ sqlite3_ --test-threads=2
done

step "hardened mode: the shadow model, the C interface and real programs"
(
    export HAKMEM_HARDENED=on
    HAKMEM_SHADOW_ROUNDS=50000 cargo test --quiet --release -p hakmem-tests --test shadow
    cargo test --quiet -p hakmem-capi --test c_api -- ::preloaded --test-threads=2
    cargo test --quiet -p hakmem-capi --test programs -- jq_ sqlite3_ --test-threads=2
    # What is not in quarantine takes other ways.
    HAKMEM_HARDENED=light HAKMEM_SHADOW_ROUNDS=50000 cargo test --quiet --release -p hakmem-tests --test shadow
)

step "every benchmark runs"
# As the lints have built the other allocators' C and C++, which takes minutes; `cargo bench` builds them anew.
for_peers cargo bench --profile dev --quiet -- --test

step "oldest Rust (rust-version)"
spent target/debug target/release target/doc target/tmp
CARGO_TARGET_DIR=target/msrv cargo +1.85.0 check --workspace --quiet
spent target/msrv

step "musl, and 64-bit Arm under emulation"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64
cargo test --release --target x86_64-unknown-linux-musl --test shadow --test global_alloc
# What is emulated is optimised, but not as a whole, which takes more than half of a build's time.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
HAKMEM_SHADOW_ROUNDS=2000 cargo test --release --target aarch64-unknown-linux-musl --test shadow
cargo build --quiet --target aarch64-unknown-linux-gnu -p hakmem-alloc
spent target/*-linux-* target/debug target/release

step "16 and 64 KiB pages, under emulation"
# The emulator does not mind what is no whole page; debug assertions do. With glibc: musl's malloc unmaps its
# own blocks in units of 4 KiB, after which this emulator refuses memory now and then.
pages() {
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$PWD/tests/emulated.sh" \
        CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_TARGET_DIR=target/pages EXPECT_PAGE_SIZE=$1 HAKMEM_SHADOW_ROUNDS=2000 \
        cargo test --quiet --release --target aarch64-unknown-linux-gnu \
        --lib --test page_size --test shadow --test slabs --test between_threads --test large --test huge --test global_alloc -- --test-threads=1
}
# Both at once: a test that is emulated uses one core.
pages_16() { pages 16384; }
beside "16 KiB pages" pages_16
pages 65536
ended "16 KiB pages" pages_16
spent target/pages

step "ThreadSanitizer"
HAKMEM_SHADOW_ROUNDS=4000 RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=target/tsan \
    cargo +nightly test "${plain[@]}" -Zbuild-std --target x86_64-unknown-linux-gnu --test shadow
# Statistics, asked for while other threads work; and a slab that is made anew of one that others have emptied.
RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=target/tsan \
    cargo +nightly test "${plain[@]}" -Zbuild-std --target x86_64-unknown-linux-gnu --test figures asking
RUSTFLAGS="-Zsanitizer=thread" CARGO_TARGET_DIR=target/tsan \
    cargo +nightly test "${plain[@]}" -Zbuild-std --target x86_64-unknown-linux-gnu --test slabs what_others_did
failed=0
ended "Miri, Tree Borrows" tree_borrows || failed=1
ended "loom; Miri, Stacked Borrows" loom_and_stacked_borrows || failed=1
[ $failed = 0 ]

step "done"
