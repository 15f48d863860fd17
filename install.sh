#!/usr/bin/env bash
# Builds and installs the library, its header, pkg-config file and licences, and the `hakmem` command.
#
#   ./install.sh                                      into /usr/local
#   PREFIX=$HOME/.local ./install.sh                  elsewhere
#   DESTDIR=$PWD/root PREFIX=/usr LIBDIR=/usr/lib64 ./install.sh   for a package
#   ./install.sh --library                            without the command
#   ./install.sh --list                               what would be installed, and where; builds nothing
#
# The shared library that it makes has a soname with the version in it, as packages want: programs that are linked
# with one that may break them do not start with it. `cargo build` makes one that is called libhakmem.so alone.
# Built again from the same sources by the same tools it is the same to the byte, wherever the sources lie.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"

command=yes list=no
for argument in "$@"; do
    case $argument in
        --library) command=no ;;
        --list) list=yes ;;
        -h | --help) sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" && exit ;;
        *) echo "install.sh: $argument? --library, --list, or nothing (--help)" >&2 && exit 2 ;;
    esac
done
prefix=${PREFIX:-/usr/local} root=${DESTDIR:-}
while [[ $prefix == ?*/ ]]; do prefix=${prefix%/}; done
libdir=${LIBDIR:-$prefix/lib}
while [[ $libdir == ?*/ ]]; do libdir=${libdir%/}; done
for folder in "$prefix" "$libdir"; do
    case $folder in
        /*[[:space:]\\\"\'\$]*) echo "install.sh: pkg-config can't name the folder $folder" >&2 && exit 2 ;;
        /*) ;;
        *) echo "install.sh: PREFIX and LIBDIR begin with a slash: $folder" >&2 && exit 2 ;;
    esac
done

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
# What may break programs: before 1.0 the minor version, then the major one.
case $version in
    0.*) soname=libhakmem.so.${version%.*} ;;
    *) soname=libhakmem.so.${version%%.*} ;;
esac
file=libhakmem.so.$version doc=$prefix/share/doc/hakmem

put() { # mode, file, where
    if [ $list = yes ]; then echo "$3"; else install -D -m "$1" "$2" "$root$3" && echo "$root$3"; fi
}
link() { # to, where
    if [ $list = yes ]; then echo "$2 -> $1"; else ln -sf "$1" "$root$2" && echo "$root$2 -> $1"; fi
}

built=target/install/${CARGO_BUILD_TARGET:+$CARGO_BUILD_TARGET/}release
if [ $list = no ]; then
    # Before the build, which takes a while.
    if ! mkdir -p "$root$libdir" || [ ! -w "$root$libdir" ]; then
        echo "install.sh: $root$libdir can't be written to: PREFIX=… for another folder, or as root" >&2 && exit 1
    fi
    # Not an older one, if this time none is made.
    rm -f $built/libhakmem.* $built/libhakmem_record.so $built/hakmem
    # Without the paths that the sources have here. In the form in which paths may have spaces.
    read -ra flags <<<"${RUSTFLAGS:-}"
    if [ -n "${CARGO_ENCODED_RUSTFLAGS:-}" ]; then IFS=$'\x1f' read -ra flags <<<"$CARGO_ENCODED_RUSTFLAGS"; fi
    flags+=("--remap-path-prefix=$PWD=hakmem" "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo")
    CARGO_ENCODED_RUSTFLAGS=$(printf '\x1f%s' "${flags[@]}")
    export CARGO_ENCODED_RUSTFLAGS=${CARGO_ENCODED_RUSTFLAGS#?}
    HAKMEM_SONAME=$soname cargo build --locked --release --target-dir target/install -p hakmem-capi
    if [ ! -e $built/libhakmem.so ]; then
        echo "install.sh: the build has made no $built/libhakmem.so (on musl it takes RUSTFLAGS=\"-C \
target-feature=-crt-static\")" >&2 && exit 1
    fi
    if [ $command = yes ]; then
        cargo build --locked --release --target-dir target/install -p hakmem-cli -p hakmem-record
    fi
fi

put 755 $built/libhakmem.so "$libdir/$file"
link "$file" "$libdir/$soname"
link "$soname" "$libdir/libhakmem.so"
put 644 $built/libhakmem.a "$libdir/libhakmem.a"
put 644 hakmem-capi/include/hakmem.h "$prefix/include/hakmem.h"
pc=$(mktemp)
trap 'rm -f "$pc"' EXIT
# Kept by the linker even if the program itself names no allocation function. `-u malloc` does that for the archive.
cat >"$pc" <<END
prefix=$prefix
libdir=$libdir
includedir=\${prefix}/include

Name: hakmem
Description: A general-purpose memory allocator
URL: https://github.com/hakmem/hakmem
Version: $version
License: MIT OR Apache-2.0
Cflags: -I\${includedir}
Libs: -L\${libdir} -Wl,-u,malloc -Wl,--push-state,--no-as-needed -lhakmem -Wl,--pop-state
Libs.private: -lpthread -ldl
END
put 644 "$pc" "$libdir/pkgconfig/hakmem.pc"
for text in LICENSE-MIT LICENSE-APACHE CHANGELOG.md; do put 644 $text "$doc/$text"; done
if [ $command = yes ]; then
    put 755 $built/hakmem "$prefix/bin/hakmem"
    # Where the command looks for it: beside itself, in ../lib or in ../lib/hakmem.
    put 755 $built/libhakmem_record.so "$prefix/lib/hakmem/libhakmem_record.so"
    case $libdir in
        "$prefix/lib" | "$prefix/lib/hakmem") ;;
        *) link "$libdir/libhakmem.so" "$prefix/lib/hakmem/libhakmem.so" ;;
    esac
fi
if [ $list = no ] && [ -z "$root" ] && [ "$(id -u)" = 0 ]; then ldconfig || true; fi
