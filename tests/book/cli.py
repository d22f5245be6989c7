"""A client for the examples of the book: the options and the output of `valkey-cli --no-raw` that the examples use.

It stands for valkey-cli on machines that do not have it. It waits for a server that has just been started.
"""

import os
import socket
import sys
import time

PATIENCE_S = 20


def read_reply(stream):
    """Returns a reply as (type, value)."""
    line = stream.readline()
    if not line.endswith(b"\r\n"):
        raise EOFError
    kind, rest = line[:1], line[1:-2]
    if kind == b"$":
        size = int(rest)
        return (b"$", None) if size < 0 else (b"$", stream.read(size + 2)[:-2])
    if kind == b"*":
        count = int(rest)
        return (b"*", None) if count < 0 else (b"*", [read_reply(stream) for _ in range(count)])
    return kind, rest


def quote(text):
    special = {0x5C: "\\\\", 0x22: '\\"', 0x0A: "\\n", 0x0D: "\\r", 0x09: "\\t", 0x07: "\\a", 0x08: "\\b"}
    return '"' + "".join(special.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in text) + '"'


def show(reply, indent=""):
    """Returns the lines that valkey-cli prints on a terminal."""
    kind, value = reply
    if kind == b"-":
        return [f"(error) {value.decode()}"]
    if kind == b":":
        return [f"(integer) {value.decode()}"]
    if kind == b"+":
        return value.decode().splitlines()
    if value is None:
        return ["(nil)"]
    if kind == b"$":
        return [quote(value)]
    if not value:
        return ["(empty array)"]
    width, lines = len(str(len(value))), []
    for number, item in enumerate(value, 1):
        prefix = f"{number:>{width}}) "
        first, *rest = show(item, indent + " " * len(prefix))
        lines += [(indent if number > 1 else "") + prefix + first, *rest]
    return lines


def connect(host, port):
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            return socket.create_connection((host, port), PATIENCE_S)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def main(words):
    host, port, before = "127.0.0.1", 6379, []
    user, password = None, os.environ.get("REDISCLI_AUTH")
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in ("-h", "-p", "-n", "-a", "--user", "--pass"):
            value = words.pop(0)
            host = value if option == "-h" else host
            port = int(value) if option == "-p" else port
            user = value if option == "--user" else user
            password = value if option in ("-a", "--pass") else password
            if option == "-n":
                before.append(["SELECT", value])
        elif option not in ("--no-auth-warning",):
            sys.exit(f"unknown option {option}")
    if password is not None:
        before.insert(0, ["AUTH", *([user] if user else []), password])
    try:
        connection = connect(host, port)
    except OSError as error:
        sys.exit(f"Could not connect to Valkey at {host}:{port}: {error.strerror}")
    stream = connection.makefile("rb")
    for command in [*before, words]:
        parts = [os.fsencode(word) for word in command]
        request = b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        connection.sendall(request)
        try:
            reply = read_reply(stream)
        except (EOFError, ConnectionResetError):
            # A server that shuts down does not reply.
            return 0
        if command is not words:
            if reply[0] == b"-":
                print(f"{command[0]} failed: {reply[1].decode()}")
            continue
        if reply[0] == b"$" and command[0].upper() in ("INFO", "CLUSTER", "CLIENT", "LATENCY", "LOLWUT"):
            # valkey-cli prints the text of these as it is.
            print((reply[1] or b"").decode().replace("\r\n", "\n").rstrip("\n"))
        else:
            print("\n".join(show(reply)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
