// Measures a queue of BullMQ: jobs are added in one go and processed by workers with a connection each. Every step is a
// script that writes several keys. The servers take turns.
//
// Prints for each server the medians of the rounds: the time until the last job is completed, and the processor time of the
// server. Needs the packages `bullmq` and `ioredis` in a folder of NODE_PATH's parent:
//
//     npm install bullmq ioredis          # in an empty folder, and from there:
//     node PATH/job_queue.mjs JOBS WORKERS ROUNDS NAME=SERVER...

import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
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

// Calls `work` with the process of a running server, which is stopped afterwards.
async function withServer(binary, work) {
  const folder = mkdtempSync(path.join(tmpdir(), "job-queue-"));
  const server = spawn(binary, SERVER_ARGUMENTS.map(String), { cwd: folder, stdio: "ignore" });
  try {
    while (!(await canConnect())) await sleep(20);
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

const [jobs, workers, rounds] = process.argv.slice(2, 5).map(Number);
const servers = process.argv.slice(5).map((argument) => {
  const [name, binary] = argument.split("=");
  return { name, binary: path.resolve(binary), results: [] };
});
for (let round = 0; round < rounds; round++) {
  for (const server of servers) {
    server.results.push(await withServer(server.binary, (started) => processJobs(started, jobs, workers)));
  }
}
for (const { name, results } of servers) {
  const seconds = median(results.map((result) => result.seconds));
  const serverSeconds = median(results.map((result) => result.serverSeconds));
  const us = (serverSeconds / jobs) * 1e6;
  console.log(`${name}: ${seconds.toFixed(2)} s; server: ${serverSeconds.toFixed(2)} s of processor time, ${us.toFixed(0)} µs per job`);
}
process.exit(0);
