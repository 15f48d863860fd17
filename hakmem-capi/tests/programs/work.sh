# A mixed load for the allocator in bash: arrays, long strings, expansions, subshells, pipes and
# here-documents.
set -eu
declare -A table
state=7
below() { state=$(((state * 1103515245 + 12345) % 2147483648)); picked=$(((state >> 8) % $1)); }

for ((i = 0; i < 20000; i++)); do
    below 3000
    table[key$picked]+="$i "
done
for key in "${!table[@]}"; do echo "$key=${table[$key]}"; done | sort

text=
for ((i = 0; i < 8000; i++)); do text+="word$((i % 97)) "; done
echo "${#text} ${text:5000:40}"
upper=${text^^}
turned=${upper//WORD/<w>}
echo "${turned: -60}"
read -r -a words <<<"$text"
echo "${#words[@]} ${words[*]:100:5}"

numbers=()
for ((i = 0; i < 10000; i++)); do numbers+=($(((i * 7919) % 10007))); done
mapfile -t ordered < <(printf '%s\n' "${numbers[@]}" | sort -n)
echo "${ordered[@]:0:20} ${ordered[@]: -3}"

for ((i = 0; i < 150; i++)); do
    out=$(printf '%0*d' $((i * 20)) "$i" | tr 0-9 a-j)
    echo "$(( ${#out} )) ${out: -4}"
done
coproc { while read -r line; do echo "[$line]"; done; }
for ((i = 0; i < 200; i++)); do echo "line $i" >&"${COPROC[1]}"; read -r back <&"${COPROC[0]}"; echo "$back"; done
cat <<END
$(for i in {1..300}; do echo "$i: ${table[key$i]:-none}"; done)
END
trap 'echo "left with $?"' EXIT
(trap - EXIT; exit 3) || echo "subshell: $?"
eval "f() { $(printf 'local v%d=%d; ' $(seq 1 300 | sed 's/.*/& &/')) echo \$v1 \$v300; }"
f
