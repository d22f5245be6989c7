// Smoke test: go-redis against a server on the given loopback port, in RESP2 and RESP3.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var background = context.Background()

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func expect(what string, got, want any) {
	if got != want {
		must(fmt.Errorf("%s: got %v, want %v", what, got, want))
	}
}

func stringValues(client *redis.Client) {
	must(client.Set(background, "go:key", "value", 0).Err())
	got, err := client.Get(background, "go:key").Result()
	must(err)
	expect("GET", got, "value")
	set, err := client.SetNX(background, "go:key", "other", 0).Result()
	must(err)
	expect("SETNX", set, false)
	_, err = client.Get(background, "go:none").Result()
	expect("GET of a missing key", err, redis.Nil)
	many, err := client.MGet(background, "go:key", "go:none").Result()
	must(err)
	expect("MGET", fmt.Sprint(many), "[value <nil>]")
	count, err := client.IncrBy(background, "go:count", 41).Result()
	must(err)
	expect("INCRBY", count, int64(41))
	fraction, err := client.IncrByFloat(background, "go:count", 0.5).Result()
	must(err)
	expect("INCRBYFLOAT", fraction, 41.5)
	payload := bytes.Repeat([]byte{0, '\r', '\n', 255}, 10000)
	must(client.Set(background, "go:bytes", payload, 0).Err())
	back, err := client.Get(background, "go:bytes").Bytes()
	must(err)
	expect("bytes", bytes.Equal(back, payload), true)
}

func pipelines(client *redis.Client) {
	replies, err := client.Pipelined(background, func(pipe redis.Pipeliner) error {
		for number := 0; number < 1000; number++ {
			key := fmt.Sprintf("go:p:%d", number)
			pipe.Set(background, key, number, 0)
			pipe.Get(background, key)
		}
		return nil
	})
	must(err)
	expect("replies", len(replies), 2000)
	for index, reply := range replies {
		if get, ok := reply.(*redis.StringCmd); ok {
			expect("piped GET", get.Val(), fmt.Sprint(index/2))
		}
	}
	found := map[string]bool{}
	iterator := client.Scan(background, 0, "go:p:*", 100).Iterator()
	for iterator.Next(background) {
		found[iterator.Val()] = true
	}
	must(iterator.Err())
	expect("scanned", len(found), 1000)
}

func expiry(client *redis.Client) {
	must(client.Set(background, "go:short", "x", 30*time.Millisecond).Err())
	left, err := client.PTTL(background, "go:short").Result()
	must(err)
	expect("PTTL", left > 0 && left <= 30*time.Millisecond, true)
	time.Sleep(60 * time.Millisecond)
	_, err = client.Get(background, "go:short").Result()
	expect("GET of an expired key", err, redis.Nil)
	must(client.Set(background, "go:long", "x", 100*time.Second).Err())
	persisted, err := client.Persist(background, "go:long").Result()
	must(err)
	expect("PERSIST", persisted, true)
}

func failures(client *redis.Client) {
	must(client.Set(background, "go:text", "abc", 0).Err())
	err := client.Incr(background, "go:text").Err()
	expect("INCR of a text", err != nil && strings.HasPrefix(err.Error(), "ERR value is not"), true)
	err = client.Do(background, "NOSUCH").Err()
	expect("unknown command", err != nil && strings.HasPrefix(err.Error(), "ERR unknown command"), true)
	must(client.Ping(background).Err())
}

func main() {
	address := "127.0.0.1:" + os.Args[1]
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol, ClientName: "smoke"})
		must(client.FlushAll(background).Err())
		stringValues(client)
		pipelines(client)
		expiry(client)
		failures(client)
		name, err := client.ClientGetName(background).Result()
		must(err)
		expect("CLIENT GETNAME", name, "smoke")
		must(client.Close())
	}
	// The defaults of the package: whatever it negotiates must work.
	client := redis.NewClient(&redis.Options{Addr: address})
	must(client.Set(background, "go:default", "1", 0).Err())
	must(client.Close())
}
