// Smoke test: ioredis against a server on the given loopback port.
"use strict";

const assert = require("node:assert/strict");
const Redis = require("ioredis");

const port = Number(process.argv[2]);

async function strings(client) {
  assert.equal(await client.ping(), "PONG");
  assert.equal(await client.set("js:key", "value"), "OK");
  assert.equal(await client.get("js:key"), "value");
  assert.equal(await client.set("js:key", "x", "NX"), null);
  assert.deepEqual(await client.mget("js:key", "js:none"), ["value", null]);
  assert.equal(await client.incrby("js:count", 5), 5);
  assert.equal(await client.incrbyfloat("js:count", 0.5), "5.5");
  const bytes = Buffer.from(Array.from({ length: 4096 }, (_, index) => index % 256));
  await client.set("js:bytes", bytes);
  assert.deepEqual(await client.getBuffer("js:bytes"), bytes);
  assert.equal(await client.del("js:key", "js:count", "js:none"), 2);
}

async function pipelines(client) {
  const pipeline = client.pipeline();
  for (let number = 0; number < 1000; number++) {
    pipeline.set(`js:p:${number}`, number).get(`js:p:${number}`);
  }
  const replies = await pipeline.exec();
  assert.equal(replies.length, 2000);
  replies.forEach(([error, reply], index) => {
    assert.equal(error, null);
    assert.equal(reply, index % 2 ? String((index - 1) / 2) : "OK");
  });
  const found = new Set();
  for await (const keys of client.scanStream({ match: "js:p:*", count: 100 })) {
    keys.forEach((key) => found.add(key));
  }
  assert.equal(found.size, 1000);
}

async function expiry(client) {
  await client.set("js:short", "x", "PX", 30);
  const left = await client.pttl("js:short");
  assert.ok(left > 0 && left <= 30, `pttl ${left}`);
  await new Promise((resolve) => setTimeout(resolve, 60));
  assert.equal(await client.get("js:short"), null);
  await client.set("js:long", "x", "EX", 100);
  assert.equal(await client.persist("js:long"), 1);
  assert.equal(await client.ttl("js:long"), -1);
}

async function errors(client) {
  await client.set("js:text", "abc");
  await assert.rejects(client.incr("js:text"), /ERR value is not an integer/);
  await assert.rejects(client.call("NOSUCH"), /ERR unknown command/);
  assert.equal(await client.get("js:text"), "abc");
}

async function main() {
  const client = new Redis({ host: "127.0.0.1", port, connectionName: "smoke" });
  await client.flushall();
  for (const part of [strings, pipelines, expiry, errors]) {
    await part(client);
  }
  assert.equal(await client.client("GETNAME"), "smoke");
  const second = new Redis({ host: "127.0.0.1", port, db: 3 });
  await second.set("js:db", "three");
  assert.equal(await client.get("js:db"), null);
  assert.equal(await second.get("js:db"), "three");
  await Promise.all([client.quit(), second.quit()]);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
