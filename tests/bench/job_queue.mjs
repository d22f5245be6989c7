// Measures a queue of BullMQ: jobs are added in one go and processed by workers with a connection each. Every step is a
// script that writes several keys. The servers take turns.
//
// Prints for each server the medians of the rounds: the time until the last job is completed, and the processor time of the
// server. Needs the packages `bullmq` and `ioredis` in a folder of NODE_PATH's parent:
//
//     npm install bullmq ioredis          # in an empty folder, and from there:
//     node PATH/job_queue.mjs JOBS WORKERS ROUNDS [--preload LIBRARY] NAME=SERVER...
//
// LIBRARY is preloaded into the servers whose NAME begins with `valkey`.

import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { createConnection } from "node:net";
import { tmpdir } from "node:os";
import path from "node:path";

// The packages are those of the working directory, not of this file's.
const require = createRequire(path.join(process.cwd(), "packages.js"));
const { Queue, Worker } = require("bullmq");

const PORT = 7399;
const SERVER_ARGUMENTS = ["--port", PORT, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"];

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Returns the median of numbers.
function median(numbers) {
  return [...numbers].sort((a, b) => a - b)[numbers.length >> 1];
}

// Returns the processor time of a process in seconds (proc_pid_stat(5)).
function processorSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "latin1").split(") ")[1].split(" ");
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

function canConnect() {
  return new Promise((resolve) => {
    const socket = createConnection(PORT, "127.0.0.1", () => (socket.destroy(), resolve(true)));
    socket.on("error", () => resolve(false));
  });
}

// Returns a command line that a shell would read.
function commandLine(words) {
  const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`);
  return words.map((word) => quote(String(word))).join(" ");
}

// Checks that the preloaded library is mapped: the dynamic loader only warns about one that it cannot load.
function checkPreloaded(pid, preload) {
  const names = [preload, existsSync(preload) ? realpathSync(preload) : preload].map((file) => path.basename(file));
  const maps = readFileSync(`/proc/${pid}/maps`, "latin1").split("\n");
  if (!maps.some((line) => names.includes(path.basename(line)))) throw new Error(`the server runs without ${preload}`);
}

// Calls `work` with the process of a running server, which is stopped afterwards.
async function withServer({ binary, preload }, work) {
  const folder = mkdtempSync(path.join(tmpdir(), "job-queue-"));
  const { LD_PRELOAD, ...environment } = process.env;
  const env = preload ? { ...environment, LD_PRELOAD: preload } : environment;
  const server = spawn(binary, SERVER_ARGUMENTS.map(String), { cwd: folder, env, stdio: "ignore" });
  try {
    while (!(await canConnect())) await sleep(20);
    if (preload) checkPreloaded(server.pid, preload);
    return await work(server);
  } finally {
    const ended = new Promise((resolve) => server.on("exit", resolve));
    server.kill();
    await ended;
    rmSync(folder, { recursive: true });
  }
}

// Runs all jobs of one round. Returns the seconds that it took, and the processor time of the server.
async function processJobs(server, jobs, workers) {
  const connection = { host: "127.0.0.1", port: PORT, maxRetriesPerRequest: null };
  const queue = new Queue("bench", { connection });
  await queue.waitUntilReady();
  const startSeconds = processorSeconds(server.pid);
  const start = performance.now();
  await queue.addBulk(Array.from({ length: jobs }, (_, id) => ({ name: "job", data: { id } })));
  let completed = 0;
  const list = [];
  await new Promise((resolve, reject) => {
    for (let index = 0; index < workers; index++) {
      const worker = new Worker("bench", async (job) => job.data.id, { connection });
      worker.on("completed", () => ++completed === jobs && resolve());
      worker.on("failed", (_, error) => reject(error));
      worker.on("error", reject);
      list.push(worker);
    }
  });
  const seconds = (performance.now() - start) / 1000;
  const serverSeconds = processorSeconds(server.pid) - startSeconds;
  const counts = await queue.getJobCounts("completed", "failed", "waiting", "active");
  if (counts.completed !== jobs) throw new Error(`not every job is completed: ${JSON.stringify(counts)}`);
  await Promise.all(list.map((worker) => worker.close(true)));
  await queue.close();
  return { seconds, serverSeconds };
}

console.log("node", commandLine(process.argv.slice(1)));
const words = process.argv.slice(2);
const at = words.indexOf("--preload");
const given = at < 0 ? undefined : words.splice(at, 2)[1];
// The servers have other working directories. A name without a folder is found by the dynamic loader.
const library = given?.includes("/") ? path.resolve(given) : given;
const [jobs, workers, rounds] = words.slice(0, 3).map(Number);
const servers = words.slice(3).map((argument) => {
  const [name, binary] = argument.split("=");
  return { name, binary: path.resolve(binary), preload: name.startsWith("valkey") ? library : undefined, results: [] };
});
for (const { binary, preload } of servers) {
  console.log(" ", commandLine([...(preload ? [`LD_PRELOAD=${preload}`] : []), binary, ...SERVER_ARGUMENTS]));
}
for (let round = 0; round < rounds; round++) {
  for (const server of servers) {
    server.results.push(await withServer(server, (started) => processJobs(started, jobs, workers)));
  }
}
for (const { name, results } of servers) {
  const seconds = median(results.map((result) => result.seconds));
  const serverSeconds = median(results.map((result) => result.serverSeconds));
  const us = (serverSeconds / jobs) * 1e6;
  console.log(`${name}: ${seconds.toFixed(2)} s; server: ${serverSeconds.toFixed(2)} s of processor time, ${us.toFixed(0)} µs per job`);
}
process.exit(0);
