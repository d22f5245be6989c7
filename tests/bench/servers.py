"""Servers under measurement, and connections to them."""

import os
import socket
import subprocess
import time

TIMEOUT_S = 300


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

    def __init__(self, command, port, folder, *arguments, cores=None):
        self.port = port
        words = [*command, "--port", str(port), "--bind", "127.0.0.1", "--save", "", *arguments]
        preexec = None if cores is None else lambda: os.sched_setaffinity(0, cores)
        self.start = time.monotonic()
        self.process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, preexec_fn=preexec)

    def ready_s(self):
        """Waits until the server serves its data. Returns the seconds since its start."""
        while time.monotonic() < self.start + TIMEOUT_S:
            if self.process.poll() is not None:
                raise SystemExit(f"the server has ended: {self.process.returncode}")
            try:
                client = Client(self.port)
                while client.call("PING").startswith(b"-LOADING"):
                    time.sleep(0.005)
                return time.monotonic() - self.start
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
