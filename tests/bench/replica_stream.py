"""Measures how fast a replica applies the stream of its primary.

Plays the primary: answers the handshake of a server that it starts, sends an empty dump, then SET commands of keys in
random order, twice: the first time the keys are new, the second time they exist. Prints the writes per second until the
replica acknowledges the last one, the processor time of the server per write, and the processor time of each of its
threads in clock ticks.

Primary and replica run in turn, so that the replica has all cores: while it is stopped, a piece of the stream is put
into the buffers of the system, and only the time from its continuation to its acknowledgement counts. This needs the
right to exceed the system's limits for buffers (CAP_NET_ADMIN). The server is Weft: Valkey has no such threads.

    python3 tests/bench/replica_stream.py SERVER THREADS [KEYS] [ARGUMENT...]
"""

import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time

VALUE = b"v" * 64
PIECE_BYTES = 16 << 20
SO_SNDBUFFORCE = 32  # socket(7)
GETACK = b"*3\r\n$8\r\nREPLCONF\r\n$6\r\nGETACK\r\n$1\r\n*\r\n"
SELECT = b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n"
DUMP = b"REDIS0011\xff" + bytes(8)


def writes(keys):
    """Returns one SET for each key, in random order, in pieces."""
    order = list(range(keys))
    random.Random(1).shuffle(order)
    command = b"*3\r\n$3\r\nSET\r\n$16\r\nkey:%012d\r\n$64\r\n" + VALUE + b"\r\n"
    count = PIECE_BYTES // len(command % 0)
    return [b"".join(command % key for key in order[at : at + count]) for at in range(0, keys, count)]


def request(stream):
    """Returns the words of the replica's next request."""
    line = stream.readline()
    while line == b"\n":
        line = stream.readline()
    words = []
    for _ in range(int(line[1:])):
        size = int(stream.readline()[1:])
        words.append(stream.read(size + 2)[:-2])
    return words


def ticks(path):
    """Returns the name and the processor time of a process or thread (proc_pid_stat(5))."""
    with open(path) as file:
        name, fields = file.read().rsplit(")", 1)
    fields = fields.split()
    return name.split("(", 1)[1], int(fields[11]) + int(fields[12])


def thread_ticks(pid):
    """Returns the processor time of all threads that have used some."""
    tasks = f"/proc/{pid}/task"
    times = {}
    for task in os.listdir(tasks):
        name, time_used = ticks(f"{tasks}/{task}/stat")
        times[name] = times.get(name, 0) + time_used
    return {name: time_used for name, time_used in times.items() if time_used}


def run_in_turn(connection, replies, pid, stream, end):
    """Sends the writes of `stream` from offset `end` of the replication on. Returns the seconds that the replica ran,
    and the offset after them."""
    seconds = 0
    for piece in stream:
        os.kill(pid, signal.SIGSTOP)
        piece = SELECT + piece + GETACK
        connection.sendall(piece)
        end += len(piece)
        started = time.perf_counter()
        os.kill(pid, signal.SIGCONT)
        # Servers differ in whether the answer counts its own request.
        while int(request(replies)[2]) < end - len(GETACK):
            pass
        seconds += time.perf_counter() - started
    return seconds, end


def main():
    server, threads = sys.argv[1:3]
    keys = int(sys.argv[3]) if len(sys.argv) > 3 else 3_000_000
    stream = writes(keys)
    listener = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    own = ["--bind", "127.0.0.1", "--port", str(port), "--save", "", "--replica-apply-threads", threads]
    follow = ["--replicaof", f"127.0.0.1 {listener.getsockname()[1]}"]
    command = [server, *own, *follow, *sys.argv[4:]]
    print("python3", shlex.join(sys.argv))
    print(" ", shlex.join(command), flush=True)
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        connection, _ = listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4 * PIECE_BYTES)
        replies = connection.makefile("rb")
        while (words := request(replies))[0] != b"PSYNC":
            connection.sendall(b"+PONG\r\n" if words[0] == b"PING" else b"+OK\r\n")
        connection.sendall(b"+FULLRESYNC " + b"1" * 40 + b" 0\r\n$%d\r\n" % len(DUMP) + DUMP)
        while request(replies)[2] != b"0":
            pass
        end = 0
        for name in ("new keys", "existing keys"):
            path = f"/proc/{child.pid}/stat"
            load = os.getloadavg()[0]
            used = ticks(path)[1]
            seconds, end = run_in_turn(connection, replies, child.pid, stream, end)
            used = (ticks(path)[1] - used) / os.sysconf("SC_CLK_TCK")
            print(
                f"{name}, {threads} threads: {keys / seconds:,.0f} writes/s, {used / keys * 1e6:.3f} CPU-us/write,"
                f" load average {load:.1f}, ticks {thread_ticks(child.pid)}",
                flush=True,
            )
    finally:
        child.kill()


if __name__ == "__main__":
    main()
