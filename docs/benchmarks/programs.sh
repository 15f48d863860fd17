# The real programs that docs/benchmarks.md measures. Sourced by run.sh, unseen.sh and armed.sh in the root of
# the repository; they define `program NAME COMMAND...`, which is called for each. What a program prints does
# not depend on when it runs.

# FOLDER: what the twelve programs of run.sh work on: the same each time.
prepare_programs() {
    local work=$1
    seq 1 100000 | awk '{print "{\"id\":" $1 ",\"name\":\"n" $1 "\",\"tags\":[\"a\",\"b" $1 % 97 "\"]}"}' >"$work/lines.json"
    awk 'BEGIN { for (i = 0; i < 150; i++) printf "#include <stddef.h>\nint f%d(int *a, size_t n) { int s = 0; for (size_t i = 0; i < n; i++) s += a[i] * %d; return s; }\n", i, i }' >"$work/many.c"
    awk 'BEGIN { print "#include <map>\n#include <string>\n#include <vector>"; for (i = 0; i < 5; i++) printf "struct T%d { int v; bool operator<(const T%d &o) const { return v < o.v; } };\nint f%d(std::map<T%d, std::vector<std::string>> &m) { m[T%d{%d}].push_back(\"x\"); int n = 0; for (auto &[k, v] : m) n += k.v + v.size(); return n; }\n", i, i, i, i, i, i }' >"$work/many.cc"
    sed "s/range(800)/range(30000)/" benches/traces/python-json.py >"$work/app.py"
    awk 'BEGIN { print "%!PS\n/Times-Roman findfont 11 scalefont setfont"; for (p = 0; p < 40; p++) { for (l = 0; l < 60; l++) printf "40 %d moveto (Page %d, line %d: the quick brown fox jumps over the lazy dog) show\nnewpath %d %d %d 0 360 arc stroke\n", 760 - 12 * l, p, l, 100 + 7 * l, 400 + p, 5 + l; print "showpage" } }' >"$work/pages.ps"
    clang++ -std=c++17 -g -O0 -c -o "$work/many.o" "$work/many.cc"
}

# FOLDER: calls `program` for each of the twelve.
each_program() {
    local work=$1
    # A history that stays as it is when the project goes on.
    local early
    early=$(git rev-list --reverse --first-parent HEAD | sed -n 40p)
    PYTHONMALLOC=malloc program python "$(python3 -c 'import sys; print(sys.executable)')" "$work/app.py"
    program redis docs/benchmarks/redis.sh 60000
    program sqlite sqlite3 :memory: "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<300000) SELECT count(*), sum(length(y)) FROM (SELECT printf('%08d-%s', x, hex(x*7919)) y FROM c ORDER BY y)"
    program gcc gcc -O2 -c -o /dev/null "$work/many.c"
    program clang clang++ -std=c++17 -O1 -c -o /dev/null "$work/many.cc"
    program node node -e 'const m=new Map();for(let i=0;i<300000;i++)m.set("k"+i,{a:[i]});let s=0;for(const v of m.values())s+=v.a[0];console.log(s)'
    program xz xz -T2 -2 -k -c "$work/lines.json"
    program jq jq -s 'map(select(.id % 3 == 0) | .name) | length' "$work/lines.json"
    program perl perl -e 'my %h; $h{"key$_"} = "value" x ($_ % 7) for 1..200000; my $n = 0; $n += length $h{$_} for sort keys %h; print "$n\n"'
    program git git log -p --stat --format=%H "${early:-HEAD}"
    program ghostscript gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=pdfwrite -sOutputFile=/dev/null "$work/pages.ps"
    program gdb gdb -nx -batch -ex 'info functions push_back' -ex 'info types basic_string' "$work/many.o"
}

# Into the current folder: what the thirteen programs of unseen.sh work on.
prepare_unseen() {
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
}

# HAKMEM: calls `program` for each of the thirteen, in the same folder. As Debian calls them: libxml2-utils
# lua5.4 ruby gawk tcl graphviz z3 swi-prolog-nox g++ tidy povray binutils php-cli
each_unseen() {
    local hakmem=$1
    program xmllint xmllint --noout x.xml
    program lua lua5.4 t.lua
    program ruby ruby t.rb
    program gawk gawk -f t.awk
    program tclsh tclsh t.tcl
    program dot dot -Tsvg g.dot -o /dev/null
    program z3 z3 z.smt2
    program swipl swipl t.pl
    program g++ g++ -O1 -S c.cpp -o /dev/null
    # Warnings make its status 1.
    program tidy sh -c 'tidy -q -o /dev/null h.html || test $? = 1'
    program povray povray +Is.pov -D +W80 +H60 +Os.png +WT1
    program objdump objdump -dC --no-show-raw-insn "$hakmem"
    program php env USE_ZEND_ALLOC=0 php t.php
}
