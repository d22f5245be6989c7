"""Dumps in the formats of KeyDB and Dragonfly, for the recipes of the book on machines that do not have these programs.

The formats are those of the programs' sources: KeyDB 6.3, src/rdb.cpp, and Dragonfly 1.x, src/server/rdb_save.cc in the
mode of SAVE RDB. Both say that they are Redis's format of version 9. What each adds:

    keydb            a field "mvcc-tstamp" between the expiry and the type of each key, as active replicas write it, and
                     fields with the expiry of members behind their set
    keydb-own        the same with a key of its own type: a cron job
    dragonfly        newer types than the version says, the number of the database again and again, no checksum
    dragonfly-own    the same with a mark in front of a sticky key
"""

import struct
import time

EXPIRY_S = 5000
EXPIRY_MS, AUX, RESIZE, SELECT, END = b"\xfc", b"\xfa", b"\xfb", b"\xfe", b"\xff"
# Opcodes and types that only one program has.
DRAGONFLY_MASK, KEYDB_CRON = b"\xdc", b"\x40"

NUMBERS = [str(number).encode() for number in range(1000)]
STRINGS = {
    b"string": b"text", b"number": b"12345", b"small": b"-7", b"large": b"1234567890", b"bytes": b"\x00\xff" * 300,
}
LIST = [b"first", *NUMBERS, b"-1234", b"98765432101"]
SMALL_HASH = {b"field": b"value", b"number": b"7"}
LARGE_HASH = {b"f" + number: b"v" + number for number in NUMBERS}
INTEGERS = [b"-5", *NUMBERS[:100]]
SET = [b"member" + number for number in NUMBERS]
SMALL_SORTED = {b"one": 1.0, b"half": 0.5}
SORTED = {b"m" + number: int(number) / 4 for number in NUMBERS}


# ---- Strings and numbers -----------------------------------------------------------------------


def length(number):
    if number < 64:
        return bytes([number])
    if number < 16384:
        return bytes([0x40 | number >> 8, number & 255])
    if number < 1 << 32:
        return b"\x80" + struct.pack(">I", number)
    return b"\x81" + struct.pack(">Q", number)


def integer_of(text):
    """Returns the integer whose decimal form a string is, or None."""
    digits = text[1:] if text[:1] == b"-" else text
    if not digits.isdigit() or len(text) > 20 or str(int(text)).encode() != text:
        return None
    return int(text)


def string(text):
    number = integer_of(text) if len(text) <= 11 else None
    for mark, code, limit in ((b"\xc0", "<b", 1 << 7), (b"\xc1", "<h", 1 << 15), (b"\xc2", "<i", 1 << 31)):
        if number is not None and -limit <= number < limit:
            return mark + struct.pack(code, number)
    return length(len(text)) + text


def compressed_pairs(text):
    """Returns a string that repeats its first two bytes in LZF: these two, and copies of what is two bytes before."""
    packed, rest = b"\x01" + text[:2], len(text) - 2
    while rest:
        copied = min(rest, 264)
        assert copied >= 9 and text == text[:2] * (len(text) // 2)
        packed += bytes([7 << 5, copied - 9, 1])
        rest -= copied
    return b"\xc3" + length(len(packed)) + length(len(text)) + packed


def aux(name, text):
    return AUX + string(name) + string(text)


def checksum(data):
    """Returns the CRC-64 of Redis, with Jones' polynomial."""
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x95AC9329AC4BC9B5 if crc & 1 else 0)
    return crc


# ---- Packed encodings --------------------------------------------------------------------------


def signed(number, size):
    return number.to_bytes(size, "little", signed=True)


def ziplist(elements):
    body, before, last = b"", 0, 0
    for element in elements:
        number = integer_of(element)
        if number is None:
            assert len(element) < 64
            stored = bytes([len(element)]) + element
        elif 0 <= number <= 12:
            stored = bytes([0xF1 + number])
        else:
            sizes = ((1, 0xFE), (2, 0xC0), (3, 0xF0), (4, 0xD0), (8, 0xE0))
            size, mark = next(pair for pair in sizes if -(1 << 8 * pair[0] - 1) <= number < 1 << 8 * pair[0] - 1)
            stored = bytes([mark]) + signed(number, size)
        entry = bytes([before]) + stored
        last, before = len(body), len(entry)
        body += entry
    whole = struct.pack("<IIH", 11 + len(body), 10 + last, len(elements)) + body + b"\xff"
    return length(len(whole)) + whole


def listpack(elements):
    body = b""
    for element in elements:
        number = element if isinstance(element, int) else integer_of(element)
        if number is None:
            assert len(element) < 64
            stored = bytes([0x80 | len(element)]) + element
        elif 0 <= number < 128:
            stored = bytes([number])
        elif -4096 <= number < 4096:
            stored = struct.pack(">H", 0xC000 | number & 0x1FFF)
        else:
            sizes = ((2, 0xF1), (3, 0xF2), (4, 0xF3), (8, 0xF4))
            size, mark = next(pair for pair in sizes if -(1 << 8 * pair[0] - 1) <= number < 1 << 8 * pair[0] - 1)
            stored = bytes([mark]) + signed(number, size)
        body += stored + bytes([len(stored)])
    whole = struct.pack("<IH", 7 + len(body), len(elements)) + body + b"\xff"
    return length(len(whole)) + whole


def intset(members):
    numbers = sorted(int(member) for member in members)
    whole = struct.pack("<II", 2, len(numbers)) + b"".join(signed(number, 2) for number in numbers)
    return length(len(whole)) + whole


def strings(texts):
    return length(len(texts)) + b"".join(map(string, texts))


def pairs(mapping):
    return length(len(mapping)) + b"".join(string(field) + string(value) for field, value in mapping.items())


def scores(mapping):
    """A large sorted set: each member with its score in binary."""
    return length(len(mapping)) + b"".join(string(name) + struct.pack("<d", score) for name, score in mapping.items())


def flat(mapping):
    return [word for pair in mapping.items() for word in pair]


def score_text(score):
    return b"%d" % score if score == int(score) else repr(score).encode()


def small_sorted():
    return flat({member: score_text(score) for member, score in sorted(SMALL_SORTED.items(), key=lambda pair: pair[1])})


def stream(version):
    """The entries 1-1 and 2-1 with one field each, and a group that has read nothing."""
    # The block begins with its first entry's fields, which all entries have; an entry with them has flags 2.
    block = listpack([2, 0, 1, b"field", 0, 2, 0, 0, b"value", 4, 2, 1, 0, b"other", 4])
    data = length(1) + length(16) + struct.pack(">QQ", 1, 1) + block + length(2) + length(2) + length(1)
    if version > 1:
        # The first entry, the largest deleted one, and the number of entries that were ever added.
        data += length(1) + length(1) + length(0) + length(0) + length(2)
    data += length(1) + string(b"group") + length(0) + length(0)
    if version > 1:
        data += length(0)
    # Neither pending entries nor consumers.
    return data + length(0) + length(0)


# ---- Files -------------------------------------------------------------------------------------


def keydb(own):
    stored = {name: compressed_pairs(text) if len(text) > 20 else string(text) for name, text in STRINGS.items()}
    keys = [(b"\x00", name, text) for name, text in stored.items()]
    nodes = [ziplist(LIST[:500]), ziplist(LIST[500:])]
    keys += [
        (b"\x0e", b"list", length(len(nodes)) + b"".join(nodes)),
        (b"\x0d", b"hash", ziplist(flat(SMALL_HASH))),
        (b"\x04", b"large-hash", pairs(LARGE_HASH)),
        (b"\x0b", b"integers", intset(INTEGERS)),
        (b"\x02", b"set", strings(SET)),
        (b"\x0c", b"small-sorted", ziplist(small_sorted())),
        (b"\x05", b"sorted", scores(dict(reversed(SORTED.items())))),
        (b"\x0f", b"stream", stream(1)),
    ]
    if own:
        job = string(b"return 1") + struct.pack("<qq", int(time.time() * 1000), 60000) + length(0) + length(0)
        keys.append((KEYDB_CRON, b"job", job))
    data = b"REDIS0009" + aux(b"redis-ver", b"6.3.4") + aux(b"redis-bits", b"64") + aux(b"ctime", b"%d" % time.time())
    data += aux(b"used-mem", b"3000000") + aux(b"aof-preamble", b"0") + SELECT + length(0)
    data += RESIZE + length(len(keys) + 1) + length(1)
    data += expiry() + aux(b"mvcc-tstamp", b"1700000000000000001") + b"\x00" + string(b"expiring") + string(b"soon")
    for kind, name, value in keys:
        data += aux(b"mvcc-tstamp", b"1700000000000000002") + kind + string(name) + value
        if name == b"set":
            data += aux(b"keydb-subexpire-key", SET[0]) + aux(b"keydb-subexpire-when", b"%d" % expiry_ms())
    data += END
    return data + struct.pack("<Q", checksum(data))


def dragonfly(own):
    keys = [(b"\x00", name, string(text)) for name, text in STRINGS.items()]
    nodes = [listpack(LIST[:500]), listpack(LIST[500:])]
    keys += [
        (b"\x12", b"list", length(len(nodes)) + b"".join(length(2) + node for node in nodes)),
        (b"\x10", b"hash", listpack(flat(SMALL_HASH))),
        (b"\x04", b"large-hash", pairs(LARGE_HASH)),
        (b"\x0b", b"integers", intset(INTEGERS)),
        (b"\x02", b"set", strings(SET)),
        (b"\x11", b"small-sorted", listpack(small_sorted())),
        (b"\x05", b"sorted", scores(SORTED)),
        (b"\x15", b"stream", stream(3)),
    ]
    data = b"REDIS0009" + aux(b"redis-ver", b"6.2.11") + aux(b"df-ver", b"v1.30.0") + aux(b"redis-bits", b"64")
    data += aux(b"ctime", b"%d" % time.time()) + aux(b"used-mem", b"3000000") + aux(b"aof-preamble", b"0")
    data += aux(b"lua", b"return redis.call('GET', KEYS[1])")
    data += SELECT + length(0) + expiry() + b"\x00" + string(b"expiring") + string(b"soon")
    for kind, name, value in keys:
        data += SELECT + length(0) + kind + string(name) + value
    if own:
        data += DRAGONFLY_MASK + struct.pack("<I", 1) + b"\x00" + string(b"sticky") + string(b"stays")
    return data + END + bytes(8)


def expiry_ms():
    return int((time.time() + EXPIRY_S) * 1000)


def expiry():
    return EXPIRY_MS + struct.pack("<q", expiry_ms())


FORMATS = {
    "keydb": lambda: keydb(False),
    "keydb-own": lambda: keydb(True),
    "dragonfly": lambda: dragonfly(False),
    "dragonfly-own": lambda: dragonfly(True),
}


def expected():
    """Returns each key of a server that has loaded one of the files: type, value as in replies, expiry and groups."""

    def bulk(texts):
        return [(b"$", text) for text in texts]

    def entry(number, value):
        return (b"*", [(b"$", b"%d-1" % number), (b"*", bulk([b"field", value]))])

    def ranked(mapping):
        by_score = sorted(mapping.items(), key=lambda pair: pair[1])
        return bulk(word for member, score in by_score for word in (member, score_text(score)))

    keys = {name: (b"string", text, False, 0) for name, text in {**STRINGS, b"expiring": b"soon"}.items()}
    keys[b"expiring"] = (b"string", b"soon", True, 0)
    keys[b"list"] = (b"list", bulk(LIST), False, 0)
    for name, fields in ((b"hash", SMALL_HASH), (b"large-hash", LARGE_HASH)):
        keys[name] = (b"hash", sorted(zip(bulk(fields.keys()), bulk(fields.values()))), False, 0)
    for name, members in ((b"integers", INTEGERS), (b"set", SET)):
        keys[name] = (b"set", sorted(bulk(members)), False, 0)
    for name, mapping in ((b"small-sorted", SMALL_SORTED), (b"sorted", SORTED)):
        keys[name] = (b"zset", ranked(mapping), False, 0)
    keys[b"stream"] = (b"stream", [entry(1, b"value"), entry(2, b"other")], False, 1)
    return keys
