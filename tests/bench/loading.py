"""Measures how fast servers load their data: an RDB file, an append-only file, and a full synchronisation.

Each server writes the files that it loads itself. The servers take turns; the figures are medians. The loading time is
the time from the start of the process until it answers PING without a LOADING error; for a synchronisation, from
REPLICAOF until the link is up.

    python3 tests/bench/loading.py ROUNDS KEYS HASHES [--preload LIBRARY] NAME=SERVER[,ARGUMENT...]...

For instance `weft=weft-server,--io-threads,2`. KEYS strings of 64 bytes and HASHES hashes of 50 fields of 10 bytes.
LIBRARY is preloaded into the servers whose NAME begins with `valkey`.
"""

import shutil
import statistics
import tempfile
import time

from servers import Client, Server, parse_arguments

PORT = 7391
REPLICA_PORT = 7392
FIELDS = 50


def fill(port, keys, hashes):
    """Writes the data."""
    client = Client(port)
    value = b"v" * 64
    batch = 2000
    for first in range(0, keys, batch):
        count = min(batch, keys - first)
        client.socket.sendall(
            b"".join(
                b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$64\r\n%s\r\n" % (key, value)
                for key in range(first, first + count)
            )
        )
        client.file.read(count * 5)
    for number in range(hashes):
        words = [b"HSET", b"hash:%d" % number]
        for field in range(FIELDS):
            words += [b"field:%04d" % field, b"%010d" % (number * FIELDS + field)]
        assert client.call(*words) == b":%d" % FIELDS


def digest_of(port):
    return Client(port).call("DEBUG", "DIGEST")


DEBUG = ["--enable-debug-command", "yes"]


def prepare(recipe, folder, keys, hashes):
    """Writes a dump and an append-only file in `folder`. Returns the digest of the data."""
    server = Server(recipe, PORT, folder, "--appendonly", "yes", "--aof-use-rdb-preamble", "no", *DEBUG)
    server.ready_s()
    fill(PORT, keys, hashes)
    digest = digest_of(PORT)
    assert Client(PORT).call("SAVE") == b"+OK"
    server.end()
    return digest


def measure_load(recipe, folder, digest, *arguments):
    server = Server(recipe, PORT, folder, *arguments, *DEBUG)
    seconds, processor_s = server.ready_s(), server.processor_s()
    memory = int(Client(PORT).info("memory")["used_memory_peak"]) / int(Client(PORT).info("memory")["used_memory"])
    assert digest_of(PORT) == digest, "the loaded data is the written data"
    server.end()
    return seconds, processor_s, memory


def measure_synchronisation(recipe, folder, digest):
    """The primary is pinned to the first core, the replica to the second one."""
    at_once = ["--repl-diskless-sync-delay", "0"]
    primary = Server(recipe, PORT, folder, "--appendonly", "no", *at_once, *DEBUG, cores={0})
    primary.ready_s()
    with tempfile.TemporaryDirectory() as replica_folder:
        replica = Server(recipe, REPLICA_PORT, replica_folder, "--appendonly", "no", *DEBUG, cores={1})
        replica.ready_s()
        client = Client(REPLICA_PORT)
        start, used = time.monotonic(), (primary.processor_s(), replica.processor_s())
        client.call("REPLICAOF", "127.0.0.1", PORT)
        while True:
            try:
                if client.info("replication").get("master_link_status") == "up":
                    break
            except (OSError, ValueError):
                client = Client(REPLICA_PORT)
            time.sleep(0.005)
        seconds = time.monotonic() - start
        processor_s = primary.processor_s() - used[0] + replica.processor_s() - used[1]
        assert digest_of(REPLICA_PORT) == digest, "the replica has the data of its primary"
        replica.end()
    primary.end()
    return seconds, processor_s, 0


def main():
    (rounds, keys, hashes), servers = parse_arguments(3)
    kinds = ["RDB file", "append-only file", "synchronisation"]
    results = {(name, kind): [] for name, _ in servers for kind in kinds}
    folders = {name: tempfile.mkdtemp(prefix="loading-") for name, _ in servers}
    digests = {}
    try:
        for name, recipe in servers:
            digests[name] = prepare(recipe, folders[name], keys, hashes)
        for _ in range(rounds):
            for name, recipe in servers:
                folder, digest = folders[name], digests[name]
                results[name, kinds[0]].append(measure_load(recipe, folder, digest, "--appendonly", "no"))
                results[name, kinds[1]].append(measure_load(recipe, folder, digest, "--appendonly", "yes"))
                results[name, kinds[2]].append(measure_synchronisation(recipe, folder, digest))
    finally:
        for folder in folders.values():
            shutil.rmtree(folder)
    for (name, kind), figures in results.items():
        seconds, processor_s, memory = (statistics.median(column) for column in zip(*figures))
        memory = f", peak memory {memory:.2f} of the data" if memory else ""
        print(f"{kind}, {name}: {seconds:.2f} s, {processor_s:.2f} s of processor time{memory}")


main()
