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

# Into the current folder: what the seventeen programs of `SET=survey unseen.sh` work on.
prepare_survey() {
    cat >t.m <<'END'
s = struct(); c = {};
for i = 1:1500, s.(sprintf("f%d", i)) = num2str(i); c{end+1} = sprintf("%d,", i); end
t = [c{:}]; p = strsplit(t, ","); m = containers.Map(); for i = 1:300, m(p{i}) = i; end
a = rand(700); b = a * a'; printf("%d %d\n", numel(p), m.Count);
END
    cat >t.R <<'END'
n <- 200000; d <- data.frame(k = paste0("k", seq_len(n) %% 5000), v = seq_len(n), stringsAsFactors = FALSE)
a <- aggregate(v ~ k, d, sum); l <- lapply(split(d$v, d$k), function(x) c(min(x), max(x)))
s <- vapply(strsplit(paste(d$k, d$v), " "), function(x) x[2], ""); cat(nrow(a), length(l), length(unique(s)), "\n")
END
    cat >t.el <<'END'
(let ((h (make-hash-table :test 'equal)) (n 0))
  (dotimes (i 300000) (puthash (format "key%d" i) (list i (number-to-string i)) h))
  (maphash (lambda (k v) (setq n (+ n (length k) (length (cadr v))))) h)
  (with-temp-buffer (dotimes (i 100000) (insert (format "line %d\n" i))) (goto-char 1)
    (while (re-search-forward "\\([0-9]+\\)7$" nil t) (replace-match "<\\1>")) (princ (buffer-size)))
  (print n))
END
    python3 - <<'END'
import json, random
random.seed(3)
R = random.randrange
with open('c.c', 'w') as f:
    f.write('#include <stdlib.h>\n#include <string.h>\n')
    for i in range(260):
        f.write(f'struct s{i} {{ int a[{i % 9 + 1}]; char *p; struct s{i} *next; }};\nint f{i}(struct s{i} *s, int n) {{ int r = 0; for (int i = 0; i < n; i++) {{ if (s->a[i % {i % 9 + 1}] > {i}) r += s->a[0]; else if (s->p) r -= (int)strlen(s->p); switch (r & 3) {{ case 0: r++; break; case 1: r--; break; default: break; }} }} char *q = malloc((size_t)n); if (!q) return -1; memset(q, {i % 128}, (size_t)n); r += q[0]; free(q); return s->next ? f{i}(s->next, n - 1) + r : r; }}\n')
with open('v.v', 'w') as f:
    f.write(f'module m(input clk, input [15:0] a, b, c, output reg [15:0] q, output reg [31:0] p);\nreg [15:0] r[0:15]; integer i;\nalways @(posedge clk) begin r[a[3:0]] <= b ^ c; q <= r[b[3:0]] + (a & 5) - (c | b); p <= a * b + {{c, a}}; case (c[3:0]) ')
    for k in range(15): f.write(f'{k}: q <= a {"+-&|^"[k % 5]} b {"+-&|^"[k % 4]} {R(65536)}; ')
    f.write('default: q <= 0; endcase end\nendmodule\n')
with open('s.scad', 'w') as f:
    f.write('difference() { union() {\n')
    for i in range(34): f.write(f'translate([{R(40)},{R(40)},{R(40)}]) cube([{R(9) + 2},{R(9) + 2},{R(9) + 2}]);\n')
    f.write('}\n')
    for i in range(5): f.write(f'translate([{R(40)},{R(40)},{R(40)}]) sphere(5, $fn = 12);\n')
    f.write('}\n')
with open('d.h', 'w') as f:
    for i in range(420):
        f.write(f'/** Class {i}, see K{R(420)}.\n * Text of some length with `code` and \\ref K{R(420)} "another". */\nclass K{i} {f": public K{R(i)}" if i else ""} {{ public:\n')
        for k in range(8): f.write(f'/** Does {k}. @param a one @param b two @return K{R(420)} */ int f{k}(int a, K{R(420)} *b);\n')
        f.write('};\n')
with open('Doxyfile', 'w') as f:
    f.write('INPUT = d.h\nQUIET = YES\nWARNINGS = NO\nGENERATE_LATEX = NO\nOUTPUT_DIRECTORY = doxygen\nHAVE_DOT = NO\nGENERATE_XML = YES\n')
with open('p.ps', 'w') as f:
    f.write('%!PS\n/Times-Roman findfont 11 scalefont setfont\n')
    for p in range(240):
        for l in range(60): f.write(f'40 {760 - 12 * l} moveto (Page {p}, line {l}: {" ".join("word" + str(R(999)) for _ in range(9))}) show\nnewpath {100 + 7 * l} {400 + p % 90} {5 + l} 0 360 arc stroke\n')
        f.write('showpage\n')
with open('g.svg', 'w') as f:
    f.write('<svg xmlns="http://www.w3.org/2000/svg" width="900" height="900"><defs><linearGradient id="g"><stop offset="0" stop-color="red"/><stop offset="1" stop-color="blue"/></linearGradient></defs>\n')
    for i in range(6000): f.write(f'<g class="c{i % 9}" transform="translate({R(900)},{R(900)}) rotate({R(360)})"><path d="M0 0 C {R(40)} {R(40)} {R(40)} {R(40)} {R(40)} {R(40)} L {R(40)} {R(40)} z" fill="{"url(#g)" if i % 7 == 0 else "#%06x" % R(1 << 24)}" stroke="black"/></g>\n')
    f.write('</svg>\n')
with open('v.vcf', 'w') as f:
    f.write('##fileformat=VCFv4.2\n##INFO=<ID=DP,Number=1,Type=Integer,Description="d">\n##FORMAT=<ID=GT,Number=1,Type=String,Description="g">\n##contig=<ID=1,length=249250621>\n#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO\tFORMAT\t' + '\t'.join(f's{i}' for i in range(20)) + '\n')
    for i in range(160000): f.write(f'1\t{R(249250620) + 1}\trs{i}\t{"ACGT"[i % 4]}\t{"CGTA"[i % 4]}\t{R(99)}\tPASS\tDP={R(500)}\tGT\t' + '\t'.join(random.choice(('0/0', '0/1', '1/1')) for _ in range(20)) + '\n')
with open('g.geojson', 'w') as f:
    f.write('{"type":"FeatureCollection","features":[')
    for i in range(30000):
        x, y = random.uniform(-170, 170), random.uniform(-80, 80)
        ring = [[round(x + random.random(), 6), round(y + random.random(), 6)] for _ in range(R(12) + 3)]
        f.write((',' if i else '') + json.dumps({'type': 'Feature', 'properties': {'id': i, 'name': f'name {R(9999)}', 'v': random.random()}, 'geometry': {'type': 'Polygon', 'coordinates': [ring + ring[:1]]}}))
    f.write(']}\n')
with open('o.osm', 'w') as f:
    f.write('<?xml version="1.0"?>\n<osm version="0.6">\n')
    n = list(range(1, 150001)); random.shuffle(n)
    for i in n: f.write(f'<node id="{i}" version="1" lat="{random.uniform(-80, 80):.7f}" lon="{random.uniform(-170, 170):.7f}"><tag k="name" v="n{i}"/></node>\n')
    for i in range(1, 20001): f.write(f'<way id="{i}" version="1">' + ''.join(f'<nd ref="{R(150000) + 1}"/>' for _ in range(R(12) + 2)) + f'<tag k="highway" v="h{i % 9}"/></way>\n')
    f.write('</osm>\n')
with open('g.y', 'w') as f:
    f.write('%define lr.type canonical-lr\n%token ' + ' '.join(f'T{i}' for i in range(120)) + '\n%%\ns: e0;\n')
    for i in range(90): f.write(f'e{i}: e{i} T{i} e{i + 1} | e{i} T99 e{i + 1} | e{i + 1};\n')
    f.write('e90: T93 | T94 e0 T95 | T96 e90;\n%%\n')
with open('w.html', 'w') as f:
    f.write('<html><body>')
    for i in range(3000): f.write(f'<table border=1><tr><td>para {i}<td><b>bold<i>x</i></b><td><a href="u{i}">link {R(999)}</a></table><p>' + ' '.join(f'w{R(999)}' for _ in range(30)))
    f.write('</body></html>')
END
    gs -q -dSAFER -dBATCH -dNOPAUSE -sDEVICE=pdfwrite -sOutputFile=p.pdf p.ps
}

# Calls `program` for each of the seventeen, in the same folder. As Debian calls them: cppcheck yosys openscad
# doxygen poppler-utils mupdf-tools librsvg2-bin bcftools gdal-bin osmium-tool imagemagick octave r-base-core
# bison ffmpeg emacs-nox w3m, and ghostscript to make a PDF file
each_survey() {
    program cppcheck cppcheck --quiet --enable=all --suppress='*' c.c
    program yosys yosys -q -p 'read_verilog v.v; synth; abc -g AND,OR,XOR; stat'
    program openscad env QT_QPA_PLATFORM=offscreen openscad -q -o s.off s.scad
    program doxygen doxygen Doxyfile
    program pdftotext pdftotext p.pdf /dev/null
    program mutool mutool draw -q -r 40 -o /dev/null -F pgm p.pdf
    program rsvg rsvg-convert -o g.png g.svg
    program bcftools bcftools sort -T . -Ob -o /dev/null v.vcf
    program ogr2ogr ogr2ogr -f GPKG /vsimem/g.gpkg g.geojson
    program osmium osmium sort -O -f opl -o /dev/null o.osm
    program convert convert -size 1200x900 -seed 7 plasma:red-blue -resize 180% -blur 0x2 -colors 64 null:
    program octave octave --norc --no-gui t.m
    program R env LC_ALL=C Rscript --vanilla t.R
    program bison bison -o /dev/null g.y
    program ffmpeg ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=640x360:rate=25 -t 3 -threads 2 -c:v mpeg2video -f null -
    program emacs emacs -Q --batch -l t.el
    program w3m w3m -dump -T text/html w.html
}
