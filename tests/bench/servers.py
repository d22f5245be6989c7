"""Servers under measurement, and connections to them."""

import collections
import os
import shlex
import socket
import subprocess
import sys
import time

TIMEOUT_S = 300

# The program of a server with its arguments, and the library that is preloaded into it, or None.
Recipe = collections.namedtuple("Recipe", ["words", "preload"])


def parse_arguments(count):
    """Prints the command that was run. Returns its first `count` arguments as numbers, and a list of the names and recipes
    behind them: NAME=SERVER[,ARGUMENT...]. With `--preload PATH`, the library is preloaded into the servers whose name begins
    with `valkey`, and into no other process."""
    print("python3", shlex.join(sys.argv), flush=True)
    arguments, preload = sys.argv[1:], None
    if "--preload" in arguments:
        at = arguments.index("--preload")
        _, preload = arguments[at : at + 2]
        del arguments[at : at + 2]
        # The servers have other working directories. A name without a folder is found by the dynamic loader.
        preload = os.path.abspath(preload) if "/" in preload else preload
    servers = []
    for argument in arguments[count:]:
        name, words = argument.split("=", 1)
        servers.append((name, Recipe(words.split(","), preload if name.startswith("valkey") else None)))
    return [int(number) for number in arguments[:count]], servers


class Client:
    """A connection that sends commands and waits for their replies."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.file = self.socket.makefile("rb")

    def reply(self):
        line = self.file.readline()
        if line[:1] == b"$":
            size = int(line[1:])
            return b"" if size < 0 else self.file.read(size + 2)[:-2]
        return line.strip()

    def call(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"*%d\r\n" % len(words)]
        parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"".join(parts))
        return self.reply()

    def info(self, section):
        lines = self.call("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)


class Server:
    """A process of a server."""

    # The command lines that were printed.
    printed = set()

    def __init__(self, recipe, port, folder, *arguments, cores=None):
        self.port, self.preload = port, recipe.preload
        words = [*recipe.words, "--port", str(port), "--bind", "127.0.0.1", "--save", "", *arguments]
        preexec = None if cores is None else lambda: os.sched_setaffinity(0, cores)
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        if self.preload:
            environment["LD_PRELOAD"] = self.preload
        line = (f"LD_PRELOAD={shlex.quote(self.preload)} " if self.preload else "") + shlex.join(words)
        if line not in self.printed:
            self.printed.add(line)
            print(" ", line, flush=True)
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, preexec_fn=preexec
        )

    def check_preloaded(self):
        """Checks that the preloaded library is mapped: the dynamic loader only warns about one that it cannot load."""
        with open(f"/proc/{self.process.pid}/maps") as file:
            mapped = {os.path.basename(line.strip()) for line in file}
        wanted = {os.path.basename(path) for path in (self.preload, os.path.realpath(self.preload))}
        if not mapped & wanted:
            self.end()
            raise SystemExit(f"the server runs without {self.preload}")

    def ready_s(self):
        """Waits until the server serves its data. Returns the seconds since its start."""
        while time.monotonic() < self.start + TIMEOUT_S:
            if self.process.poll() is not None:
                raise SystemExit(f"the server has ended: {self.process.returncode}")
            try:
                client = Client(self.port)
                while client.call("PING").startswith(b"-LOADING"):
                    time.sleep(0.005)
                seconds = time.monotonic() - self.start
                if self.preload:
                    self.check_preloaded()
                return seconds
            except OSError:
                time.sleep(0.005)
        raise SystemExit("the server does not get ready")

    def processor_s(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        self.process.terminate()
        self.process.wait()
