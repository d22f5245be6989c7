"""Checks what is in packaging/: scripts, images, units, the Debian package's files, the manual page and completions.

    python3 tests/packaging/check.py [--server PATH] [--only TEXT]

Each check is a function below. Small tools that are missing are unpacked from Debian's packages, see place.py; a check
whose tools are not to be had is skipped, and named. The last line counts the results.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import sys
import tempfile
import time
import traceback

import debian
from place import (
    PACKAGING, PATIENCE_S, ROOT, Place, Skipped, call, client_program, config_values, free_port, is_answering, module, output_of,
    read, run, tool, wait_until,
)

DOCKER = os.path.join(PACKAGING, "docker")
RELEASE = os.path.join(ROOT, "target/release/weft-server")
# The exposure that `systemd-analyze security` may find at most.
EXPOSURE = 2.5

SHELL_SCRIPTS = [
    "docker/docker-entrypoint.sh", "docker/weft-healthcheck", "docker/weft-cluster",
    "debian/prepare", "debian/postinst", "debian/prerm", "debian/postrm", "release", "split-debug",
]


# ---- Scripts -----------------------------------------------------------------------------------


def scripts_are_posix(place):
    for name in SHELL_SCRIPTS:
        path = os.path.join(PACKAGING, name)
        output_of("sh", "-n", path)
        assert os.access(path, os.X_OK), f"{name} is not executable"


def scripts_have_no_warnings(place):
    output_of(tool("shellcheck"), *(os.path.join(PACKAGING, name) for name in SHELL_SCRIPTS))


# ---- The programs ------------------------------------------------------------------------------

# The limits of an idle server.
MAX_RESIDENT_KB = 12 * 1024
MAX_START_S = 0.05
# The starts that are measured at least. The resident memory is their median.
STARTS = 7


def is_release(place):
    return "release" in place.server.split("/")


def crash_report(place, server, name):
    """Crashes a server. Returns its log."""
    socket_path = place.file(f"{name}.sock")
    log = place.file(f"{name}.log")
    process = place.start(
        server, "--port", "0", "--unixsocket", socket_path, "--enable-debug-command", "yes", "--save", "", "--logfile", log,
    )
    wait_until(lambda: os.path.exists(socket_path) and is_answering(socket_path), "the server answers")
    try:
        call(socket_path, "DEBUG", "SEGFAULT")
    except OSError:
        pass
    assert process.wait(PATIENCE_S) == -signal.SIGSEGV
    return read(log)


def debug_information_is_in_a_file_of_its_own(place):
    objdump = tool("objdump")
    tool("objcopy")
    if ".debug_line" not in output_of(objdump, "--section-headers", place.server):
        raise Skipped("the program has no debug information")
    folder = place.folder("split")
    output_of(os.path.join(PACKAGING, "split-debug"), place.server, folder)
    program = os.path.join(folder, "weft-server")
    sections = output_of(objdump, "--section-headers", program)
    assert ".debug_line" not in sections and ".gnu_debuglink" in sections, sections
    assert os.path.getsize(program) < os.path.getsize(place.server) / 2
    # Files and lines come from the other file, names of functions from the program itself.
    report = crash_report(place, program, "whole")
    assert "weft_server::commands::server::debug" in report and "/server/src/commands/server/debug.rs:" in report, report
    os.remove(program + ".debug")
    report = crash_report(place, program, "without")
    assert "weft_server::commands::server::debug" in report and "debug.rs:" not in report, report


def stripped_server(place):
    """Returns the program as the packages have it: without debug information."""
    objdump = tool("objdump")
    tool("objcopy")
    if ".debug_line" not in output_of(objdump, "--section-headers", place.server):
        return place.server
    folder = place.folder("stripped")
    output_of(os.path.join(PACKAGING, "split-debug"), place.server, folder)
    return os.path.join(folder, "weft-server")


def server_is_small_and_starts_quickly(place):
    if not is_release(place):
        raise Skipped("the program is no release build")
    if "[always]" in read("/sys/kernel/mm/transparent_hugepage/enabled"):
        raise Skipped("this machine gives huge pages to every process")
    program = stripped_server(place)
    # Each worker has a stack and a few buffers.
    arguments = ["--save", "", "--io-threads", str(min(os.cpu_count() or 1, 4))]
    times, resident = [], []
    # What else the machine does makes some starts slower, none faster.
    while len(times) < STARTS or (min(times) > MAX_START_S and len(times) < 20):
        address = ("127.0.0.1", free_port())
        begin = time.monotonic()
        folder = place.folder(f"start-{len(times)}")
        server = place.start(program, "--port", str(address[1]), "--bind", address[0], "--dir", folder, *arguments)
        while not is_answering(address):
            assert server.poll() is None and time.monotonic() < begin + PATIENCE_S, "the server answers"
            time.sleep(0.0005)
        times.append(time.monotonic() - begin)
        # Its periodic work has run for the first time by then.
        time.sleep(1)
        status = read(f"/proc/{server.pid}/status")
        resident.append(int(re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE).group(1)))
        place.stop(server)
    # How much is resident depends on the page cache, and on whether the kernel has huge pages.
    usual = statistics.median(resident)
    print(f"  start {min(times) * 1000:.1f} ms, resident {usual:.0f} kB in the median of {min(resident)} to {max(resident)} kB")
    assert min(times) <= MAX_START_S, times
    assert usual <= MAX_RESIDENT_KB, resident


def portable_server_needs_only_old_libraries(place):
    program = os.path.join(ROOT, "target/packaging/portable/weft-server")
    if not os.path.exists(program):
        raise Skipped("packaging/release --portable was not run")
    symbols = output_of(tool("objdump"), "--dynamic-syms", program)
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    assert versions and max(versions) <= (2, 28), max(versions)
    # Modules find these, and nothing that libraries of theirs may have under the same name.
    defined = {line.split()[-1] for line in symbols.splitlines() if line and ".text" in line}
    assert {"VM_CallArgv", "VM_CallArgvAbort", "VM_ReplyRaw"} <= defined, defined
    assert not [name for name in defined if name.startswith("lua")], defined
    assert "weft_symbols" not in output_of(tool("objdump"), "--private-headers", program)
    path = place.file("socket")
    place.start(program, "--port", "0", "--unixsocket", path)
    wait_until(lambda: os.path.exists(path) and is_answering(path), "the server answers")


# ---- The image ---------------------------------------------------------------------------------


def entry_point(place, *arguments, uid=999, umask="0022", sockets="sockets", **variables):
    """Runs the entry point between programs that print how they were called. Returns the lines."""
    show = 'printf "%s" "${0##*/}"; for word; do printf " <%s>" "$word"; done; echo " umask $(umask)"'
    for name in ("weft-server", "valkey-server", "redis-server", "valkey-cli"):
        place.program(name, show)
    place.program("id", 'echo "$FAKE_UID"')
    place.program("chown", 'echo "chown $*"')
    # Like the real one, it runs what follows as another user.
    place.program("setpriv", 'while [ "$1" != -- ]; do shift; done; shift; echo setpriv; FAKE_UID=999 exec "$@"')
    environment = {
        "PATH": f"{place.folder('bin')}:{os.environ['PATH']}",
        "FAKE_UID": str(uid),
        "WEFT_SOCKET_DIRECTORY": os.path.join(place.path, sockets),
        **variables,
    }
    place.folder("sockets")
    script = f'umask {umask}; exec "$0" "$@"'
    done = run(
        "sh", "-c", script, os.path.join(DOCKER, "docker-entrypoint.sh"), *arguments,
        environment=environment, folder=place.folder("data"),
    )
    assert done.returncode == 0 and not done.stderr, done
    return done.stdout.replace(place.path, "/P").splitlines()


DEFAULTS = "<--unixsocket> </P/sockets/weft.sock> <--protected-mode> <no>"


def entry_point_starts_the_server(place):
    private = " umask 0077"
    plain = place.file("plain.conf", "maxmemory 1gb\n#protected-mode yes\n")
    decided = place.file("decided.conf", "Protected-Mode yes\n\tunixsocket /x\n")
    including = place.file("including.conf", "include other.conf\n")
    cases = [
        ([], f"weft-server {DEFAULTS}"),
        (["--port", "7000"], f"weft-server {DEFAULTS} <--port> <7000>"),
        (["weft-server"], f"weft-server {DEFAULTS}"),
        (["valkey-server", "--port", "7000"], f"valkey-server {DEFAULTS} <--port> <7000>"),
        (["redis-server"], f"redis-server {DEFAULTS}"),
        ([plain, "--save", ""], f"weft-server </P/plain.conf> {DEFAULTS} <--save> <>"),
        ([decided], "weft-server </P/decided.conf>"),
        ([including, "--port", "1"], "weft-server </P/including.conf> <--port> <1>"),
        (["valkey-server", decided], "valkey-server </P/decided.conf>"),
        (["missing.conf"], "weft-server <missing.conf>"),
        (["-"], "weft-server <->"),
        (["--version"], "weft-server <--version>"),
        (["--check-config", plain], "weft-server <--check-config> </P/plain.conf>"),
        (["--print-default-config"], "weft-server <--print-default-config>"),
        (["--name", "two words"], f"weft-server {DEFAULTS} <--name> <two words>"),
    ]
    for arguments, expected in cases:
        assert entry_point(place, *arguments) == [expected + private], (arguments, entry_point(place, *arguments))
    lines = entry_point(place, "--port", "1", VALKEY_EXTRA_FLAGS="--loglevel debug")
    assert lines == [f"weft-server {DEFAULTS} <--port> <1> <--loglevel> <debug>{private}"], lines
    # The directory of the data has files, of which the words are no patterns.
    open(os.path.join(place.folder("data"), "dump.rdb"), "w", encoding="utf-8").close()
    lines = entry_point(place, VALKEY_EXTRA_FLAGS="--bind *")
    assert lines == [f"weft-server {DEFAULTS} <--bind> <*>{private}"], lines
    # A file system without a place for the socket.
    assert entry_point(place, sockets="missing") == [f"weft-server <--protected-mode> <no>{private}"]


def entry_point_runs_other_programs(place):
    lines = entry_point(place, "valkey-cli", "-h", "x", uid=0, VALKEY_EXTRA_FLAGS="--port 1")
    assert lines == ["valkey-cli <-h> <x> umask 0022"], lines
    assert entry_point(place, "echo", "a.conf") == ["a.conf"]


def entry_point_drops_privileges(place):
    data = place.folder("data")
    open(os.path.join(data, "dump.rdb"), "w", encoding="utf-8").close()
    # `find` knows no user of this name here, so the one that runs the check has its part.
    real = shutil.which("find")
    place.program("find", f'shift; [ "$1 $2 $3" = "! -user weft" ] || exit 1; shift 3; exec {real} . "$@"')
    lines = entry_point(place, "--port", "1", uid=0)
    assert lines == [
        "chown --no-dereference weft:weft . ./dump.rdb",
        "setpriv",
        f"weft-server {DEFAULTS} <--port> <1> umask 0077",
    ], lines


def entry_point_warns_if_no_data_can_be_written(place):
    place.program("weft-server", "echo started")
    data = place.folder("data")
    os.chmod(data, 0o555)
    os.chmod(place.path, 0o755)
    # Root may write anywhere.
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if user:
        tool("setpriv")
    # The scripts of the repository may be in a directory that only its owner may enter.
    script = place.file("entry", read(DOCKER, "docker-entrypoint.sh"))
    environment = {"PATH": f"{place.folder('bin')}:{os.environ['PATH']}"}
    done = run(*user, "sh", script, environment=environment, folder=data)
    assert done.returncode == 0 and done.stdout == "started\n", done
    assert f"warning: directory {data} is not writable for user" in done.stderr, done
    os.chmod(data, 0o777)
    assert not run(*user, "sh", script, environment=environment, folder=data).stderr


def charts_of_valkey_find_what_they_need(place):
    """The chart `valkey` of valkey-io/valkey-helm starts `valkey-server` with a file that its init container writes."""
    os.symlink(place.server, os.path.join(place.folder("bin"), "valkey-server"))
    data = place.folder("data")
    users = place.file("users.acl", f"user default on #{hashlib.sha256(b'secret').hexdigest()} ~* &* +@all\n")
    os.chmod(users, 0o400)
    port = free_port()
    # As the init container writes it, with the values `auth` and `replica` enabled, and another port.
    os.makedirs(os.path.join(data, "conf"))
    configuration = place.file("data/conf/valkey.conf", (
        f"port {port}\nprotected-mode no\nbind * -::*\ndir {data}\naclfile {users}\n\n"
        "# Replication announce configuration\nreplica-announce-ip valkey-0.valkey-headless.default.svc.cluster.local\n"
        f"replica-announce-port {port}\n\n# Diskless replication\nrepl-diskless-sync yes\nrepl-diskless-sync-delay 5\n"
        "primaryuser default\nprimaryauth \"secret\"\n"
    ))
    server = place.start(os.path.join(place.path, "bin/valkey-server"), configuration)
    address = ("127.0.0.1", port)

    def answer():
        try:
            return call(address, "PING")
        except OSError:
            return ""

    wait_until(lambda: answer() or server.poll() is not None, "the server answers")
    assert answer() == "-NOAUTH Authentication required.", read(place.path, "log-0")
    assert call(address, "HELLO", "3", "AUTH", "default", "secret").startswith("%")
    assert place.stop(server) == 0


def entry_point_keeps_a_chosen_umask(place):
    assert entry_point(place, umask="0027") == [f"weft-server {DEFAULTS} umask 0027"]


def entry_point_and_health_check_with_a_server(place):
    cli = client_program(place)
    sockets = place.folder("run")
    os.makedirs(place.folder("bin"), exist_ok=True)
    os.symlink(place.server, os.path.join(place.folder("bin"), "weft-server"))
    place.program("id", "echo 999")
    environment = {
        "PATH": f"{place.folder('bin')}:{os.environ['PATH']}",
        "WEFT_SOCKET_DIRECTORY": sockets,
        "WEFT_CLI": cli,
        "WEFT_HEALTHCHECK_PORT": "1",
    }
    health = os.path.join(DOCKER, "weft-healthcheck")
    assert run(health, "live", environment=environment).returncode == 1, "there is no server"
    # No TCP port, and a password that the check does not have: as in a container that has TLS only.
    server = place.start(
        os.path.join(DOCKER, "docker-entrypoint.sh"), "--port", "0", "--requirepass", "secret",
        environment=environment, folder=place.folder("data"),
    )
    path = os.path.join(sockets, "weft.sock")
    wait_until(lambda: os.path.exists(path), "the server listens on its socket")
    for wanted in ("live", "ready"):
        output_of(health, wanted, environment=environment)
    output_of(health, "ready", environment={**environment, "REDISCLI_AUTH": "secret"})
    server.send_signal(signal.SIGSTOP)
    assert run(health, "live", environment=environment).returncode == 1, "the server hangs"
    server.send_signal(signal.SIGCONT)
    assert place.stop(server) == 0
    dump = os.path.join(place.path, "data", "dump.rdb")
    assert os.stat(dump).st_mode & 0o777 == 0o600, "the dump is for its owner only"
    assert run(health, "live", environment=environment).returncode == 1, "the server has ended"


def health_check_judges_answers(place):
    cases = [
        ("PONG", 0, 0), ("NOAUTH Authentication required.", 0, 0), ("", 1, 1),
        ("LOADING Valkey is loading the dataset in memory", 0, 1),
        ("MASTERDOWN Link with MASTER is down", 0, 1), ("BUSY Valkey is busy running a script.", 0, 1),
        ("Could not connect to Valkey at 127.0.0.1:6379: Connection refused", 1, 1),
    ]
    health = os.path.join(DOCKER, "weft-healthcheck")
    for answer, live, ready in cases:
        environment = {"WEFT_CLI": place.program("fake-cli", f"echo '{answer}'"), "WEFT_SOCKET_DIRECTORY": place.path}
        for wanted, code in (("live", live), ("ready", ready), ("other", 1)):
            done = run(health, wanted, environment=environment)
            assert done.returncode == code, (wanted, answer, done)


def dockerfile_names_files_that_exist(place):
    text = re.sub(r"\\\n", " ", read(DOCKER, "Dockerfile"))
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY") and "--from" not in line]
    sources = [word for words in copied for word in words if not word.startswith("--") and word != "."]
    assert len(sources) == 3, sources
    for name in sources:
        assert os.path.exists(os.path.join(ROOT, name)), name
    ignored = read(DOCKER, "Dockerfile.dockerignore").splitlines()
    for line in ignored:
        if line.startswith("!"):
            assert os.path.exists(os.path.join(ROOT, line[1:])), line
    # What the build includes into the program is part of the context.
    # The official image has a user and a group of this name, which `--user valkey` names.
    for command in ("groupadd --system --non-unique --gid 999 valkey", "useradd --system --non-unique --uid 999 --gid valkey"):
        assert command in text, command
    for word in ("HEALTHCHECK", "STOPSIGNAL SIGTERM", "EXPOSE 6379", "VOLUME /data", "WORKDIR /data"):
        assert word in text, word


def dockerfile_has_no_warnings(place):
    # Versions of Debian's packages are those of the base image.
    output_of(tool("hadolint"), "--ignore", "DL3008", os.path.join(DOCKER, "Dockerfile"))


def compose_file_is_valid(place):
    docker = tool("docker")
    if run(docker, "compose", "version").returncode != 0:
        raise Skipped("docker has no compose")
    output_of(docker, "compose", "--file", os.path.join(DOCKER, "compose.yml"), "config", "--quiet")


# ---- Kubernetes --------------------------------------------------------------------------------

MANIFEST = os.path.join(PACKAGING, "kubernetes/cluster.yaml")


def manifest_configuration():
    block = re.search(r"^  weft\.conf: \|\n((?:    .*\n)+)", read(MANIFEST), re.MULTILINE).group(1)
    return re.sub(r"^    ", "", block, flags=re.MULTILINE)


def manifest_is_consistent(place):
    text = read(MANIFEST)
    count = int(re.search(r"^  replicas: (\d+)$", text, re.MULTILINE).group(1))
    named = re.findall(r"weft-(\d+)\.weft-nodes", text)
    assert named == [str(index) for index in range(count)] * 2, named
    for program in re.findall(r"command: \[(weft-[a-z]+)|- (weft-cluster)$|(weft-cluster) meet", text, re.MULTILINE):
        assert os.path.exists(os.path.join(DOCKER, "".join(program))), program


def manifest_configuration_is_valid(place):
    text = manifest_configuration().replace("/data", place.path).replace("/run/weft", place.path)
    output_of(place.server, "--check-config", place.file("weft.conf", text))


def manifest_keeps_memory_below_the_limit(place):
    yaml = module("yaml")
    documents = {document["kind"]: document for document in yaml.safe_load_all(read(MANIFEST))}
    container = documents["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    limit = re.fullmatch(r"(\d+)Gi", container["resources"]["limits"]["memory"]).group(1)
    memory = re.search(r"^maxmemory (\d+)gb$", manifest_configuration(), re.MULTILINE).group(1)
    assert 0 < int(memory) < int(limit), (memory, limit)
    # Whatever listens has a port of the container and a rule of the network.
    ports = {port["containerPort"] for port in container["ports"]}
    rules = documents["NetworkPolicy"]["spec"]["ingress"]
    admitted = {port["port"] for rule in rules for port in rule["ports"]}
    metrics = re.search(r"^metrics-port (\d+)$", manifest_configuration(), re.MULTILINE).group(1)
    assert ports == admitted == {6379, 16379, int(metrics)}, (ports, admitted, metrics)


def manifest_is_valid_for_kubernetes(place):
    output_of(tool("kubernetes-validate"), "--strict", "--quiet", MANIFEST)


def manifest_is_yaml(place):
    yaml = module("yaml")
    documents = list(yaml.safe_load_all(read(MANIFEST)))
    kinds = sorted(document["kind"] for document in documents)
    expected = ["ConfigMap", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    assert kinds == expected, kinds


def cluster_is_formed_and_survives_new_addresses(place):
    """Runs weft-cluster as the manifest does. Hosts are addresses of the loopback network."""
    cli = client_program(place)
    port = free_port()
    configuration = manifest_configuration()

    def start(index, address):
        folder = place.folder(f"node-{index}")
        text = configuration.replace("/data", folder).replace("/run/weft", folder)
        path = os.path.join(folder, "weft.conf")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        node = place.start(
            place.server, path, "--port", str(port), "--bind", address, "--cluster-announce-ip", address,
            "--bind-source-addr", address, "--metrics-port", "0",
        )
        wait_until(lambda: is_answering((address, port)) or node.poll() is not None, f"node {index} answers")
        assert node.poll() is None, read(place.path, f"log-{len(place.processes) - 1}")
        return node

    addresses = [f"127.0.61.{index}" for index in range(1, 7)]
    nodes = [start(index, address) for index, address in enumerate(addresses)]
    script = os.path.join(DOCKER, "weft-cluster")
    environment = {"WEFT_CLI": cli, "WEFT_PORT": str(port), "WEFT_PATIENCE": str(PATIENCE_S)}
    output_of(script, "meet", *addresses, environment={**environment, "WEFT_HOST": addresses[0]})
    assert "the cluster is complete" in output_of(script, "form", *addresses, environment=environment)
    assert "assigned already" in output_of(script, "form", *addresses, environment=environment)

    def has_replicas():
        roles = output_of(cli, "-h", addresses[0], "-p", str(port), "cluster", "nodes")
        return roles.count("slave") == 3 and roles.count("master") == 3

    wait_until(has_replicas, "each primary has a replica")

    # All nodes start again with other addresses.
    for node in nodes:
        node.kill()
        node.wait()
    moved = [f"127.0.62.{index}" for index in range(1, 7)]
    for index, address in enumerate(moved):
        start(index, address)
    output_of(script, "meet", *moved, environment={**environment, "WEFT_HOST": moved[-1]})

    def is_complete():
        return all(
            "cluster_state:ok" in output_of(cli, "-h", address, "-p", str(port), "cluster", "info")
            and "127.0.61." not in output_of(cli, "-h", address, "-p", str(port), "cluster", "nodes")
            for address in moved
        )

    wait_until(is_complete, "the nodes know the new addresses")


# ---- Monitoring --------------------------------------------------------------------------------


def alert_rules_and_dashboard_are_promql(place):
    yaml, promql = module("yaml"), module("promql_parser")
    groups = yaml.safe_load(read(PACKAGING, "grafana/alerts.yml"))["groups"]
    queries = [rule["expr"] for group in groups for rule in group["rules"]]
    panels = json.loads(read(PACKAGING, "grafana/weft.json"))["panels"]
    targets = [target for panel in panels for target in panel.get("targets", [])]
    # Grafana replaces its variables before Prometheus reads a query.
    queries += [target["expr"].replace("$__rate_interval", "1m") for target in targets]
    assert len(queries) > 80, len(queries)
    for query in queries:
        try:
            promql.parse(query)
        except ValueError as error:
            raise AssertionError(f"{query}: {error}") from None


# ---- systemd -----------------------------------------------------------------------------------

UNITS = ("weft.service", "weft@.service")


def units_are_valid(place):
    analyze = tool("systemd-analyze")
    for name in UNITS:
        # The program and the manual page are not installed here.
        text = read(PACKAGING, "systemd", name).replace("/usr/bin/weft-server", place.server)
        path = place.file(name, re.sub(r"^Documentation=.*\n", "", text, flags=re.MULTILINE))
        done = run(analyze, "verify", path)
        about_units = [line for line in done.stderr.splitlines() if "weft" in line]
        assert done.returncode == 0 and not about_units, done.stderr


def units_are_hardened(place):
    analyze = tool("systemd-analyze")
    for name in UNITS:
        path = os.path.join(PACKAGING, "systemd", name)
        done = run(analyze, "security", "--offline=true", path)
        found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
        if not found:
            raise Skipped("systemd-analyze cannot examine files")
        assert float(found.group(1)) <= EXPOSURE, done.stdout


def units_have_the_same_rules(place):
    own = re.compile(r"^(Description|ExecStart|StateDirectory|RuntimeDirectory|WorkingDirectory|    --|# Instances)")
    first, second = (
        [line for line in read(PACKAGING, "systemd", name).splitlines() if not own.match(line)] for name in UNITS
    )
    assert first == second, set(first) ^ set(second)


def service_reports_that_it_is_ready(place):
    text = read(PACKAGING, "systemd/weft.service")
    words = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE).group(1).split()
    assert words[:2] == ["/usr/bin/weft-server", "/etc/weft/weft.conf"] and "Type=notify" in text
    path = place.file("notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        notify.settimeout(PATIENCE_S)
        server = place.start(
            place.server, debian_configuration(place), *words[2:], "--port", str(free_port()),
            environment={"NOTIFY_SOCKET": path},
        )
        while b"READY=1" not in notify.recv(4096):
            pass
        assert read(place.path, "run/weft.pid").strip() == str(server.pid)
        server.send_signal(signal.SIGTERM)
        while b"STOPPING=1" not in notify.recv(4096):
            pass
    assert server.wait(PATIENCE_S) == 0
    assert os.path.exists(os.path.join(place.path, "lib/dump.rdb"))
    assert "Ready to accept connections" in read(place.path, "log/weft.log")


# ---- The Debian package ------------------------------------------------------------------------


def debian_configuration(place):
    """Returns the configuration file of the package, with its directories below the place."""
    output_of(os.path.join(PACKAGING, "debian/prepare"), place.path)
    text = read(place.path, "weft.conf")
    for name in ("lib", "log", "run"):
        original = "/run/weft/" if name == "run" else f"/var/{name}/weft"
        assert text.count(original) >= 1, original
        text = text.replace(original, place.folder(name) + ("/" if name == "run" else ""))
    return place.file("moved.conf", text)


def debian_configuration_is_valid(place):
    path = debian_configuration(place)
    output_of(place.server, "--check-config", path)
    changed = [line.split()[0] for line in read(path).splitlines() if line and not line.startswith("#")]
    assert sorted(changed) == ["bind", "dir", "logfile", "pidfile"], changed


def debian_assets_exist(place):
    for crate, least in (("server", 8), ("top", 4)):
        text = read(ROOT, f"crates/{crate}/Cargo.toml")
        sources = re.findall(r'^    \["\.\./\.\./([^"]+)"', text, re.MULTILINE)
        assert len(sources) >= least, sources
        for name in sources:
            assert name.startswith("target/packaging/") or os.path.exists(os.path.join(ROOT, name)), name
        named = {os.path.basename(name) for name in sources if "/completions/" in name}
        assert named == {f"weft-{crate}.bash", f"_weft-{crate}", f"weft-{crate}.fish"}, named


def debian_package_contains_everything(place):
    tool("cargo-deb")
    dpkg = tool("dpkg-deb")
    if place.server != RELEASE:
        raise Skipped("the package contains target/release/weft-server only")
    output_of(os.path.join(PACKAGING, "debian/prepare"), folder=ROOT)
    output_of("cargo", "deb", "--no-build", "--package", "weft-server", "--output", place.file("weft.deb"), folder=ROOT)
    listed = output_of(dpkg, "--contents", place.file("weft.deb")).splitlines()
    modes = {line.split()[5]: line.split()[0] for line in listed}
    expected = {
        "./usr/bin/weft-server": "-rwxr-xr-x",
        "./etc/weft/weft.conf": "-rw-r-----",
        "./etc/logrotate.d/weft-server": "-rw-r--r--",
        "./usr/lib/systemd/system/weft.service": "-rw-r--r--",
        "./usr/lib/systemd/system/weft@.service": "-rw-r--r--",
        "./usr/share/man/man1/weft-server.1.gz": "-rw-r--r--",
        "./usr/share/man/man5/weft.conf.5.gz": "-rw-r--r--",
        "./usr/share/doc/weft-server/copyright": "-rw-r--r--",
    }
    assert {name: modes.get(name) for name in expected} == expected, listed
    control = place.folder("control")
    output_of(dpkg, "--control", place.file("weft.deb"), control)
    assert read(control, "conffiles").split() == ["/etc/weft/weft.conf", "/etc/logrotate.d/weft-server"]
    for name in ("postinst", "prerm", "postrm"):
        assert read(control, name) == read(PACKAGING, "debian", name), name
    output_of(dpkg, "--extract", place.file("weft.deb"), place.folder("root"))
    output_of(os.path.join(place.path, "root/usr/bin/weft-server"), "--version")


def debian_package_of_top_contains_everything(place):
    tool("cargo-deb")
    dpkg = tool("dpkg-deb")
    if not os.path.exists(os.path.join(ROOT, "target/release/weft-top")):
        raise Skipped("there is no target/release/weft-top")
    output_of("cargo", "deb", "--no-build", "--package", "weft-top", "--output", place.file("top.deb"), folder=ROOT)
    listed = output_of(dpkg, "--contents", place.file("top.deb")).splitlines()
    modes = {line.split()[5]: line.split()[0] for line in listed}
    expected = {
        "./usr/bin/weft-top": "-rwxr-xr-x",
        "./usr/share/man/man1/weft-top.1.gz": "-rw-r--r--",
        "./usr/share/bash-completion/completions/weft-top": "-rw-r--r--",
        "./usr/share/zsh/vendor-completions/_weft-top": "-rw-r--r--",
        "./usr/share/fish/vendor_completions.d/weft-top.fish": "-rw-r--r--",
        "./usr/share/doc/weft-top/copyright": "-rw-r--r--",
    }
    assert {name: modes.get(name) for name in expected} == expected, listed


def debian_package_lives_and_dies(place):
    """dpkg installs, upgrades, removes and purges the package."""
    debian.check(place)


def log_rotation_is_valid(place):
    # The user of the service does not exist here.
    text = read(PACKAGING, "debian/weft-server.logrotate")
    text = text.replace("/var/log/weft", place.folder("log")).replace("    su weft weft\n", "")
    os.chmod(place.folder("log"), 0o755)
    log = place.file("log/weft.log", "a line\n")
    path = place.file("rotate.conf", text)
    os.chmod(path, 0o644)
    done = run(tool("logrotate", "/usr/sbin/logrotate"), "--force", "--state", place.file("state"), path)
    # An unknown word is an error that does not change the exit code.
    assert done.returncode == 0 and "error" not in done.stderr, done.stderr
    assert read(log + ".1") == "a line\n" and not os.path.exists(log)


# ---- The manual page and completions -----------------------------------------------------------

MANUAL = os.path.join(PACKAGING, "man/weft-server.1")
TOP_MANUAL = os.path.join(PACKAGING, "man/weft-top.1")
# Its contents are compared with the table of parameters by a test of weft-config, which writes it. The page of weft-top is
# written by a test of that.
FILE_MANUAL = os.path.join(PACKAGING, "man/weft.conf.5")


def options_of_program(place):
    text = output_of(place.server, "--help")
    return set(re.findall(r"^ +(?:-[a-z], )?(--[a-z][a-z-]*)", text, re.MULTILINE))


def parameters_of_program(place):
    text = output_of(place.server, "--print-default-config")
    return set(re.findall(r"^#([a-z][a-z0-9-]*) ", text, re.MULTILINE))


def manual_and_program_have_the_same_options(place):
    text = read(MANUAL).replace("\\-", "-")
    named = set(re.findall(r"--[a-z][a-z-]*", text))
    options = options_of_program(place)
    parameters = {f"--{name}" for name in parameters_of_program(place)}
    assert options <= named, f"not in the manual: {options - named}"
    assert named <= options | parameters, f"not in the program: {named - options - parameters}"


OPTION_NAME = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def top_program():
    program = os.path.join(ROOT, "target/debug/weft-top")
    if not os.path.exists(program):
        raise Skipped("weft-top is not built")
    return program


def options_of_top():
    lines = re.findall(r"^  (-.{24})", output_of(top_program(), "--help"), re.MULTILINE)
    return set(OPTION_NAME.findall("\n".join(lines)))


def top_manual_and_program_have_the_same_options(place):
    listed = options_of_top()
    # A macro that alternates two fonts separates its arguments by blanks.
    text = read(TOP_MANUAL).replace("\\-", "-").split(".SH OPTIONS")[1].split(".SH EXIT")[0]
    named = set(OPTION_NAME.findall("\n".join(line for line in text.splitlines() if re.match(r"\.BI? -", line))))
    assert len(listed) > 15 and named == listed, named ^ listed


def manual_is_formatted_without_warnings(place):
    for manual in (MANUAL, TOP_MANUAL, FILE_MANUAL):
        done = run(tool("groff"), "-man", "-ww", "-Tutf8", "-z", manual)
        assert done.returncode == 0 and not done.stderr, done.stderr


def server_knows_all_parameters(place):
    path = place.file("socket")
    place.start(place.server, "--port", "0", "--unixsocket", path)
    wait_until(lambda: os.path.exists(path) and is_answering(path), "the server answers")
    names = parameters_of_program(place)
    assert len(names) > 200, len(names)
    known = config_values(path, sorted(names))
    assert set(known) == names, names - set(known)


def expected_completions(place):
    return options_of_program(place) | {f"--{name}" for name in parameters_of_program(place)}


def bash_completions(name, program, typed, folder=None):
    script = (
        f"source {PACKAGING}/completions/{name}.bash\n"
        f"COMP_WORDS=({program} $1); COMP_CWORD=1; _{name.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return output_of(tool("bash"), "-c", script, "bash", typed, folder=folder).split()


def bash_completes_all_options(place):
    found = bash_completions("weft-server", place.server, "--")
    assert len(found) == len(set(found)) and set(found) == expected_completions(place), found
    found = bash_completions("weft-server", place.server, "--maxmemory-p")
    assert found == ["--maxmemory-policy"], found
    place.file("some.conf", "")
    assert bash_completions("weft-server", place.server, "some", place.path) == ["some.conf"]


def bash_completes_all_options_of_top(place):
    found = bash_completions("weft-top", top_program(), "-")
    assert len(found) == len(set(found)) and set(found) == options_of_top(), found
    found = bash_completions("weft-top", top_program(), "--int")
    assert found == ["--interval"], found
    place.file("some.pem", "")
    assert bash_completions("weft-top", top_program(), "some", place.path) == ["some.pem"]


def check_zsh_completions(name, program, typed, expected):
    # The function is run outside of the line editor, with `_describe` and `_files` that print.
    script = (
        "_describe() { print -rl -- \"${options[@]}\" }; _files() { print files }\n"
        f"PREFIX=$1 words=({program})\n"
        f"complete_it() {{ source {PACKAGING}/completions/_{name} }}; complete_it"
    )
    zsh = tool("zsh")
    lines = output_of(zsh, "-f", "-c", script, "zsh", typed).splitlines()
    found = {line.split(":", 1)[0] for line in lines if line.split(":", 1)[1]}
    assert len(lines) == len(found) and found == expected, lines
    assert output_of(zsh, "-f", "-c", script, "zsh", "we") == "files\n"


def zsh_completes_all_options(place):
    check_zsh_completions("weft-server", place.server, "--", expected_completions(place))


def zsh_completes_all_options_of_top(place):
    check_zsh_completions("weft-top", top_program(), "-", options_of_top())


def check_fish_completions(place, name, program, typed, expected):
    environment = {"HOME": place.path, "XDG_CONFIG_HOME": place.path, "PATH": f"{place.folder('bin')}:{os.environ['PATH']}"}
    os.symlink(program, os.path.join(place.folder("bin"), name))
    script = f"source {PACKAGING}/completions/{name}.fish; complete --do-complete '{name} {typed}'"
    lines = output_of(tool("fish"), "--no-config", "-c", script, environment=environment).splitlines()
    found = {line.split("\t")[0] for line in lines if "\t" in line}
    assert found == expected, lines


def fish_completes_all_options(place):
    check_fish_completions(place, "weft-server", place.server, "--", expected_completions(place))


def fish_completes_all_options_of_top(place):
    check_fish_completions(place, "weft-top", top_program(), "-", options_of_top())


CHECKS = [
    scripts_are_posix, scripts_have_no_warnings,
    debug_information_is_in_a_file_of_its_own, server_is_small_and_starts_quickly, portable_server_needs_only_old_libraries,
    entry_point_starts_the_server, entry_point_runs_other_programs, entry_point_drops_privileges,
    entry_point_keeps_a_chosen_umask, entry_point_warns_if_no_data_can_be_written, charts_of_valkey_find_what_they_need,
    entry_point_and_health_check_with_a_server, health_check_judges_answers,
    dockerfile_names_files_that_exist, dockerfile_has_no_warnings, compose_file_is_valid,
    manifest_is_consistent, manifest_configuration_is_valid, manifest_is_yaml, manifest_is_valid_for_kubernetes,
    manifest_keeps_memory_below_the_limit, alert_rules_and_dashboard_are_promql,
    cluster_is_formed_and_survives_new_addresses,
    units_are_valid, units_are_hardened, units_have_the_same_rules, service_reports_that_it_is_ready,
    debian_configuration_is_valid, debian_assets_exist, debian_package_contains_everything,
    debian_package_of_top_contains_everything, debian_package_lives_and_dies,
    log_rotation_is_valid,
    manual_and_program_have_the_same_options, top_manual_and_program_have_the_same_options,
    manual_is_formatted_without_warnings, server_knows_all_parameters,
    bash_completes_all_options, bash_completes_all_options_of_top, zsh_completes_all_options,
    zsh_completes_all_options_of_top, fish_completes_all_options, fish_completes_all_options_of_top,
]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default=RELEASE)
    parser.add_argument("--only", default="", help="runs the checks whose names contain this")
    options = parser.parse_args()
    server = os.path.abspath(options.server)
    passed, failed, skipped = 0, [], []
    for check in CHECKS:
        name = check.__name__
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="weft-packaging-") as path:
            place = Place(path, server)
            try:
                check(place)
                passed += 1
                print(f"{name}: passed", flush=True)
            except Skipped as why:
                skipped.append(f"{name}: {why}")
            except Exception:
                print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
                failed.append(name)
            finally:
                place.close()
    for line in skipped:
        print(f"skipped {line}")
    print(f"{passed} passed, {len(failed)} failed, {len(skipped)} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
