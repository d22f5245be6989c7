"""The life of the Debian package: dpkg installs, upgrades, removes and purges it in a copy of this machine's root.

`check` starts this file again in a mount namespace of its own. There the root is an overlay whose changes are in memory,
so they vanish with the process, and the machine stays as it is.
"""

import grp
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tomllib

from place import PACKAGING, ROOT, Skipped, free_port, is_answering, output_of, read, run, tool, wait_until

NAME = "weft-server"
CONFIGURATION = "/etc/weft/weft.conf"
# Makes the root an overlay, and runs the arguments in it. The variable $0 is an empty directory.
ENTER = """
set -e
mount -t tmpfs -o size=1g none "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay -o lowerdir=/,upperdir="$0/upper",workdir="$0/work" overlay "$0/root"
for name in proc sys dev; do mount --rbind "/$name" "$0/root/$name"; done
exec chroot "$0/root" "$@"
"""


def check(place):
    """Runs the life of the package in a copy of the root."""
    for name in ("dpkg", "dpkg-deb", "adduser", "update-alternatives", "setpriv", "strip"):
        tool(name)
    if os.geteuid() != 0:
        raise Skipped("only root can install a package")
    enter = [tool("unshare"), "--mount", "--propagation", "private", "sh", "-c", ENTER]
    if run(*enter, place.folder("trial"), "true").returncode != 0:
        raise Skipped("this machine allows no mounts")
    if os.path.exists("/etc/weft") or run("getent", "passwd", "weft").returncode == 0:
        raise Skipped("Weft is installed here")
    output_of(os.path.join(PACKAGING, "debian/prepare"), place.path)
    # Without symbols, copies are small.
    program = place.file("program")
    output_of("strip", "-o", program, place.server)
    output_of(*enter, place.folder("root"), sys.executable, "-B", os.path.abspath(__file__), place.path, str(free_port()))


# ---- The package -------------------------------------------------------------------------------


def build(folder, version, configuration):
    """Builds what cargo-deb builds from the same description, without compression. Returns the path."""
    with open(os.path.join(ROOT, "crates/server/Cargo.toml"), "rb") as file:
        deb = tomllib.load(file)["package"]["metadata"]["deb"]
    tree = os.path.join(folder, f"tree-{version}")
    for source, target, mode in deb["assets"]:
        if source == "target/release/weft-server":
            source = os.path.join(folder, "program")
            name = NAME
        elif source.endswith("target/packaging/weft.conf"):
            source = configuration
            name = "weft.conf"
        else:
            source = os.path.join(ROOT, "crates/server", source)
            name = os.path.basename(source)
        path = os.path.join(tree, target, name) if target.endswith("/") else os.path.join(tree, target)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        shutil.copyfile(source, path)
        os.chmod(path, int(mode, 8))
    control = os.path.join(tree, "DEBIAN")
    os.makedirs(control)
    depends = ", ".join(word for word in re.split(r", *", deb["depends"]) if word != "$auto")
    write(os.path.join(control, "control"), (
        f"Package: {deb['name']}\nVersion: {version}\nArchitecture: {output_of('dpkg', '--print-architecture').strip()}\n"
        f"Maintainer: {deb['maintainer']}\nDepends: {depends}\nDescription: Weft\n"
    ))
    write(os.path.join(control, "conffiles"), "".join(f"{path}\n" for path in deb["conf-files"]))
    for name in ("preinst", "postinst", "prerm", "postrm"):
        script = os.path.join(PACKAGING, "debian", name)
        if os.path.exists(script):
            shutil.copyfile(script, os.path.join(control, name))
            os.chmod(os.path.join(control, name), 0o755)
    package = os.path.join(folder, f"weft-{version}.deb")
    output_of("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, package)
    shutil.rmtree(tree)
    return package


def write(path, text, mode="w"):
    with open(path, mode, encoding="utf-8") as file:
        file.write(text)


def dpkg(*arguments):
    """Runs dpkg without the triggers of other packages, such as the index of all manual pages."""
    options = ["--force-unsafe-io", "--force-confold", "--no-triggers"]
    output_of("dpkg", *options, *arguments, environment={"DEBIAN_FRONTEND": "noninteractive"})
    problems = output_of("dpkg", "--audit", NAME) if os.path.exists(f"/var/lib/dpkg/info/{NAME}.list") else ""
    # Triggers that were left out are pending.
    assert "trigger" in problems or not problems, problems


# ---- What is there -----------------------------------------------------------------------------


def owner_and_mode(path):
    info = os.lstat(path)
    owner = f"{pwd.getpwuid(info.st_uid).pw_name}:{grp.getgrgid(info.st_gid).gr_name}"
    return f"{owner} {stat.S_IMODE(info.st_mode):04o}"


def has_user():
    return run("getent", "passwd", "weft").returncode == 0


def is_enabled():
    return os.path.islink("/etc/systemd/system/multi-user.target.wants/weft.service")


def is_masked():
    link = "/etc/systemd/system/weft.service"
    return os.path.islink(link) and os.readlink(link) == "/dev/null"


def helps_systemd():
    return os.path.exists("/usr/bin/deb-systemd-helper")


def assert_installed():
    assert owner_and_mode("/usr/bin/weft-server") == "root:root 0755"
    assert owner_and_mode(CONFIGURATION) == "weft:weft 0640"
    for path in ("/etc/weft", "/var/lib/weft", "/var/log/weft"):
        assert owner_and_mode(path) == "weft:weft 0750", path
    assert owner_and_mode("/etc/logrotate.d/weft-server") == "root:root 0644"
    user = pwd.getpwnam("weft")
    assert user.pw_dir == "/var/lib/weft" and "nologin" in user.pw_shell and 0 < user.pw_uid < 1000, user
    if helps_systemd():
        assert is_enabled() and not is_masked()


def run_service(port):
    """Starts the server as the unit does, sends it a command and stops it."""
    unit = read("/usr/lib/systemd/system/weft.service")
    words = re.search(r"^ExecStart=(.*)$", unit, re.MULTILINE).group(1).split()
    os.makedirs("/run/weft", exist_ok=True)
    shutil.chown("/run/weft", "weft", "weft")
    server = subprocess.Popen(
        ["setpriv", "--reuid=weft", "--regid=weft", "--init-groups", "--no-new-privs", "--", *words, "--port", str(port)],
        cwd="/var/lib/weft", umask=0o077, stdin=subprocess.DEVNULL,
    )
    try:
        address = ("127.0.0.1", port)
        wait_until(lambda: is_answering(address) or server.poll() is not None, "the service answers")
        assert server.poll() is None, read("/var/log/weft/weft.log")
    finally:
        server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0, read("/var/log/weft/weft.log")
    assert owner_and_mode("/var/log/weft/weft.log") == "weft:weft 0600"
    assert not os.path.exists("/run/weft/weft.pid")


# ---- The life ----------------------------------------------------------------------------------


def live(folder, port):
    original = os.path.join(folder, "weft.conf")
    changed = os.path.join(folder, "changed.conf")
    shutil.copyfile(original, changed)
    write(changed, "# A line of the second version.\n", "a")
    first, second = build(folder, "1.0-1", original), build(folder, "2.0-1", changed)

    dpkg("--install", first)
    assert_installed()
    run_service(port)

    # The administrator changes the file, gives the program other names, and disables the service.
    write(CONFIGURATION, "maxclients 77\n", "a")
    write("/var/lib/weft/kept", "data")
    for name in ("valkey-server", "redis-server"):
        for command in re.findall(rf"^    (update-alternatives .* {name} .*)$", read(PACKAGING, "debian/README.Debian"), re.MULTILINE):
            output_of("sh", "-c", command)
        assert os.path.realpath(f"/usr/local/bin/{name}") == "/usr/bin/weft-server", name
        assert "v=9.1" in output_of(f"/usr/local/bin/{name}", "--version")
    dpkg("--install", second)
    assert_installed()
    assert read(CONFIGURATION).endswith("\nmaxclients 77\n"), "a changed file is kept"
    assert read(CONFIGURATION + ".dpkg-dist") == read(changed)
    assert os.path.realpath("/usr/local/bin/valkey-server") == "/usr/bin/weft-server", "an upgrade keeps the names"
    run_service(port)

    dpkg("--remove", NAME)
    assert not os.path.exists("/usr/bin/weft-server")
    for name in ("valkey-server", "redis-server"):
        assert not os.path.lexists(f"/usr/local/bin/{name}"), name
    assert read(CONFIGURATION).endswith("\nmaxclients 77\n") and read("/var/lib/weft/kept") == "data" and has_user()
    assert is_masked() or not helps_systemd()

    dpkg("--install", second)
    assert_installed()
    assert read(CONFIGURATION).endswith("\nmaxclients 77\n") and read("/var/lib/weft/kept") == "data"

    # Another instance has data of its own, which keep the number of the user.
    os.mkdir("/var/lib/weft-other")
    dpkg("--purge", NAME)
    assert has_user(), "there is data of the user"
    os.rmdir("/var/lib/weft-other")
    dpkg("--install", first)
    assert_installed()
    dpkg("--purge", NAME)
    left = [path for path in ("/etc/weft", "/var/lib/weft", "/var/log/weft", "/etc/logrotate.d/weft-server") if os.path.lexists(path)]
    assert not left, left
    assert not has_user() and not is_enabled() and not is_masked()


if __name__ == "__main__":
    os.environ["PATH"] = "/usr/sbin:/usr/bin:/sbin:/bin"
    live(sys.argv[1], int(sys.argv[2]))
