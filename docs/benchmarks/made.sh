# The command and the library that scaling.sh and science.sh measure with: built here, or HAKMEM=/path/to/hakmem
# LIB=/path/to/libhakmem.so, made elsewhere, for a machine that has no Rust. Sourced with their arguments. Goes
# to the root of the repository, and leaves $out, the folder for what is measured, ${options[@]}, what else was
# given, $hakmem and $library.
[ $# -ge 1 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
options=("${@:2}")
cd "$(dirname "$0")/../.."
if [ -z "${HAKMEM:-}" ]; then
    cargo build --quiet --release -p hakmem-capi -p hakmem-cli
    git describe --always --dirty --abbrev=10 >"$out/commit.txt"
fi
hakmem=$(realpath "${HAKMEM:-target/release/hakmem}")
library=$(realpath "${LIB:-target/release/libhakmem.so}")
