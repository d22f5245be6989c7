//! Tests subscriptions, the receivers of messages, and the bytes of messages.

use super::*;
use weft_base::ThreadIndex;
use weft_reactor::Output;
use weft_resp::Protocol;

fn subscriber_on(worker: ThreadIndex, client: u64) -> Subscriber {
    Subscriber {
        client: ClientId::new(client),
        worker,
    }
}

/// Returns the ids of the clients on `worker` that receive a message, for the channel or for patterns.
fn receivers(registry: &PubSubRegistry, worker: ThreadIndex, publication: &PublishedMessage) -> Vec<u64> {
    let mut recipients = Vec::new();
    registry.recipients(worker, publication, &mut recipients);
    recipients.iter().map(|recipient| recipient.client.get()).collect()
}

#[test]
fn a_message_reaches_channel_and_patterns_and_each_worker_once() {
    let registry = PubSubRegistry::default();
    let (mut seven, mut nine) = (Subscriptions::default(), Subscriptions::default());
    assert!(registry.subscribe(
        &mut seven,
        SubscriptionKind::Channel,
        b"news",
        subscriber_on(ThreadIndex::new(1), 7)
    ));
    assert!(
        !registry.subscribe(
            &mut seven,
            SubscriptionKind::Channel,
            b"news",
            subscriber_on(ThreadIndex::new(1), 7)
        ),
        "twice"
    );
    registry.subscribe(
        &mut seven,
        SubscriptionKind::Pattern,
        b"n*",
        subscriber_on(ThreadIndex::new(1), 7),
    );
    registry.subscribe(
        &mut nine,
        SubscriptionKind::Pattern,
        b"n*",
        subscriber_on(ThreadIndex::new(2), 9),
    );
    registry.subscribe(
        &mut nine,
        SubscriptionKind::ShardChannel,
        b"news",
        subscriber_on(ThreadIndex::new(2), 9),
    );
    let prepared = registry
        .prepare(ChannelNamespace::Channels, b"news", b"x")
        .expect("somebody listens");
    assert_eq!(
        (prepared.receivers, prepared.workers.as_slice()),
        (3, &[(ThreadIndex::new(1), 2), (ThreadIndex::new(2), 1)][..])
    );
    assert_eq!(receivers(&registry, ThreadIndex::new(1), &prepared.publication), [7, 7]);
    assert_eq!(receivers(&registry, ThreadIndex::new(2), &prepared.publication), [9]);
    let sharded = registry
        .prepare(ChannelNamespace::ShardChannels, b"news", b"x")
        .expect("somebody listens");
    assert_eq!(
        (sharded.receivers, sharded.workers.as_slice()),
        (1, &[(ThreadIndex::new(2), 1)][..]),
        "no patterns"
    );
    assert!(registry.prepare(ChannelNamespace::Channels, b"weather", b"x").is_none());
}

#[test]
fn a_client_that_subscribes_after_counting_does_not_get_the_message() {
    let registry = PubSubRegistry::default();
    let (mut early, mut late) = (Subscriptions::default(), Subscriptions::default());
    registry.subscribe(
        &mut early,
        SubscriptionKind::Channel,
        b"c",
        subscriber_on(ThreadIndex::new(0), 1),
    );
    registry.subscribe(
        &mut early,
        SubscriptionKind::Pattern,
        b"*",
        subscriber_on(ThreadIndex::new(0), 1),
    );
    let prepared = registry
        .prepare(ChannelNamespace::Channels, b"c", b"x")
        .expect("somebody listens");
    registry.subscribe(
        &mut late,
        SubscriptionKind::Channel,
        b"c",
        subscriber_on(ThreadIndex::new(0), 2),
    );
    registry.subscribe(
        &mut late,
        SubscriptionKind::Pattern,
        b"*",
        subscriber_on(ThreadIndex::new(0), 2),
    );
    assert_eq!(receivers(&registry, ThreadIndex::new(0), &prepared.publication), [1, 1]);
    // A client that subscribes again is as late as a new one.
    registry.unsubscribe_all(&mut early, subscriber_on(ThreadIndex::new(0), 1));
    registry.subscribe(
        &mut early,
        SubscriptionKind::Channel,
        b"c",
        subscriber_on(ThreadIndex::new(0), 1),
    );
    assert_eq!(
        receivers(&registry, ThreadIndex::new(0), &prepared.publication),
        [] as [u64; 0]
    );
}

#[test]
fn nothing_is_left_of_clients_that_unsubscribed() {
    let registry = PubSubRegistry::default();
    let mut rng = fastrand::Rng::with_seed(fastrand::u64(..));
    println!("seed {}", rng.get_seed());
    let mut clients: Vec<Subscriptions> = (0..8).map(|_| Subscriptions::default()).collect();
    for _ in 0..4000 {
        let id = rng.usize(..clients.len());
        let kind = [
            SubscriptionKind::Channel,
            SubscriptionKind::Pattern,
            SubscriptionKind::ShardChannel,
        ][rng.usize(..3)];
        let name = [b'a' + rng.u8(..5)];
        let who = subscriber_on(ThreadIndex::new(id % 3), id as u64);
        let subscribed = clients[id].names(kind).contains(&name[..]);
        if rng.bool() {
            assert_eq!(registry.subscribe(&mut clients[id], kind, &name, who), !subscribed);
        } else {
            assert_eq!(registry.unsubscribe(&mut clients[id], kind, &name, who), subscribed);
        }
        let count = clients
            .iter()
            .filter(|client| client.channels.contains(&name[..]))
            .count();
        assert_eq!(registry.subscriber_count(ChannelNamespace::Channels, &name), count);
        let listening = clients.iter().filter(|client| !client.is_empty()).count();
        assert_eq!(registry.clients.load(Ordering::Relaxed), listening);
    }
    for (id, client) in clients.iter_mut().enumerate() {
        registry.unsubscribe_all(client, subscriber_on(ThreadIndex::new(id % 3), id as u64));
    }
    let left = registry.channel_count(ChannelNamespace::Channels)
        + registry.channel_count(ChannelNamespace::ShardChannels)
        + registry.pattern_count();
    assert_eq!((left, registry.clients.load(Ordering::Relaxed)), (0, 0));
    assert!(registry.active_channels(ChannelNamespace::Channels, None).is_empty());
}

#[test]
fn messages_are_pushes_in_resp3_and_arrays_in_resp2() {
    let mut publication = PublishedMessage::new(ChannelNamespace::Channels);
    publication.set_content(b"c", b"hi");
    publication.patterns.push(b"*".as_slice().into());
    let cases = [
        (None, Protocol::Resp2, "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"),
        (None, Protocol::Resp3, ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"),
        (
            Some(0),
            Protocol::Resp3,
            ">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$2\r\nhi\r\n",
        ),
    ];
    for (pattern, protocol, wanted) in cases {
        let mut output = Output::new();
        publication.append(pattern, protocol, &mut output);
        assert_eq!(String::from_utf8_lossy(&output.bytes), wanted);
    }
}

#[test]
fn a_large_payload_is_not_copied_for_each_subscriber() {
    let mut publication = PublishedMessage::new(ChannelNamespace::ShardChannels);
    publication.set_content(b"c", &[b'x'; 100_000]);
    let mut output = Output::new();
    for _ in 0..10 {
        publication.append(None, Protocol::Resp2, &mut output);
    }
    assert!(output.len() > 1_000_000);
    assert!(output.bytes.len() < 1000, "{} bytes were copied", output.bytes.len());
}
