import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import redis.clients.jedis.DefaultJedisClientConfig;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.RedisProtocol;
import redis.clients.jedis.Response;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.params.ScanParams;
import redis.clients.jedis.params.SetParams;
import redis.clients.jedis.resps.ScanResult;

/** Smoke test: Jedis against a server on the given loopback port, in RESP2 and RESP3. */
public final class Smoke {
  public static void main(String[] arguments) throws Exception {
    HostAndPort address = new HostAndPort("127.0.0.1", Integer.parseInt(arguments[0]));
    for (RedisProtocol protocol : RedisProtocol.values()) {
      DefaultJedisClientConfig config =
          DefaultJedisClientConfig.builder().protocol(protocol).clientName("smoke").build();
      try (Jedis client = new Jedis(address, config)) {
        client.flushAll();
        strings(client);
        pipelines(client);
        expiry(client);
        errors(client);
        expect("CLIENT GETNAME", client.clientGetname(), "smoke");
      }
    }
    // The defaults of the library: whatever it negotiates must work.
    try (Jedis client = new Jedis(address)) {
      expect("SET", client.set("java:default", "1"), "OK");
    }
  }

  private static void strings(Jedis client) {
    expect("PING", client.ping(), "PONG");
    expect("SET", client.set("java:key", "value"), "OK");
    expect("GET", client.get("java:key"), "value");
    expect("SET NX", client.set("java:key", "other", SetParams.setParams().nx()), null);
    expect("MGET", client.mget("java:key", "java:none"), Arrays.asList("value", null));
    expect("INCRBY", client.incrBy("java:count", 41), 41L);
    expect("INCRBYFLOAT", client.incrByFloat("java:count", 0.5), 41.5);
    byte[] payload = new byte[4096];
    for (int index = 0; index < payload.length; index++) {
      payload[index] = (byte) index;
    }
    client.set("java:bytes".getBytes(), payload);
    expect("bytes", Arrays.equals(client.get("java:bytes".getBytes()), payload), true);
    expect("DEL", client.del("java:key", "java:count", "java:none"), 2L);
  }

  private static void pipelines(Jedis client) {
    Pipeline pipeline = client.pipelined();
    List<Response<String>> replies = new java.util.ArrayList<>();
    for (int number = 0; number < 1000; number++) {
      pipeline.set("java:p:" + number, String.valueOf(number));
      replies.add(pipeline.get("java:p:" + number));
    }
    pipeline.sync();
    for (int number = 0; number < 1000; number++) {
      expect("piped GET", replies.get(number).get(), String.valueOf(number));
    }
    Set<String> found = new HashSet<>();
    String cursor = ScanParams.SCAN_POINTER_START;
    do {
      ScanResult<String> page =
          client.scan(cursor, new ScanParams().match("java:p:*").count(100));
      found.addAll(page.getResult());
      cursor = page.getCursor();
    } while (!cursor.equals(ScanParams.SCAN_POINTER_START));
    expect("scanned", found.size(), 1000);
  }

  private static void expiry(Jedis client) throws InterruptedException {
    client.psetex("java:short", 30, "x");
    long left = client.pttl("java:short");
    expect("PTTL " + left, left > 0 && left <= 30, true);
    Thread.sleep(60);
    expect("GET of an expired key", client.get("java:short"), null);
    client.setex("java:long", 100, "x");
    expect("PERSIST", client.persist("java:long"), 1L);
    expect("TTL", client.ttl("java:long"), -1L);
  }

  private static void errors(Jedis client) {
    client.set("java:text", "abc");
    try {
      client.incr("java:text");
      throw new IllegalStateException("INCR of a text did not fail");
    } catch (JedisDataException error) {
      expect("INCR of a text", error.getMessage().startsWith("ERR value is not"), true);
    }
    expect("PING", client.ping(), "PONG");
  }

  private static void expect(String what, Object got, Object want) {
    if (!Objects.equals(got, want)) {
      throw new IllegalStateException(what + ": got " + got + ", want " + want);
    }
  }
}
