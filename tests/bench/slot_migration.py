"""Measures atomic slot migration between two nodes of a cluster, without writes and under as many writes as clients reach.

The source has KEYS strings of 100 bytes and LARGE hashes of 9 MB. Slots 0 to 15999 move to an empty target, the rest
stays. `redis-benchmark` writes random strings of the source without a pause; two further clients send one request after
the other, one to a slot that stays, the other one to a slot that leaves, and follow MOVED. Printed are the time from
CLUSTER MIGRATESLOTS until the source reports success, the 99.9th percentile of the slot that stays before and during
the migration, and the longest time that a write to the slot that leaves took, before and during it.

    python3 tests/bench/slot_migration.py ROUNDS KEYS LARGE [--preload LIBRARY] NAME=SERVER[,ARGUMENT...]...

LIBRARY is preloaded into the servers whose NAME begins with `valkey`.
"""

import multiprocessing
import shutil
import statistics
import subprocess
import tempfile
import time

from servers import Client, Server, parse_arguments

SOURCE, TARGET = 7393, 7394
LAST_MOVING = 15999
FIELD_BYTES = 1000
FIELDS = 9000
QUIET_S = 5
LIMIT_S = 300


def node(recipe, port, folder):
    cluster = ["--cluster-enabled", "yes", "--cluster-config-file", f"nodes-{port}.conf", "--appendonly", "no"]
    limits = ["--client-output-buffer-limit", "replica 0 0 0"]
    server = Server(recipe, port, folder, *cluster, *limits)
    server.ready_s()
    return server


def form_cluster():
    source, target = Client(SOURCE), Client(TARGET)
    source.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
    source.call("CLUSTER", "MEET", "127.0.0.1", TARGET)
    clients = [source, target]
    while not all(b"cluster_state:ok" in client.call("CLUSTER", "INFO") for client in clients):
        time.sleep(0.05)
    while b" 0-16383" not in target.call("CLUSTER", "NODES"):
        time.sleep(0.05)
    return target.call("CLUSTER", "MYID")


def fill(keys, large):
    client = Client(SOURCE)
    value = b"v" * 100
    for first in range(0, keys, 2000):
        count = min(2000, keys - first)
        request = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$100\r\n%s\r\n"
        client.socket.sendall(b"".join(request % (key, value) for key in range(first, first + count)))
        client.file.read(count * 5)
    for number in range(large):
        words = [b"HSET", b"large:%d" % number]
        for field in range(FIELDS):
            words += [b"field:%d" % field, b"f" * FIELD_BYTES]
        assert client.call(*words) == b":%d" % FIELDS


def key_in(first, last):
    client = Client(SOURCE)
    names = (f"probe:{number}" for number in range(10**6))
    return next(name for name in names if first <= int(client.call("CLUSTER", "KEYSLOT", name)[1:]) <= last)


def probe(key, stop, results):
    """Writes a key again and again, each time at its owner. Sends the times and durations of the writes."""
    clients = [Client(SOURCE), None]
    at, seen = 0, []
    while not stop.is_set():
        begin = time.monotonic()
        while not clients[at].call("SET", key, "x" * 100).startswith(b"+OK"):
            at = 1 - at
            clients[at] = clients[at] or Client(TARGET)
        seen.append((begin, time.monotonic() - begin))
    results.send(seen)


class Probe:
    """A process that writes one key."""

    def __init__(self, key):
        self.stop = multiprocessing.Event()
        self.results, sender = multiprocessing.Pipe(False)
        self.process = multiprocessing.Process(target=probe, args=(key, self.stop, sender))
        self.process.start()

    def finish(self):
        self.stop.set()
        seen = self.results.recv()
        self.process.join()
        return seen


def migrate(target_id):
    """Returns the seconds that the migration took, or None if it failed."""
    client = Client(SOURCE)
    begin = time.monotonic()
    reply = client.call("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", 0, LAST_MOVING, "NODE", target_id)
    assert reply == b"+OK", reply
    while time.monotonic() < begin + LIMIT_S:
        nodes = client.call("CLUSTER", "NODES").decode().splitlines()
        myself = next(line for line in nodes if "myself" in line)
        if f" {LAST_MOVING + 1}-16383" in myself:
            return time.monotonic() - begin
        client.socket.sendall(b"*2\r\n$7\r\nCLUSTER\r\n$17\r\nGETSLOTMIGRATIONS\r\n")
        states = read_array(client)
        if "failed" in states or "cancelled" in states:
            return None
        time.sleep(0.01)
    return None


def read_array(client):
    """Reads a reply of any depth. Returns its texts."""
    line = client.file.readline()
    if line[:1] == b"*":
        return [text for _ in range(int(line[1:])) for text in read_array(client)]
    if line[:1] == b"$":
        return [client.file.read(int(line[1:]) + 2)[:-2].decode()]
    return [line[1:].strip().decode()]


def longest(seen, begin, end):
    return max(duration for at, duration in seen if begin <= at <= end)


def percentile(seen, begin, end):
    durations = sorted(duration for at, duration in seen if begin <= at <= end)
    return durations[int(len(durations) * 0.999)]


def measure(recipe, keys, large, has_writes):
    folder = tempfile.mkdtemp(prefix="migration-")
    nodes = [node(recipe, port, folder) for port in (SOURCE, TARGET)]
    try:
        target_id = form_cluster()
        fill(keys, large)
        if not has_writes:
            return [migrate(target_id)]
        words = ["redis-benchmark", "-p", str(SOURCE), "-t", "set", "-d", "100", "-r", str(keys)]
        words += ["-P", "16", "-c", "20", "-n", "2000000000", "-q"]
        writer = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        staying, leaving = Probe(key_in(LAST_MOVING + 1, 16383)), Probe(key_in(0, LAST_MOVING))
        quiet = time.monotonic()
        before = writes()
        time.sleep(QUIET_S)
        rate = (writes() - before) / QUIET_S
        begin = time.monotonic()
        seconds = migrate(target_id)
        end = time.monotonic()
        time.sleep(0.5)
        stays, leaves = staying.finish(), leaving.finish()
        writer.kill()
        writer.wait()
        milliseconds = [
            percentile(stays, quiet, begin),
            percentile(stays, begin, end),
            longest(leaves, quiet, begin),
            longest(leaves, begin, end + 0.5),
        ]
        return [seconds, *(1000 * value for value in milliseconds), rate]
    finally:
        for server in nodes:
            server.process.kill()
            server.process.wait()
        shutil.rmtree(folder)


def writes():
    return int(Client(SOURCE).info("stats")["total_commands_processed"])


def describe(name, has_writes, rounds):
    done = [figures for figures in rounds if figures[0] is not None]
    what = "under writes" if has_writes else "without writes"
    if not done:
        return f"{name}, {what}: failed in {len(rounds)} of {len(rounds)} rounds"
    medians = [statistics.median(column) for column in zip(*done)]
    text = f"{name}, {what}: {medians[0]:.2f} s, failed in {len(rounds) - len(done)} of {len(rounds)} rounds"
    if has_writes:
        text += (
            f"; {medians[5]:.0f} writes/s before; slot that stays: p99.9 {medians[1]:.2f} ms before,"
            f" {medians[2]:.2f} ms during it; slot that leaves: longest {medians[3]:.2f} and {medians[4]:.2f} ms"
        )
    return text


def main():
    (rounds, keys, large), servers = parse_arguments(3)
    results = {}
    for _ in range(rounds):
        for name, recipe in servers:
            for has_writes in (False, True):
                figures = measure(recipe, keys, large, has_writes)
                results.setdefault((name, has_writes), []).append(figures)
    for (name, has_writes), figures in results.items():
        print(describe(name, has_writes, figures))


if __name__ == "__main__":
    main()
