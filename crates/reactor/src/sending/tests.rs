//! Tests of batches against a flat model, with every way of splitting them.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

/// Returns a random output. Its bytes come from a running counter, so that a wrong order is visible.
fn random_output(random: &mut fastrand::Rng, next: &mut u8, flat: &mut Vec<u8>) -> Output {
    let mut run = |len: usize| -> Vec<u8> {
        let bytes: Vec<u8> = (0..len).map(|at| next.wrapping_add(at as u8)).collect();
        *next = next.wrapping_add(len as u8);
        flat.extend_from_slice(&bytes);
        bytes
    };
    let mut output = Output::new();
    for _ in 0..random.usize(1..6) {
        if random.bool() {
            output.bytes.extend_from_slice(&run(random.usize(0..40)));
        } else {
            output.push_shared(Box::new(run(random.usize(0..60))));
        }
    }
    output
}

fn remaining(unsent: &SendQueue) -> Vec<u8> {
    let (mut pieces, mut share) = (Vec::new(), usize::MAX);
    for batch in &unsent.batches {
        batch.append_pieces(&mut pieces, &mut share);
    }
    pieces.iter().flat_map(|piece| piece.iter().copied()).collect()
}

#[test]
fn advancing_by_any_amounts_leaves_the_rest_in_order() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..500 {
        let (mut unsent, mut model, mut next) = (SendQueue::default(), Vec::new(), 0);
        for _ in 0..random.usize(1..8) {
            let mut output = random_output(&mut random, &mut next, &mut model);
            unsent.enqueue(&mut output);
            assert_eq!((output.is_empty(), output.len()), (true, 0));
        }
        let mut sent = 0;
        loop {
            assert_eq!(unsent.len(), model.len() - sent);
            assert_eq!(remaining(&unsent), &model[sent..]);
            if sent == model.len() {
                break;
            }
            let step = random.usize(1..=(model.len() - sent).min(50));
            unsent.advance(step);
            sent += step;
        }
        assert!(unsent.is_empty() || model.is_empty());
    }
}

#[test]
fn small_output_is_merged_after_a_blocked_front_that_stays_unchanged() {
    let mut unsent = SendQueue::default();
    let mut output = Output::new();
    for _ in 0..1000 {
        output.bytes.extend_from_slice(&[7; 100]);
        unsent.enqueue(&mut output);
    }
    assert_eq!(unsent.len(), 100_000);
    assert_eq!(
        unsent.batches[0].bytes.len(),
        100,
        "the front may be in the kernel's hands"
    );
    assert!(unsent.batches.len() <= 4, "{} batches", unsent.batches.len());
}

#[test]
fn many_pieces_are_sent_in_several_calls() {
    let (writer, mut reader) = UnixStream::pair().unwrap();
    let socket = Socket::from(writer);
    let reading = std::thread::spawn(move || {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).unwrap();
        received
    });
    let (mut output, mut flat) = (Output::new(), Vec::new());
    for number in 0..3 * MAX_PIECES {
        let text = format!("{number},");
        flat.extend_from_slice(text.as_bytes());
        output.push_shared(Box::new(text.into_bytes()));
    }
    let mut unsent = SendQueue::default();
    unsent.send(&socket, &mut output).unwrap();
    assert_eq!((unsent.is_empty(), unsent.len(), output.len()), (true, 0, 0));
    assert!(output.shared.capacity() > 0, "the allocation comes back");
    drop(socket);
    assert!(reading.join().unwrap() == flat);
}

#[test]
fn no_connection_sends_more_than_its_limit_in_a_turn() {
    for spliced in [false, true] {
        let (writer, mut reader) = UnixStream::pair().unwrap();
        let socket = Socket::from(writer);
        let long: Vec<u8> = (0..3 * MAX_BYTES_PER_TURN).map(|at| (at / 7) as u8).collect();
        let reading = std::thread::spawn(move || {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).unwrap();
            received
        });
        let mut output = Output::new();
        if spliced {
            output.push_shared(Box::new(long.clone()));
        } else {
            output.bytes = long.clone();
        }
        let mut unsent = SendQueue::default();
        unsent.send(&socket, &mut output).unwrap();
        while !unsent.is_empty() {
            let before = unsent.len();
            let blocked = unsent.flush(&socket).unwrap();
            let sent = before - unsent.len();
            assert!(
                sent <= MAX_BYTES_PER_TURN && (blocked || sent == MAX_BYTES_PER_TURN || unsent.is_empty()),
                "{sent}"
            );
        }
        drop(socket);
        assert!(reading.join().unwrap() == long);
    }
}

#[test]
fn a_queue_is_consumed_from_the_front_piece_by_piece() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..300 {
        let (mut queue, mut next, mut flat, mut taken) = (SendQueue::default(), 0, Vec::new(), Vec::new());
        for _ in 0..random.usize(1..30) {
            if random.bool() {
                queue.push(&mut random_output(&mut random, &mut next, &mut flat));
            } else {
                let piece = queue.front();
                let count = random.usize(0..=piece.len());
                taken.extend_from_slice(&piece[..count]);
                queue.consume(count);
            }
            assert_eq!(queue.len(), flat.len() - taken.len());
        }
        while !queue.is_empty() {
            let piece = queue.front();
            let count = piece.len();
            taken.extend_from_slice(piece);
            queue.consume(count);
        }
        assert_eq!(taken, flat);
    }
}
