"""A mixed load for the allocator: every kind of object, threads, forked children, C modules. Prints only sums."""
import collections
import concurrent.futures
import ctypes
import gc
import hashlib
import io
import json
import multiprocessing
import pickle
import random
import re
import sqlite3
import threading
import xml.etree.ElementTree as tree
import zlib


def show(name, value):
    digest = hashlib.sha256(repr(value).encode()).hexdigest()[:16]
    print(f"{name:12} {digest}", flush=True)


def containers():
    rng = random.Random(1)
    table = {f"key-{i}": [rng.random() for _ in range(rng.randrange(20))] for i in range(20000)}
    for i in range(0, 20000, 3):
        del table[f"key-{i}"]
    ring = collections.deque(maxlen=5000)
    for i in range(50000):
        ring.append(bytearray(rng.randrange(300)))
    return sum(map(len, table.values())), sum(map(len, ring)), sorted(table)[::97]


def texts():
    words = [w * (i % 7) for i, w in enumerate(re.findall(r"\w+", __doc__ + open(__file__).read()))]
    joined = " ".join(words * 40)
    return len(joined), re.sub(r"(\w)(\w+)", r"\2\1", joined)[-200:], joined.encode("utf-16")[:64]


def formats():
    document = {"rows": [{"id": i, "name": "n" * (i % 50), "tags": list(range(i % 9))} for i in range(8000)]}
    text = json.dumps(document)
    assert json.loads(text) == pickle.loads(pickle.dumps(document))
    packed = zlib.compress(text.encode(), 9)
    root = tree.Element("root")
    for i in range(5000):
        tree.SubElement(root, "item", id=str(i)).text = "x" * (i % 40)
    again = tree.parse(io.BytesIO(tree.tostring(root))).getroot()
    return len(text), hashlib.md5(packed).hexdigest(), len(again)


def database():
    base = sqlite3.connect(":memory:")
    base.execute("create table t(a integer primary key, b text)")
    base.executemany("insert into t values(?, ?)", ((i, f"{i * 7919 % 10007}") for i in range(30000)))
    return base.execute("select b, count(*) from t group by b order by b limit 50 offset 1000").fetchall()


def work(seed):
    rng = random.Random(seed)
    kept = [None] * 500
    total = 0
    for _ in range(20000):
        slot = rng.randrange(500)
        kept[slot] = bytes([slot % 256]) * rng.choice((8, 60, 500, 4000, 70000 if slot == 7 else 90))
        total += len(kept[rng.randrange(500)] or b"")
    return total


def threads():
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        sums = list(pool.map(work, range(8)))
    for _ in range(300):
        thread = threading.Thread(target=lambda: [bytearray(n) for n in range(200)])
        thread.start()
        thread.join()
    return sums


def children():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(work, range(10, 16))


def raw():
    blocks = [ctypes.create_string_buffer(b"%d" % n, n + 20) for n in range(3000)]
    big = ctypes.create_string_buffer(50 << 20)
    big[49 << 20] = b"z"
    return sum(len(b.value) for b in blocks), big[49 << 20], len(big)


def cycles():
    class Node:
        pass

    for _ in range(20):
        nodes = [Node() for _ in range(2000)]
        for a, b in zip(nodes, nodes[1:] + nodes[:1]):
            a.next = b
        del nodes, a, b
        gc.collect()
    return gc.collect()


if __name__ == "__main__":
    for part in (containers, texts, formats, database, threads, children, raw, cycles):
        show(part.__name__, part())
