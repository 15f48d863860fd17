// Two workers that compress and decompress JSON.
const { Worker, isMainThread, parentPort } = require("worker_threads");
const zlib = require("zlib");

if (isMainThread) {
  for (let i = 0; i < 2; i++) new Worker(__filename).on("message", (sum) => console.log(sum));
} else {
  const text = JSON.stringify([...Array(500).keys()]);
  let sum = 0;
  for (let i = 0; i < 20; i++) sum += zlib.gunzipSync(zlib.gzipSync(text)).length;
  parentPort.postMessage(sum);
}
