#!/bin/sh
# Runs a test program of 64-bit Arm in an emulator, with pages of $EXPECT_PAGE_SIZE bytes.
#
# What emulated.c mends is preloaded. Without it, memory was refused in 12 of 160 runs of the shadow model, with
# it in none of 80, nor in 120 runs of six test programs. (The option -R, by which the emulator looks for a
# place itself, has faults of its own: memory that mremap has cut off and put back cannot be touched.)
set -e
page=${EXPECT_PAGE_SIZE:?}
source=$(dirname "$0")/emulated.c
folder=$(dirname "$0")/../target/emulated
library=$(realpath -m "$folder/$page.so")
if [ ! "$library" -nt "$source" ]; then
    mkdir -p "$folder"
    # Another run may make it, too.
    cc -shared -fPIC -O2 -Wall -Werror -DPAGE="$page" -o "$library.$$" "$source"
    mv "$library.$$" "$library"
fi
# The emulator's own library has locks that the child of a fork may inherit held, and wait for for ever
# (g_slice_alloc, seen once); with the C library's malloc, which is ready for forks, it has not.
export G_SLICE=always-malloc
LD_PRELOAD=$library exec qemu-aarch64 -U LD_PRELOAD -U G_SLICE -L /usr/aarch64-linux-gnu -p "$page" "$@"
