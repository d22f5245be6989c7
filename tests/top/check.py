"""Runs weft-top in a terminal emulator, and as JSON, against a server.

    python3 tests/top/check.py --top PATH --server PATH [--valkey PATH] [--only TEXT]

The dashboard runs in a pseudo-terminal whose output goes through the emulator `pyte`, so the checks see what a user sees.
Each check starts the servers that it needs. The last line counts the results.
"""

import argparse
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback

import pyte

BOOK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/book/src/weft-top.md")
# Ends only a hang.
PATIENCE_S = 60
ENTER_ALTERNATE_SCREEN = b"\x1b[?1049h"
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"
SHOW_CURSOR = b"\x1b[?25h"


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError(f"not within {PATIENCE_S} s: {what()}")


class Client:
    """A connection that sends commands and reads simple replies."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.file = self.socket.makefile("rb")

    def call(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        parts = [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(parts))
        return self.read()

    def read(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        kind, body = line[:1], line[1:-2]
        if kind == b"$":
            return None if body == b"-1" else self.file.read(int(body) + 2)[:-2]
        if kind == b"*":
            return [self.read() for _ in range(int(body))]
        return int(body) if kind == b":" else body

    def is_closed(self):
        try:
            self.call("PING")
        except OSError:
            return True
        return False


class Server:
    def __init__(self, program, *arguments, port=None):
        self.port = port or free_port()
        self.directory = tempfile.TemporaryDirectory()
        words = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.directory.name]
        log = os.path.join(self.directory.name, "log")
        self.process = subprocess.Popen([*words, "--logfile", log, *arguments])
        wait_until(self.replies, lambda: f"{program} does not start")

    def replies(self):
        with contextlib.suppress(OSError):
            return Client(self.port).call("PING") in (b"PONG", b"NOAUTH Authentication required.")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.directory.cleanup()


class Terminal:
    """The dashboard in an emulated terminal."""

    def __init__(self, program, *arguments, columns=80, lines=24, environment=()):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.output = b""
        self.lock = threading.Lock()
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm-256color", **dict(environment)})
            os.execv(program, [program, *arguments])
        self.set_size(columns, lines)
        self.modes = termios.tcgetattr(self.descriptor)
        threading.Thread(target=self.receive, daemon=True).start()

    def set_size(self, columns, lines):
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def receive(self):
        with contextlib.suppress(OSError):
            while data := os.read(self.descriptor, 65536):
                with self.lock:
                    self.output += data
                    self.stream.feed(data)

    def resize(self, columns, lines):
        with self.lock:
            self.screen.resize(lines, columns)
        self.set_size(columns, lines)

    def press(self, keys):
        os.write(self.descriptor, keys.encode())

    def text(self):
        with self.lock:
            return "\n".join(self.screen.display)

    def shows(self, *texts):
        wait_until(lambda: all(text in self.text() for text in texts), lambda: f"{texts} in\n{self.text()}")

    def exit_code(self):
        """Waits for the end of the program, which must have restored the terminal."""
        status = []

        def ended():
            pid, code = os.waitpid(self.pid, os.WNOHANG)
            status.append(code)
            return pid != 0

        wait_until(ended, lambda: f"the program does not end\n{self.text()}")
        wait_until(lambda: SHOW_CURSOR in self.output, lambda: "the cursor is not shown again")
        assert self.output.count(LEAVE_ALTERNATE_SCREEN) == self.output.count(ENTER_ALTERNATE_SCREEN) == 1
        return os.waitstatus_to_exitcode(status[-1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def run_json(top, port, *arguments, environment=()):
    words = [top, "-p", str(port), "-i", "0.2", *arguments]
    result = subprocess.run(
        words, capture_output=True, timeout=PATIENCE_S, check=False, env={**os.environ, **dict(environment)}
    )
    return result.returncode, result.stdout.decode(), result.stderr.decode()


def shows_latencies(terminal):
    pattern = re.compile(r"p50 p99 p99\.9 +\d\S* [µm]s, \d\S* [µm]s, \d\S* [µm]s")
    wait_until(lambda: pattern.search(terminal.text()), lambda: f"latencies in\n{terminal.text()}")


def panels(options, program):
    """Every panel shows the figures of a running server."""
    with Server(program) as server, Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
        client = Client(server.port)
        client.call("CLIENT", "SETNAME", "the-client")
        client.call("SET", b"evil\x1b[2J\xff", "x" * 100_000)
        terminal.shows("Operations/s", "Used memory", "Hit ratio", f"127.0.0.1:{server.port}")
        shows_latencies(terminal)
        terminal.press("2")
        terminal.shows("Thread", "Busy", "eventloop cycles")
        terminal.press("3")
        terminal.shows("Calls/s", "p99.9", "set")
        terminal.press("4")
        terminal.shows("the-clie", "weft-top", "Cmds/s")
        terminal.press("5")
        terminal.shows("Not available: the server is not a node of a cluster")
        terminal.press("6")
        terminal.shows("Press s to start")
        terminal.press("s")
        terminal.shows("evil\\u{1b}[2J\\xff", "keys sampled in this pass", "string")
        terminal.press("7")
        terminal.shows("primary, 0 replicas", "backlog")
        terminal.press("8")
        terminal.shows("used_memory_dataset", "fragmentation")
        terminal.press("\t")
        terminal.shows("Hit ratio")
        terminal.press("?")
        terminal.shows("choose a panel")
        terminal.press("x")
        terminal.press("q")
        assert terminal.exit_code() == 0


def weft_panels(options):
    """The panels, with Weft."""
    panels(options, options.server)


def weft_workers(options):
    """The workers of Weft have rows."""
    with Server(options.server, "--io-threads", "2") as server:
        with Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
            terminal.press("2")
            terminal.shows("worker 0", "worker 1", "of 2 workers are in use")


def hot_keys(options):
    """The most used keys of Weft, which samples them only while they are asked for."""
    with Server(options.server) as server:
        client = Client(server.port)
        state = lambda: client.call("WEFT", "HOTKEYS", "GET")[1]
        with Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
            terminal.press("6h")
            terminal.shows("The server samples no keys", "Press s to start")
            assert state() == b"off"
            terminal.press("s")
            wait_until(lambda: state() == b"on", lambda: "the server does not sample")
            for _ in range(4000):
                client.call("GET", b"hot\x1b[2J")
            terminal.shows("One of 64 uses of keys is sampled", "hot\\u{1b}[2J", "100.0 %")
            terminal.press("s")
            terminal.shows("Sampling has ended")
            assert state() == b"off"
            terminal.press("s")
            wait_until(lambda: state() == b"on", lambda: "the server does not sample")

            # Another client stops the sampling, and starts its own before weft-top does so again.
            def replace():
                client.call("WEFT", "HOTKEYS", "STOP")
                return client.call("WEFT", "HOTKEYS", "START", "SAMPLE", "2") == b"OK"

            wait_until(replace, lambda: "weft-top is always faster")
            terminal.shows("One of 2 uses of keys is sampled")
            terminal.press("s")
            time.sleep(1)
            assert state() == b"on", "what another client has started goes on"
        client.call("WEFT", "HOTKEYS", "STOP")
        client.call("WEFT", "HOTKEYS", "START", "SAMPLE", "1")
        client.call("GET", "key")
        code, output, errors = run_json(options.top, server.port, "--once", "--hot-keys")
        assert code == 0, errors
        figures = json.loads(output)["hot_keys"]
        assert [row["name"] for row in figures["rows"]] == ["key"], figures
        assert state() == b"on", "what another client has started goes on"
        if options.valkey:
            with Server(options.valkey) as other:
                report = json.loads(run_json(options.top, other.port, "--once", "--hot-keys")[1])
                assert "Weft" in report["unavailable"]["hot_keys"], report["unavailable"]


def valkey_panels(options):
    """The panels, with Valkey."""
    panels(options, options.valkey)


def slots(options):
    """The hottest slots of a cluster, with and without its statistics."""
    with Server(options.server, "--cluster-enabled", "yes", "--cluster-port", str(free_port())) as server:
        client = Client(server.port)
        client.call("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.call("SET", "key", "value") == b"OK", lambda: "the cluster is down")
        with Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
            terminal.press("5")
            terminal.shows("by key-count", "cluster-slot-stats-enabled", "12539")
        client.call("CONFIG", "SET", "cluster-slot-stats-enabled", "yes")
        client.call("GET", "key")
        with Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
            terminal.press("5")
            terminal.shows("by cpu-usec", "12539")
            terminal.press("o")
            terminal.shows("by key-count", "12539")


def kill_client(options):
    """A client is killed after a confirmation, and only then."""
    with Server(options.server) as server, Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
        victim = Client(server.port)
        victim.call("CLIENT", "SETNAME", "victim")
        terminal.press("4")
        terminal.shows("victim")
        terminal.press("/victim\r")
        wait_until(lambda: "weft-top  weft" in terminal.text() and terminal.text().count("weft-top") == 1, terminal.text)
        terminal.press("k")
        terminal.shows("Kill client", "y: kill")
        terminal.press("n")
        assert victim.call("PING") == b"PONG"
        terminal.press("k")
        terminal.shows("Kill client")
        terminal.press("y")
        terminal.shows("killed")
        assert victim.is_closed()


def resizing(options):
    """The screen follows the size of the terminal."""
    with Server(options.server) as server, Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
        terminal.shows("Hit ratio")
        for panel in "12345678":
            terminal.press(panel)
            for columns, lines in [(20, 5), (3, 2), (1, 1), (200, 60), (80, 24)]:
                terminal.resize(columns, lines)
                time.sleep(0.15)
        terminal.shows("used_memory_dataset", "? help")
        terminal.press("q")
        assert terminal.exit_code() == 0


def lost_server(options):
    """The dashboard says that the server is gone, and shows it again once it is back."""
    with Server(options.server) as server:
        with Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
            terminal.shows("Hit ratio")
            server.process.kill()
            server.process.wait()
            terminal.shows("CONNECTION LOST", "connecting again")
            with Server(options.server, port=server.port):
                wait_until(lambda: "CONNECTION LOST" not in terminal.text(), terminal.text)
            terminal.press("q")
            assert terminal.exit_code() == 0


def stopped_server(options):
    """The keyboard works while the server is stopped."""
    with Server(options.server) as server, Terminal(options.top, "-p", str(server.port), "-i", "0.2") as terminal:
        terminal.shows("Hit ratio")
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        terminal.press("8")
        start = time.monotonic()
        terminal.shows("used_memory_dataset")
        assert time.monotonic() - start < 3
        terminal.press("q")
        assert terminal.exit_code() == 0
        assert time.monotonic() - start < 4


def signals(options):
    """SIGTERM, SIGINT and Control-C end the program and restore the terminal."""
    with Server(options.server) as server:
        for number in [signal.SIGTERM, signal.SIGINT]:
            with Terminal(options.top, "-p", str(server.port)) as terminal:
                terminal.shows("Used memory")
                os.kill(terminal.pid, number)
                assert terminal.exit_code() == 0
        with Terminal(options.top, "-p", str(server.port)) as terminal:
            terminal.shows("Used memory")
            terminal.press("\x03")
            assert terminal.exit_code() == 0
            assert termios.tcgetattr(terminal.descriptor)[3] & termios.ICANON


def colors(options):
    """NO_COLOR turns colours off."""
    with Server(options.server) as server:
        for environment, has_colors in [((), True), ((("NO_COLOR", "1"),), False)]:
            with Terminal(options.top, "-p", str(server.port), environment=environment) as terminal:
                terminal.shows("Used memory")
                wait_until(lambda shown=terminal: "▁" in shown.text() or "█" in shown.text(), terminal.text)
                with terminal.lock:
                    cells = [cell for line in terminal.screen.buffer.values() for cell in line.values()]
                assert any(cell.fg != "default" for cell in cells) == has_colors


HOSTILE_REPLIES = [
    b"$9223372036854775807\r\n",
    b"$4000000000\r\n",
    b"*1000000000\r\n",
    b"*1\r\n" * 1000,
    b"\x00\xff\x1b[2J\r\n",
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
    b"+" + b"x" * 200_000,
    b"$20\r\nrun_id:\x1b[2J\xff\xfe\r\nx:\r\n",
    b"*0\r\n",
    b":1\r\n",
    b"$-1\r\n",
    b"-ERR \x1b]0;title\x07\r\n",
    b"",
]


def serve_hostile(listener, reply):
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                # The name of the connection is accepted, all that follows gets the reply.
                connection.recv(65536)
                connection.sendall(b"+OK\r\n")
                while connection.recv(65536):
                    connection.sendall(reply)
                    if not reply:
                        break


def hostile_server(options):
    """Replies that are no replies neither end the program nor reach the terminal."""
    for reply in HOSTILE_REPLIES:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=serve_hostile, args=(listener, reply), daemon=True).start()
            port = str(listener.getsockname()[1])
            with Terminal(options.top, "-p", port, "-i", "0.1") as terminal:
                for panel in "12345678":
                    terminal.press(panel)
                    time.sleep(0.1)
                terminal.press("q")
                assert terminal.exit_code() == 0, reply
                for evil in [b"\x1b]0;title", b"\x1b[2J\xff"]:
                    assert evil not in terminal.output


def json_figures(options):
    """The figures of JSON agree with what happened."""
    programs = [options.server] + ([options.valkey] if options.valkey else [])
    for program in programs:
        with Server(program) as server:
            client = Client(server.port)
            client.call("CLIENT", "SETNAME", b"a\\b")
            client.call("SET", "key", "value")
            code, output, errors = run_json(options.top, server.port, "--json", "--count", "2", "--sample-keys")
            assert code == 0, errors
            reports = [json.loads(line) for line in output.splitlines()]
            assert len(reports) == 2
            for report in reports:
                assert report["server"]["name"] in ("weft", "valkey")
                assert report["overview"]["keys"] == 1
                assert report["overview"]["connected_clients"] == 2
                assert report["overview"]["operations_per_s"] > 0
                assert 0.1 < report["interval_s"] < 5
                assert {row["name"] for row in report["clients"]["rows"]} == {"a\\\\b", "weft-top"}
                assert any(row["name"] == "info" and row["calls_per_s"] > 0 for row in report["commands"])
                percentiles = [report["overview"][f"latency_{name}_us"] for name in ("p50", "p99", "p999")]
                assert 0 < percentiles[0] <= percentiles[1] <= percentiles[2] < 1_100_000, percentiles
                info = next(row for row in report["commands"] if row["name"] == "info")
                assert 0 < info["interval_p50_us"] <= info["interval_p99_us"] <= info["interval_p999_us"], info
                assert report["memory"]["fields"]["used_memory"] > 0
                assert report["replication"]["role"] == "master"
                assert list(report["unavailable"]) == ["slots"]
                assert report["workers"]["threads"]
            assert [row["name"] for row in reports[1]["keys"]["rows"]] == ["key"]
            code, output, errors = run_json(options.top, server.port, "--once")
            assert code == 0 and output.startswith("{\n"), errors
            assert json.loads(output)["server"]["address"] == f"127.0.0.1:{server.port}"


def passwords(options):
    """The password comes from the command line or the environment; a wrong one is refused with a reason."""
    with Server(options.server, "--requirepass", "secret") as server:
        assert run_json(options.top, server.port, "--once", "-a", "secret")[0] == 0
        assert run_json(options.top, server.port, "--once", environment=[("REDISCLI_AUTH", "secret")])[0] == 0
        code, _, errors = run_json(options.top, server.port, "--once", "-a", "wrong")
        assert code == 1 and "refused the password" in errors
        code, _, errors = run_json(options.top, server.port, "--once")
        assert code == 1 and "NOAUTH" in errors


def restricted_user(options):
    """A user who may do little sees what is not available."""
    with Server(options.server) as server:
        Client(server.port).call("ACL", "SETUSER", "joe", "on", ">pw", "+ping")
        arguments = ["-p", str(server.port), "--user", "joe", "-a", "pw", "-i", "0.2"]
        with Terminal(options.top, *arguments) as terminal:
            for panel in "123478":
                terminal.press(panel)
                terminal.shows("Not available", "NOPERM")


def documented_user(options):
    """The permissions that the book names are enough."""
    with open(BOOK, encoding="utf-8") as file:
        text = file.read()
    basic, further = re.search(r"A user for it needs `(.*?)`, and `(.*?)`", text).groups()
    with Server(options.server) as server:
        client = Client(server.port)
        client.call("SET", "key", "value")
        assert client.call("ACL", "SETUSER", "joe", "on", ">pw", *basic.split()) == b"OK"
        arguments = ["--user", "joe", "-a", "pw"]
        report = json.loads(run_json(options.top, server.port, "--once", *arguments)[1])
        assert list(report["unavailable"]) == ["slots"], report["unavailable"]
        client.call("ACL", "SETUSER", "joe", *further.split())
        report = json.loads(run_json(options.top, server.port, "--once", "--sample-keys", *arguments)[1])
        assert list(report["unavailable"]) == ["slots"], report["unavailable"]
        assert [row["name"] for row in report["keys"]["rows"]] == ["key"]


def without_latencies(options):
    """A user who may not read latencies sees why, and all that remains. So do all if the server measures none."""
    programs = [options.server] + ([options.valkey] if options.valkey else [])
    for program in programs:
        with Server(program) as server:
            client = Client(server.port)
            client.call("ACL", "SETUSER", "joe", "on", ">pw", "+info", "+client|list")
            arguments = ["-p", str(server.port), "--user", "joe", "-a", "pw", "-i", "0.2"]
            with Terminal(options.top, *arguments) as terminal:
                terminal.shows("Latency is not available: NOPERM", "Hit ratio", "Network out", "primary, 0 replicas")
                terminal.press("3")
                terminal.shows("p50, p99, p99.9 are not available: NOPERM", "info", "Calls/s")
            report = json.loads(run_json(options.top, server.port, "--once", "--user", "joe", "-a", "pw")[1])
            assert "latency|histogram" in report["unavailable"]["latency"], report["unavailable"]
            assert report["overview"]["latency_p50_us"] is None and report["overview"]["operations_per_s"] > 0
            client.call("CONFIG", "SET", "latency-tracking", "no")
            report = json.loads(run_json(options.top, server.port, "--once")[1])
            assert "latency-tracking" in report["unavailable"]["latency"], report["unavailable"]


def reset_statistics(options):
    """CONFIG RESETSTAT leaves a gap in the latencies, and no nonsense."""
    programs = [options.server] + ([options.valkey] if options.valkey else [])
    for program in programs:
        with Server(program) as server:
            client = Client(server.port)
            words = [options.top, "-p", str(server.port), "-i", "0.1", "--json"]
            with subprocess.Popen(words, stdout=subprocess.PIPE) as top:
                report = lambda top=top: json.loads(top.stdout.readline())
                assert report()["overview"]["latency_p50_us"] > 0
                client.call("CONFIG", "RESETSTAT")
                wait_until(lambda: report()["overview"]["latency_p50_us"] is None, lambda: "there is no gap")
                after = report()
                assert after["overview"]["latency_p50_us"] > 0 and "latency" not in after["unavailable"], after
                top.terminate()


def unix_socket(options):
    """A Unix socket."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "socket")
        with Server(options.server, "--unixsocket", path):
            result = subprocess.run([options.top, "-s", path, "--once"], capture_output=True, check=True)
            assert json.loads(result.stdout)["server"]["address"] == path


def tls(options):
    """TLS with an authority, and without one."""
    with tempfile.TemporaryDirectory() as directory:
        key, certificate = os.path.join(directory, "key"), os.path.join(directory, "certificate")
        words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
        words += ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", certificate]
        subprocess.run(words, check=True, capture_output=True)
        port = free_port()
        files = ["--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate]
        with Server(options.server, "--tls-port", str(port), *files, "--tls-auth-clients", "no"):
            assert run_json(options.top, port, "--once", "--tls", "--cacert", certificate)[0] == 0
            assert run_json(options.top, port, "--once", "--tls", "--insecure")[0] == 0
            # The authorities of the system, if there are some, do not know the certificate.
            assert run_json(options.top, port, "--once", "--tls")[0] == 1


@contextlib.contextmanager
def tls_proxy(certificate, key, port):
    """Accepts TLS with this certificate, and passes the bytes on to a server without TLS. Yields its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(connection):
        with contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True) as client:
            with socket.create_connection(("127.0.0.1", port)) as server:
                threading.Thread(target=copy, args=(server, client), daemon=True).start()
                copy(client, server)

    def accept(listener):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def tls_version_one(options):
    """A certificate of X.509 version 1 is refused with a plain reason, and accepted with --insecure."""
    with tempfile.TemporaryDirectory() as directory, Server(options.server) as server:
        for algorithm in ["rsa:2048", "ec:prime256v1"]:
            name, parameter = algorithm.split(":")
            request, key, certificate = (os.path.join(directory, f"{name}.{end}") for end in ("csr", "key", "crt"))
            kind = [algorithm] if name == "rsa" else ["ec", "-pkeyopt", f"ec_paramgen_curve:{parameter}"]
            words = ["openssl", "req", "-new", "-newkey", *kind, "-nodes", "-subj", "/CN=localhost"]
            subprocess.run([*words, "-keyout", key, "-out", request], check=True, capture_output=True)
            # Before version 3.4, OpenSSL issues version 1 if there are no extensions.
            words = ["openssl", "x509", "-req", "-in", request, "-signkey", key, "-days", "2", "-out", certificate]
            subprocess.run(words, check=True, capture_output=True)
            words = ["openssl", "x509", "-in", certificate, "-noout", "-text"]
            text = subprocess.run(words, check=True, capture_output=True).stdout
            assert b"Version: 1 " in text, text
            with tls_proxy(certificate, key, server.port) as port:
                code, _, errors = run_json(options.top, port, "--once", "--tls", "--cacert", certificate)
                reason = f"connecting to 127.0.0.1:{port}: the certificate of the server has X.509 version 1"
                assert code == 1 and reason in errors and "--insecure" in errors, errors
                assert "OtherError" not in errors, errors
                code, output, errors = run_json(options.top, port, "--once", "--tls", "--insecure")
                assert code == 0 and json.loads(output)["server"]["name"] == "weft", errors


def command_lines(options):
    """Wrong command lines, no server and no terminal have exit codes."""
    assert subprocess.run([options.top, "--nonsense"], capture_output=True, check=False).returncode == 2
    assert subprocess.run([options.top], capture_output=True, check=False).returncode == 2
    assert subprocess.run([options.top, "--help"], capture_output=True, check=False).returncode == 0
    code, _, errors = run_json(options.top, free_port(), "--once")
    assert code == 1 and "connecting to" in errors


CHECKS = [
    weft_panels, weft_workers, valkey_panels, slots, kill_client, resizing, lost_server, stopped_server, signals, colors,
    hot_keys, hostile_server, json_figures, passwords, restricted_user, documented_user,
    without_latencies, reset_statistics, unix_socket, tls, tls_version_one, command_lines,
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--top", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--valkey")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for program in [options.top, options.server]:
        if not os.path.exists(program):
            sys.exit(f"{program} does not exist: run `cargo build --package weft-top --package weft-server`")
    for name in ["REDISCLI_AUTH", "VALKEYCLI_AUTH", "NO_COLOR"]:
        os.environ.pop(name, None)
    passed, failed, skipped = 0, [], 0
    for check in CHECKS:
        name = check.__name__
        if options.only not in name:
            continue
        if check is valkey_panels and not options.valkey:
            print(f"skipped {name}: no --valkey is given")
            skipped += 1
            continue
        try:
            check(options)
            passed += 1
            print(f"{name}: passed", flush=True)
        except Exception:
            traceback.print_exc()
            print(f"{name}: FAILED", flush=True)
            failed.append(name)
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
