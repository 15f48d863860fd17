// A mixed load for the allocator: buffers outside V8's heap, zlib, crypto, workers, children, modules of C++.
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const child = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const zlib = require('zlib');

const digest = (data) => crypto.createHash('sha256').update(data).digest('hex').slice(0, 16);
const show = (name, ...data) => console.log(name.padEnd(10), digest(data.map(String).join('\0')));

function random(seed) {
  let state = seed >>> 0 || 1;
  return (limit) => {
    state ^= state << 13; state ^= state >>> 17; state ^= state << 5; state >>>= 0;
    return state % limit;
  };
}

function buffers(seed) {
  const below = random(seed);
  const kept = new Array(400);
  let sum = 0;
  for (let i = 0; i < 20000; i++) {
    const slot = below(400);
    kept[slot] = Buffer.alloc(below(100) === 0 ? 200000 : 1 + below(9000), i % 251);
    const other = kept[below(400)];
    if (other) sum += other[other.length - 1] + other.length;
  }
  return sum;
}

if (!isMainThread) {
  parentPort.postMessage(buffers(workerData));
} else {
  (async () => {
    show('buffers', buffers(1));
    const map = new Map();
    for (let i = 0; i < 200000; i++) map.set('key' + (i * 7919) % 50021, { i, s: 'v'.repeat(i % 30) });
    const text = JSON.stringify([...map].sort());
    show('json', text, JSON.stringify(JSON.parse(text)).length);
    show('regexp', text.replace(/"i":(\d+)/g, (_, n) => `"n":${n * 2}`));

    const packed = await new Promise((done, fail) => zlib.deflate(text, { level: 9 }, (e, b) => (e ? fail(e) : done(b))));
    const all = await Promise.all([1, 5, 9, 11].map((level) => new Promise((done, fail) => {
      const params = { [zlib.constants.BROTLI_PARAM_QUALITY]: level > 5 ? 5 : level };
      zlib.brotliCompress(text.slice(0, 400000), { params }, (e, b) => (e ? fail(e) : done(b)));
    })));
    show('zlib', digest(packed), zlib.inflateSync(packed).length, ...all.map(digest));
    const keys = await Promise.all([1, 2, 3, 4].map((n) => new Promise((done, fail) => {
      crypto.scrypt('secret' + n, 'salt', 64, { N: 4096 }, (e, key) => (e ? fail(e) : done(key.toString('hex'))));
    })));
    show('crypto', ...keys);
    const sums = await Promise.all([2, 3, 4, 5].map((seed) => new Promise((done, fail) => {
      new Worker(__filename, { workerData: seed }).on('message', done).on('error', fail);
    })));
    show('workers', ...sums);

    for (let i = 0; i < 200; i++) fs.writeFileSync(`out-${i % 20}.txt`, text.slice(i * 100, i * 400));
    const read = await Promise.all([...Array(20).keys()].map((i) => fs.promises.readFile(`out-${i}.txt`)));
    show('files', ...read.map(digest));
    const script = 'process.stdout.write(require("zlib").gzipSync(Buffer.alloc(3e6, 7)).length + ":" + process.version)';
    const runs = [1, 2].map(() => child.execFileSync(process.execPath, ['-e', script]));
    show('children', ...runs);
    const wasm = new WebAssembly.Memory({ initial: 10, maximum: 200 });
    wasm.grow(100);
    show('wasm', wasm.buffer.byteLength, new Intl.NumberFormat('de-DE').format(1234567.89), 'ß'.toUpperCase());
  })();
}
