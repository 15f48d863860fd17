#!/bin/sh
# Runs a test program of 64-bit Arm in an emulator, with pages of $EXPECT_PAGE_SIZE bytes.
#
# Debian's emulator (7.2) looks for a place of a mapping by asking the system, whose pages are smaller: where
# the first hole from the top does not begin on a page of the program's, it gives up after three tries, and
# every mmap of 64 KiB is refused from then on. Whether there is such a hole depends on where the system puts
# the emulator: 4 runs of 10 at random places, none of 80 at the fixed one, and on another day each of those;
# CI met one at the fixed one, too. So the static one is taken, if there is one, for which no
# library counts, and what failed is tried again a few times: at the fixed place where the system lets a
# program ask for it (a container may not), and at random ones. A fault of the program fails at each. (The
# option -R, by which it looks itself, has faults of its own: memory that mremap has cut off and put back
# cannot be touched.)
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64)
emulate="$qemu -L /usr/aarch64-linux-gnu -p ${EXPECT_PAGE_SIZE:?}"
fixed=
setarch -R true 2>/dev/null && fixed="setarch -R"
for try in 1 2 3 4 5 6; do
    if [ $((try % 2)) = 1 ]; then place=$fixed; else place=; fi
    $place $emulate "$@" && exit 0
    echo "emulated.sh: $1 failed ${place:-at a random place}, try $try" >&2
done
exit 1
