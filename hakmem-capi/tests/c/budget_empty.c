/* An empty process: says how much of it is resident, in KiB, without a single allocation of its own. */
#include "../support/test.h"

int main(void) {
    dprintf(1, "%ld\n", resident_kib());
    return 0;
}
