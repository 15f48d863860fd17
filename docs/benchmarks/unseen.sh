#!/usr/bin/env bash
# Real programs that nothing else here measures: 13 of different kinds, under every allocator that `hakmem ab`
# finds, with `hakmem ab`'s own method. 15 minutes on 2 cores, on an otherwise idle machine.
#
#   docs/benchmarks/unseen.sh FOLDER [OPTION of hakmem ab]...      (all paths absolute)
#
# Example: docs/benchmarks/unseen.sh /tmp/unseen --peers PEERS --with before=/tmp/before.so --baseline before
#
# Needs, as Debian calls them: libxml2-utils lua5.4 ruby gawk tcl graphviz z3 swi-prolog-nox g++ tidy povray
# binutils php-cli. A program that is missing is left out, and said to be. ROUNDS=6 rounds.
set -euo pipefail
cd "$(dirname "$0")/../.."
hakmem=$PWD/target/release/hakmem
[ $# -ge 1 ] || { sed -n '2,10s/^# \{0,1\}//p' docs/benchmarks/unseen.sh >&2; exit 2; }
cargo build --quiet --release -p hakmem-capi -p hakmem-cli
mkdir -p "$1"
cd "$1"
shift
git -C "$OLDPWD" rev-parse HEAD >commit.txt

# What they work on: the same each time.
cat >t.lua <<'END'
local t={} for i=1,400000 do t[i]={k="key"..i,v={i,i*2}} end
local m={} for i,v in ipairs(t) do m[v.k]=v end
for i=1,400000,3 do t[i]=nil; m["key"..i]=nil end
local s=0 for k,v in pairs(m) do s=s+v.v[2] end print(s)
END
cat >t.rb <<'END'
h={}; 200000.times{|i| h["key#{i}"]=["value number #{i} of many",i,i.to_s]}
s=0; h.each{|k,v| s+=v[1]+v[2].size}
w=h.keys.map{|k| k.reverse.upcase+"-suffix-long-enough"}.sort; puts s, w[0]
END
cat >t.awk <<'END'
BEGIN{ for(i=0;i<350000;i++){a["key" i]="value of " i; b[i%5000]=b[i%5000] "," i}
  for(k in a){n+=length(a[k])} for(k in b) m+=length(b[k]); print n,m }
END
cat >t.tcl <<'END'
for {set i 0} {$i<200000} {incr i} { dict set d key$i [list $i value$i]; set a($i) "str $i" }
set s 0; dict for {k v} $d { incr s [lindex $v 0] }; puts $s
END
cat >t.pl <<'END'
main :- numlist(1,250000,L), maplist([X,Y]>>(atom_number(A,X),atom_concat(k,A,Y)),L,M),
    forall(member(K,M), assertz(f(K,K))), aggregate_all(count,f(_,_),C), write(C), nl.
:- initialization((main,halt)).
END
cat >t.php <<'END'
<?php ini_set('memory_limit','-1'); $a=[]; for($i=0;$i<400000;$i++) $a["k$i"]=["v"=>$i,"s"=>"str$i"];
$s=0; foreach($a as $v)$s+=$v["v"]; echo "$s\n";
END
python3 - <<'END'
import random
random.seed(1)
with open('x.xml','w') as f:
    f.write('<root>\n')
    for i in range(120000):
        f.write(f'<item id="{i}" kind="k{random.randrange(50)}"><name>name {random.randrange(10**6)}</name><tags><t>a{i%7}</t><t>b{i%11}</t></tags><text>some text {"x"*random.randrange(60)}</text></item>\n')
    f.write('</root>\n')
with open('z.smt2','w') as f:
    f.write('(set-logic QF_BV)\n')
    for i in range(40): f.write(f'(declare-const x{i} (_ BitVec 24))\n')
    for i in range(39): f.write(f'(assert (= (bvmul x{i} #x{random.randrange(1<<24)|1:06x}) (bvadd x{i+1} (bvxor x{(i*3)%40} #x{random.randrange(1<<24):06x}))))\n')
    f.write('(assert (bvult x0 #x001000))(check-sat)\n')
with open('c.cpp','w') as f:
    f.write('#include <map>\n#include <string>\n#include <vector>\n#include <unordered_map>\n#include <regex>\n#include <functional>\n')
    for i in range(6):
        f.write(f'struct A{i}{{int a; std::string s; std::map<std::string,std::vector<A{i}>> m;}}; int f{i}(std::unordered_map<std::string,A{i}>&m){{ std::regex r("a{i}.*"); int n=0; for(auto&p:m) if(std::regex_match(p.first,r)) n+=p.second.m.size(); std::function<int(int)> g=[&](int x){{return x+n;}}; return g({i}); }}\n')
with open('h.html','w') as f:
    f.write('<html><body>')
    for i in range(30000): f.write(f'<div class=c{i%9}><p>para {i} <b>bold<i>x</i></b><a href="u{i}">l</a><ul><li>1<li>2</ul></div>')
    f.write('</body></html>')
with open('s.pov','w') as f:
    f.write('camera{location <0,2,-30> look_at 0} light_source{<10,20,-30> rgb 1}\nunion{')
    for i in range(30000): f.write(f'sphere{{<{random.uniform(-9,9):.3f},{random.uniform(-9,9):.3f},{random.uniform(-9,9):.3f}>,0.05}}\n')
    f.write('pigment{rgb 1}}')
random.seed(2)
with open('g.dot','w') as f:
    f.write('digraph{\n')
    for i in range(110): f.write(f'n{i}->n{random.randrange(max(1,i))};n{i}->n{(i*7)%110};\n')
    f.write('}\n')
END

options=("$@")
measure() {
    local name=$1
    shift
    # The first word that is a program, after `env` and its settings.
    local program=$1
    [ "$program" != env ] || program=$3
    command -v "$program" >/dev/null || { echo "$name: no $program, left out" >&2; return; }
    "$hakmem" ab --rounds "${ROUNDS:-6}" --warmups 0 "${options[@]}" --json "$name.json" --markdown "$name.md" -- "$@" >/dev/null ||
        echo "$name: failed" >&2
    echo "$name" >&2
}
measure xmllint xmllint --noout x.xml
measure lua lua5.4 t.lua
measure ruby ruby t.rb
measure gawk gawk -f t.awk
measure tclsh tclsh t.tcl
measure dot dot -Tsvg g.dot -o /dev/null
measure z3 z3 z.smt2
measure swipl swipl t.pl
measure g++ g++ -O1 -S c.cpp -o /dev/null
# Warnings make its status 1.
measure tidy sh -c 'tidy -q -o /dev/null h.html || test $? = 1'
measure povray povray +Is.pov -D +W80 +H60 +Os.png +WT1
measure objdump objdump -dC --no-show-raw-insn "$hakmem"
measure php env USE_ZEND_ALLOC=0 php t.php
