"""Smoke test: redis-py and valkey-py against a server on the given loopback port."""

import sys
import time

import redis
import valkey


def strings(client, package):
    assert client.ping() is True
    assert client.set("py:key", "value") is True
    assert client.get("py:key") == "value"
    assert client.set("py:key", "other", nx=True) is None
    assert client.set("py:key", "other", xx=True, get=True) == "value"
    assert client.append("py:key", "!") == 6
    assert client.getrange("py:key", 0, 2) == "oth"
    assert client.mset({"py:a": "1", "py:b": "2"})
    assert client.mget("py:a", "py:b", "py:none") == ["1", "2", None]
    assert client.incr("py:a", 41) == 42
    assert client.incrbyfloat("py:a", 0.5) == 42.5
    assert client.setbit("py:bits", 7, 1) == 0
    assert client.bitcount("py:bits") == 1
    assert client.delete("py:a", "py:b", "py:none") == 2


def binary(connect):
    client = connect(decode_responses=False)
    payload = bytes(range(256)) * 100
    assert client.set(b"py:\x00\r\n", payload)
    assert client.get(b"py:\x00\r\n") == payload
    dumped = client.dump(b"py:\x00\r\n")
    assert client.restore("py:copy", 0, dumped, replace=True)
    assert client.get("py:copy") == payload
    client.close()


def pipelines(client, package):
    pipe = client.pipeline(transaction=False)
    for number in range(1000):
        pipe.set(f"py:p:{number}", number)
    for number in range(1000):
        pipe.get(f"py:p:{number}")
    replies = pipe.execute()
    assert replies[:1000] == [True] * 1000
    assert replies[1000:] == [str(number) for number in range(1000)]
    found = set(client.scan_iter(match="py:p:*", count=100))
    assert found == {f"py:p:{number}" for number in range(1000)}


def expiry(client, package):
    client.set("py:short", "x", px=30)
    assert 0 < client.pttl("py:short") <= 30
    time.sleep(0.06)
    assert client.get("py:short") is None
    client.set("py:long", "x", ex=100)
    assert 98 <= client.ttl("py:long") <= 100
    assert client.persist("py:long") == 1
    assert client.ttl("py:long") == -1


def errors(client, package):
    client.set("py:text", "abc")
    for attempt in (lambda: client.incr("py:text"), lambda: client.execute_command("NOSUCH")):
        try:
            attempt()
        except package.ResponseError:
            continue
        raise AssertionError("an error was expected")
    assert client.get("py:text") == "abc"


def main(port):
    for package, kind in ((redis, redis.Redis), (valkey, valkey.Valkey)):
        for protocol in (2, 3):

            def connect(**options):
                return kind(host="127.0.0.1", port=port, protocol=protocol, **options)

            client = connect(decode_responses=True)
            client.flushall()
            for part in (strings, pipelines, expiry, errors):
                part(client, package)
            binary(connect)
            assert client.info("server")["tcp_port"] == port
            assert client.config_get("maxclients")["maxclients"]
            client.client_setname("smoke")
            assert client.client_getname() == "smoke"
            client.close()
        # The defaults of the package: whatever it negotiates must work.
        client = kind(port=port)
        assert client.set("py:default", "1") and client.get("py:default") == b"1"
        client.close()


main(int(sys.argv[1]))
