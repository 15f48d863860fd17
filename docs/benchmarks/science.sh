#!/usr/bin/env bash
# Python programs of several threads whose work is done by libraries in C++: PyTorch trains a small network on
# the processor, Arrow and pandas read, group and join tables, OpenCV works on an image, Numba compiles. By
# `hakmem ab`, under every allocator that it finds.
#
#   docs/benchmarks/science.sh FOLDER [OPTION of hakmem ab]...     (paths absolute; 6 minutes on 16 cores)
#
# Example: docs/benchmarks/science.sh /tmp/science --peers PEERS
#
# Needs `pip install torch pyarrow pandas opencv-python-headless numba`; what is missing is left out, and said
# to be. ROUNDS=3 rounds. HAKMEM=/path/to/hakmem LIB=/path/to/libhakmem.so: made elsewhere, for a machine that
# has no Rust; nothing is built then.
set -euo pipefail
. "$(dirname "$0")/made.sh"
export PYTHONHASHSEED=0 OMP_NUM_THREADS=8

cd "$out"
cat >torch_program.py <<'END'
import torch
torch.manual_seed(0); torch.set_num_threads(8)
m=torch.nn.Sequential(torch.nn.Linear(64,128),torch.nn.ReLU(),torch.nn.Linear(128,128),torch.nn.Tanh(),torch.nn.Linear(128,10))
o=torch.optim.Adam(m.parameters(),1e-3)
x=torch.randn(4096,64); y=torch.randint(0,10,(4096,))
for e in range(25):
    for i in range(0,4096,64):
        o.zero_grad(); l=torch.nn.functional.cross_entropy(m(x[i:i+64]),y[i:i+64]); l.backward(); o.step()
c=torch.nn.Conv2d(8,32,3,padding=1)
for s in range(30):
    t=torch.randn(8,8,100+s*3,100+s*3); c(t).relu().mean().backward()
print('ok %.2f'%l.item())
END
cat >arrow_program.py <<'END'
import pyarrow as pa, pyarrow.compute as pc, pyarrow.csv as c, numpy as np, io
r=np.random.default_rng(0); n=1000000
t=pa.table({'a':r.integers(0,50000,n),'b':r.normal(size=n),'s':['k%d'%v for v in r.integers(0,100000,n)]})
for i in range(3):
    b=io.BytesIO(); c.write_csv(t,b); b.seek(0); u=c.read_csv(b)
    g=u.group_by(['a','s']).aggregate([('b','sum')]); j=u.join(g,keys=['a','s'])
print(j.num_rows, round(pc.sum(j['b_sum']).as_py(),2))
END
cat >pandas_program.py <<'END'
import pandas as pd, numpy as np, io
r=np.random.default_rng(0); n=400000
d=pd.DataFrame({'a':r.integers(0,5000,n),'b':r.normal(size=n),'s':['k%d'%v for v in r.integers(0,100000,n)]})
t=d.to_csv(index=False)
e=pd.read_csv(io.StringIO(t))
g=e.groupby(['a','s']).agg({'b':['sum','mean']}).reset_index(); g.columns=['a','s','x','y']
m=e.merge(g,on=['a','s']).sort_values(['s','a','b'])
print(len(m), round(float(m.x.sum()),3), m.s.str.upper().nunique())
END
cat >opencv_program.py <<'END'
import cv2, numpy as np
r=np.random.default_rng(0); a=(r.random((1500,2000,3))*255).astype('uint8'); h=0
a=cv2.GaussianBlur(a,(9,9),3)
for i in range(8):
    p=a
    for k in range(5): p=cv2.pyrDown(p)
    g=cv2.cvtColor(a,cv2.COLOR_BGR2GRAY); q=cv2.ORB_create(2000).detectAndCompute(g,None)
    ok,b=cv2.imencode('.png',cv2.resize(a,(800,600))); h+=len(b)+int(cv2.Canny(g,50,100).sum())
print(h, len(q[0]))
END
cat >numba_program.py <<'END'
import numba as nb, numpy as np
fs=[]
for k in range(14):
    src=f'''
def f(a):
    s=0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            if a[i,j]>{k}: s+=a[i,j]*{k}
            else: s-=np.sqrt(a[i,j]+{k})
    d=dict()
    for i in range(100): d[i]=s
    return s+len(d)
'''
    ns={'np':np}; exec(src,ns); fs.append(nb.njit(parallel=False)(ns['f']))
print(round(sum(f(np.ones((10,10))) for f in fs),3))
END

for module in torch pyarrow pandas cv2 numba; do
    name=$module
    case $module in pyarrow) name=arrow ;; cv2) name=opencv ;; esac
    # It also brings the files into memory.
    python3 -c "import $module" 2>/dev/null || { echo "$name: no Python module $module, left out" >&2; continue; }
    "$hakmem" ab --lib "$library" --rounds "${ROUNDS:-3}" --warmups 0 --no-equal-memory --timeout 5min "${options[@]}" \
        --json "$name.json" --markdown "$name.md" -- python3 "${name}_program.py" >/dev/null || echo "$name: failed" >&2
    echo "$name" >&2
done
