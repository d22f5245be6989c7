"""Executes the examples of docs/book, and of docs/metrics.md, and compares their output with what the book shows.

    python3 tests/book/check.py [--server PATH] [--valkey PATH] [--cli PATH] [--only TEXT] [--first-port N]

Each section (`## heading`) of a chapter is one check. Its blocks marked ```console are executed by one shell, in a
directory of the section's own. A line that begins with `$ ` is a command, `> ` continues it, and the lines behind it are
the expected output. There, a line `...` stands for any lines and `<...>` for any text. Blocks marked ```conf must be
accepted by `--check-config`.

The ports of the book are replaced by free ones. Comments `<!-- check: ... -->` add what a reader does not type:

    needs PROGRAM              skips the section, by name, if there is no such program
    fill PORT                  writes keys of all types
    dump FORMAT FILE           writes a dump as another program does, with keys of all types (dumps.py)
    same PORT                  the server has these keys, with the same values and times to live
    writer PORT...             starts clients that write all the time; several ports are nodes of a cluster
    switch PORT                the clients write to this server from now on
    lost-nothing PORT          ends the clients: the server has all writes that were acknowledged

What is missing is skipped, and named. The last line counts the results.
"""

import argparse
import contextlib
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import cli
import dumps

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOOK = os.path.join(ROOT, "docs/book/src")
# Pages beside the book with blocks that are executed, too.
OTHER_PAGES = ["../../metrics.md"]
# Ends only a hang.
PATIENCE_S = 120
PORTS = ["6379", "6380", "7001", "7002", "7003", "7004", "9121"]
PORT_PATTERN = re.compile(r"(?<![\d.])(1?)(" + "|".join(PORTS) + r")(?!\d)")
# The client of the examples, unless a real one is given.
STAND_IN = os.path.join(ROOT, "tests/book/cli.py")
# A real client prints as on a terminal, and waits for a server that has just been started.
REAL_CLIENT = """
for try in $(seq 200); do
    output=$({} --no-raw "$@" 2>&1)
    [[ "$output" == "Could not connect"* ]] || break
    sleep 0.1
done
grep -v '^Warning: Using a password' <<< "$output" | sed -e '${{/^$/d}}'
"""
# Writes that each side of a move must have acknowledged before the recipe goes on.
WRITES = 200
# Between two writes of a client, so that the servers and the check have a part of the processors, too.
PAUSE_S = 0.001


class Skipped(Exception):
    """The check needs something that this machine does not have."""


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


def free_port(first):
    """Returns a port that is free at the moment, as is the one of its cluster bus."""
    port = first or 20000 + os.getpid() % 5000
    while True:
        port += 1
        with contextlib.suppress(OSError), socket.socket() as client, socket.socket() as bus:
            client.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10000))
            return port


# ---- The book ----------------------------------------------------------------------------------


class Step:
    """A command with its expected output, or a directive of a comment, or a configuration."""

    def __init__(self, kind, line, text):
        self.kind, self.line, self.text, self.expected = kind, line, text, []


def sections(chapter):
    """Returns the sections of a chapter that have something to execute, as (heading, steps)."""
    found, heading, steps, block = [], chapter, [], None
    for number, line in enumerate(read(BOOK, chapter).splitlines(), 1):
        if block is not None:
            if line.startswith("```"):
                block = None
            elif block == "conf":
                steps[-1].text += line + "\n"
            elif block == "console" and line.startswith("$ "):
                steps.append(Step("command", number, line[2:]))
            elif block == "console" and line.startswith("> "):
                steps[-1].text += "\n" + line[2:]
            elif block == "console":
                assert steps and steps[-1].kind == "command", f"{chapter}:{number}: output without a command"
                steps[-1].expected.append(line)
        elif line.startswith("```"):
            block = line[3:].strip() or "text"
            assert block in ("c", "console", "conf", "text", "yaml"), f"{chapter}:{number}: a block of an unknown kind '{block}'"
            if block == "conf":
                steps.append(Step("conf", number, ""))
        elif directive := re.fullmatch(r"<!-- check: (.*) -->", line):
            steps.append(Step("directive", number, directive.group(1)))
        elif line.startswith("## "):
            found.append((heading, steps))
            heading, steps = line[3:], []
    assert block is None, f"{chapter}: a block without an end"
    found.append((heading, steps))
    return [(heading, steps) for heading, steps in found if steps]


def expectation(lines):
    """Returns a pattern for the whole output of a command."""
    pattern = ""
    for line in lines:
        if line == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.split("<...>")) + r"\n"
    return re.compile(pattern)


# ---- Clients that write all the time -----------------------------------------------------------


class Connection:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def close(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def call(self, *words):
        parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts))
        return cli.read_reply(self.stream)


class Writer(threading.Thread):
    """Writes key after key, and repeats a write until it is acknowledged."""

    def __init__(self, number, ports):
        super().__init__(daemon=True)
        self.number, self.ports = number, ports
        self.acknowledged, self.by_port, self.refusals = 0, {}, set()
        self.connections, self.has_ended, self.target = {}, False, ports[0]

    def switch(self, port):
        self.ports = [port]
        # What the old server holds back gets no reply any more.
        for connection in list(self.connections.values()):
            connection.close()
        self.target = port

    def run(self):
        tries = 0
        while not self.has_ended:
            port = self.target
            try:
                if port not in self.connections:
                    self.connections[port] = Connection(port)
                kind, reply = self.connections[port].call("SET", f"written:{self.number}:{self.acknowledged}", self.acknowledged)
            except (OSError, EOFError, ValueError):
                self.connections.pop(port, None)
                tries += 1
                if port == self.target:
                    self.target = self.ports[tries % len(self.ports)]
                time.sleep(0.01)
                continue
            if kind == b"+":
                if port != self.target and len(self.ports) == 1:
                    # The reply came from the old server although the client had been told to leave it.
                    continue
                self.by_port[port] = self.by_port.get(port, 0) + 1
                self.acknowledged += 1
                time.sleep(PAUSE_S)
                continue
            self.refusals.add(reply.split()[0])
            if reply.startswith(b"MOVED"):
                self.target = int(reply.rsplit(b":", 1)[1])
            else:
                time.sleep(0.01)


# ---- A section ---------------------------------------------------------------------------------

FILL = [
    ["SET", "string", "text"], ["SET", "number", "12345"], ["SET", "bytes", b"\x00\xff" * 300], ["SETEX", "expiring", "5000", "soon"],
    ["RPUSH", "list", *range(1000)], ["HSET", "hash", "field", "value", "number", "7"],
    ["HSET", "large-hash", *[f"{kind}{number}" for number in range(1000) for kind in "fv"]],
    ["SADD", "integers", *range(100)], ["SADD", "set", *[f"member{number}" for number in range(1000)]],
    ["ZADD", "sorted", *[word for number in range(1000) for word in (number / 4, f"m{number}")]],
    ["XADD", "stream", "1-1", "field", "value"], ["XADD", "stream", "2-1", "field", "other"],
    ["XGROUP", "CREATE", "stream", "group", "0"], ["PFADD", "loglog", *range(500)], ["SETBIT", "bits", "1000", "1"],
    ["GEOADD", "places", "13.4", "52.5", "Berlin"],
]
VALUE_OF = {
    b"string": ["GET"], b"list": ["LRANGE", "0", "-1"], b"hash": ["HGETALL"], b"set": ["SMEMBERS"],
    b"zset": ["ZRANGE", "0", "-1", "WITHSCORES"], b"stream": ["XRANGE", "-", "+"],
}


def contents(connection):
    """Returns every key with its type, value and whether it expires. The order of hashes and sets does not matter."""
    found = {}
    for _, key in connection.call("KEYS", "*")[1]:
        kind = connection.call("TYPE", key)[1]
        command, *rest = VALUE_OF[kind]
        value = connection.call(command, key, *rest)[1]
        if kind == b"hash":
            value = sorted(zip(value[::2], value[1::2]))
        elif kind == b"set":
            value = sorted(value)
        expires = int(connection.call("PTTL", key)[1])
        assert expires == -1 or 1_000_000 < expires <= 5_000_000, (key, expires)
        groups = connection.call("XINFO", "GROUPS", key)[1] if kind == b"stream" else None
        found[key] = (kind, value, expires != -1, len(groups or []))
    return found


class Place:
    """The directory of one section, with its shell and the servers it has started."""

    def __init__(self, path, programs, first_port, client):
        self.path, self.writers, self.filled, self.ports = path, [], {}, {}
        for port in PORTS:
            first_port = free_port(first_port)
            self.ports[port] = str(first_port)
        self.bin = os.path.join(path, ".bin")
        self.pids = os.path.join(path, ".pids")
        os.makedirs(self.bin)
        os.makedirs(os.path.join(path, "home"))
        open(self.pids, "w", encoding="utf-8").close()
        for name, (program, libraries) in programs.items():
            script = f'echo $$ >> {self.pids}\nexport LD_LIBRARY_PATH={libraries}\nexec {program} "$@"'
            self.program(name, script if name.endswith("-server") else f'export LD_LIBRARY_PATH={libraries}\nexec {program} "$@"')
        self.program("valkey-cli", REAL_CLIENT.format(client) if client else f'exec {sys.executable} {STAND_IN} "$@"')
        self.shell = subprocess.Popen(
            ["bash", "--norc"], cwd=os.path.join(path, "home"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": os.path.join(path, "home"), "LC_ALL": "C", "WEFT_SOURCE": ROOT},
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self):
        for line in self.shell.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def program(self, name, script):
        path = os.path.join(self.bin, name)
        # A program under two names finds its role in the name.
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/bash\n{script}\n")
        os.chmod(path, 0o755)

    def with_ports(self, text):
        return PORT_PATTERN.sub(lambda match: str(int(self.ports[match[2]]) + (10000 if match[1] else 0)), text)

    def execute(self, command):
        """Runs a command in the shell. Returns its output."""
        end = "end-of-output"
        self.shell.stdin.write(f"{command}\necho {end}\n")
        self.shell.stdin.flush()
        output, deadline = "", time.monotonic() + PATIENCE_S
        while True:
            try:
                line = self.lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"not within {PATIENCE_S} s: {command}\n{output}") from None
            assert line is not None, f"the shell has ended: {command}\n{output}"
            if line.endswith(f"{end}\n"):
                rest = line[: -len(end) - 1]
                return output + (rest + "\n" if rest else "")
            output += line

    def logs(self):
        text = ""
        for folder, _, names in os.walk(os.path.join(self.path, "home")):
            for name in sorted(names):
                if name.endswith(".log"):
                    text += f"--- {name}\n" + "".join(read(folder, name).splitlines(keepends=True)[-25:])
        return text

    def close(self):
        for writer in self.writers:
            writer.has_ended = True
        with contextlib.suppress(OSError):
            self.shell.stdin.close()
        for pid in map(int, read(self.pids).split()):
            # A number that was given to another process meanwhile is not ours.
            with contextlib.suppress(OSError):
                if os.getsid(pid) == self.shell.pid:
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.killpg(self.shell.pid, signal.SIGKILL)
        self.shell.wait()

    def port(self, word):
        return int(self.ports[word])

    def directive(self, verb, *words):
        if verb == "fill":
            connection = Connection(self.port(words[0]))
            for command in FILL:
                kind, reply = connection.call(*command)
                assert kind != b"-", (command, reply)
            self.filled = contents(connection)
            assert len(self.filled) >= len(FILL) - 2
            connection.close()
        elif verb == "dump":
            with open(os.path.join(self.path, "home", words[1]), "wb") as file:
                file.write(dumps.FORMATS[words[0]]())
            self.filled = dumps.expected()
        elif verb == "same":
            connection = Connection(self.port(words[0]))
            found = contents(connection)
            connection.close()
            found = {key: value for key, value in found.items() if not key.startswith(b"written:")}
            different = {key for key in {*found, *self.filled} if found.get(key) != self.filled.get(key)}
            assert self.filled and not different, f"these keys differ: {different}"
        elif verb == "writer":
            ports = [self.port(word) for word in words]
            self.writers = [Writer(number, ports) for number in range(3)]
            for writer in self.writers:
                writer.start()
            self.wait_for_writes(None)
        elif verb == "switch":
            for writer in self.writers:
                writer.switch(self.port(words[0]))
        elif verb == "lost-nothing":
            port = self.port(words[0])
            self.wait_for_writes(port)
            for writer in self.writers:
                writer.has_ended = True
            for writer in self.writers:
                writer.join(PATIENCE_S)
                assert not writer.is_alive()
            self.count_writes(port)
        else:
            raise AssertionError(f"unknown directive '{verb}'")

    def wait_for_writes(self, port):
        """Waits until every client has written to this server, or to any one."""
        end = time.monotonic() + PATIENCE_S
        for writer in self.writers:
            while (writer.acknowledged if port is None else writer.by_port.get(port, 0)) < WRITES:
                assert time.monotonic() < end, f"a client cannot write to {port}: {writer.by_port}, {writer.refusals}"
                time.sleep(0.02)

    def count_writes(self, port):
        connections = {port: Connection(port)}
        for writer in self.writers:
            for number in range(writer.acknowledged):
                target = port
                while True:
                    if target not in connections:
                        connections[target] = Connection(target)
                    kind, reply = connections[target].call("GET", f"written:{writer.number}:{number}")
                    if not (kind == b"-" and reply.startswith(b"MOVED")):
                        break
                    target = int(reply.rsplit(b":", 1)[1])
                assert reply == str(number).encode(), f"an acknowledged write is lost: {writer.number}:{number}: {reply}"
        total = sum(writer.acknowledged for writer in self.writers)
        print(f"  {total} acknowledged writes are there", flush=True)


def check_section(chapter, steps, place, server):
    for step in steps:
        where = f"{chapter}:{step.line}"
        try:
            if step.kind == "directive":
                if not step.text.startswith("needs "):
                    place.directive(*step.text.split())
            elif step.kind == "conf":
                path = os.path.join(place.path, "checked.conf")
                text = step.text.replace("/var/lib/weft", place.path).replace("/etc/weft", place.path)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(text)
                done = subprocess.run([server, "--check-config", path], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
            else:
                output = place.execute(place.with_ports(step.text))
                expected = [place.with_ports(line) for line in step.expected]
                while expected and not expected[-1]:
                    expected.pop()
                assert expectation(expected).fullmatch(output), (
                    f"$ {step.text}\n--- expected\n" + "\n".join(expected) + f"\n--- printed\n{output}"
                )
        except AssertionError as why:
            raise AssertionError(f"{where}: {why}\n{place.logs()}") from None


# ---- The pages ---------------------------------------------------------------------------------


def summary_lists_every_chapter():
    listed = re.findall(r"\]\(([^)]+)\)", read(BOOK, "SUMMARY.md"))
    files = sorted(name for name in os.listdir(BOOK) if name.endswith(".md") and name != "SUMMARY.md")
    assert sorted(listed) == files, set(listed) ^ set(files)


def included_files_exist():
    for name in os.listdir(BOOK):
        if name.endswith(".md"):
            for path, anchor in re.findall(r"\{\{#include ([^}:]+):?(\w*)\}\}", read(BOOK, name)):
                text = read(BOOK, path)
                assert not anchor or f"ANCHOR: {anchor} " in text and f"ANCHOR_END: {anchor} " in text, (name, path, anchor)


def programs_of(options):
    """Returns the programs that examples call: name, path and directory of its libraries."""
    # `exec -a` keeps the name under which a program acts, also that of a link to it.
    found = {"weft-server": (f'-a "$0" {options.server}', "")}
    for name in ("valkey-check-rdb", "valkey-check-aof"):
        found[name] = (f"-a {name} {options.server}", "")
    top = os.path.join(os.path.dirname(options.server), "weft-top")
    if os.path.exists(top):
        found["weft-top"] = (top, "")
    if options.valkey and os.path.exists(options.valkey):
        found["valkey-server"] = (options.valkey, "")
    unpacked = os.path.join(ROOT, "target/tools/redis/usr")
    # Debian's redis-check-rdb is the same program as its redis-server.
    program = os.path.join(unpacked, "bin/redis-check-rdb")
    if path := shutil.which("keydb-server"):
        found["keydb-server"] = (path, "")
    if path := shutil.which("redis-server"):
        found["redis-server"] = (path, "")
    elif os.path.exists(program):
        found["redis-server"] = (f"-a redis-server {program}", os.path.join(unpacked, f"lib/{os.uname().machine}-linux-gnu"))
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default=os.path.join(ROOT, "target/debug/weft-server"))
    parser.add_argument("--valkey", default="")
    parser.add_argument("--cli", default="", help="a real valkey-cli, instead of the stand-in")
    parser.add_argument("--only", default="", help="runs the checks whose names contain this")
    parser.add_argument("--first-port", type=int, default=0)
    options = parser.parse_args()
    options.server = os.path.abspath(options.server)
    if not os.path.exists(options.server):
        sys.exit(f"there is no {options.server}; `cargo build -p weft-server` makes it")
    programs = programs_of(options)
    passed, failed, skipped = 0, [], []

    def attempt(name, check):
        nonlocal passed
        if options.only not in name:
            return
        try:
            check()
            passed += 1
            print(f"{name}: passed", flush=True)
        except Skipped as why:
            skipped.append(f"{name}: {why}")
        except Exception:
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
            failed.append(name)

    def run_section(chapter, steps):
        for step in steps:
            if step.kind == "directive" and step.text.startswith("needs "):
                for name in step.text.split()[1:]:
                    if name not in programs and not shutil.which(name):
                        raise Skipped(f"there is no {name}")
        with tempfile.TemporaryDirectory(prefix="weft-book-", ignore_cleanup_errors=True) as path:
            place = Place(path, programs, options.first_port, options.cli)
            try:
                check_section(chapter, steps, place, options.server)
            finally:
                place.close()

    attempt("summary_lists_every_chapter", summary_lists_every_chapter)
    attempt("included_files_exist", included_files_exist)
    for chapter in sorted(os.listdir(BOOK)) + OTHER_PAGES:
        if chapter.endswith(".md"):
            for heading, steps in sections(chapter):
                attempt(f"{chapter}, {heading}", lambda chapter=chapter, steps=steps: run_section(chapter, steps))
    for line in skipped:
        print(f"skipped {line}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
