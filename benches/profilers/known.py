#!/usr/bin/env python3
"""Writes a C program whose every allocation is known: known.py KNOWN.c. It has 24 call sites, each a function
of its own; they keep blocks of sizes from 16 B to 4 MiB to the end, and recycle others. It prints, for each
site, its name, the bytes that it keeps and the bytes that it has allocated, as asked for."""
import sys

# Each keeps four fifths of what the one before keeps; sizes are mixed, so that no rank belongs to one kind.
SIZES = [1024, 256, 262144, 128, 4096, 2097152, 512, 32768, 64, 192, 4194304, 48, 8192, 32, 131072, 96, 2048, 65536, 16, 384, 16384, 24, 1048576, 768]
kept, sites = 32 << 20, []
for number, size in enumerate(SIZES):
    # For each that is kept some come and go, not as many everywhere: what is held and what is allocated differ.
    sites.append((f"site_{number:02}", size, max(1, round(kept * 0.8**number / size)), number % 3))

lines = ["#include <stdio.h>", "#include <stdlib.h>", "#include <string.h>", "void *volatile held;", "static void *list[4000000];", "static size_t number;"]
for name, size, count, recycled in sites:
    lines.append(f"""__attribute__((noinline)) void {name}(void) {{
    for (size_t i = 0; i < {count}; i++) {{
        for (int again = 0; again < {recycled + 1}; again++) {{
            void *block = malloc({size});
            if (!block) abort();
            memset(block, 1, {min(size, 64)});
            held = block;
            if (again == {recycled}) list[number++] = block; else free(block);
        }}
    }}
}}""")
lines.append("int main(void) {")
lines += [f"    {name}();" for name, *_ in sites]
lines += [f'    puts("{name} {size * count} {size * count * (recycled + 1)}");' for name, size, count, recycled in sites]
lines.append("    return 0;\n}")
open(sys.argv[1], "w").write("\n".join(lines) + "\n")
