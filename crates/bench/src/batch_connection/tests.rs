//! Tests of batches against a small server inside the test.

use super::*;
use crate::server_for_tests::serve;

#[test]
fn replies_come_in_the_order_of_the_requests() {
    let address = serve(|request| match request {
        [name] if name == b"PING" => b"+PONG\r\n".to_vec(),
        [_, word] => [format!("${}\r\n", word.len()).as_bytes(), word, b"\r\n"].concat(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    });
    let mut connection = BatchConnection::connect(address).expect("a connection");
    let long = vec![b'x'; 3 * READ_BYTES];
    for _ in 0..3 {
        connection.append(&[b"PING"]);
        connection.append(&[b"ECHO", &long]);
        connection.begin(2);
        connection.word(b"ECHO");
        connection.word(b"");
        connection.send().expect("sent");
        let mut replies = Vec::new();
        let keep = |number: usize, reply: &[u8]| {
            assert_eq!(number, replies.len());
            replies.push(reply.to_vec());
            Ok(())
        };
        connection.receive(keep).expect("three replies");
        assert_eq!(replies[0], b"+PONG\r\n");
        assert_eq!(replies[1].len(), long.len() + "$196608\r\n\r\n".len());
        assert_eq!(replies[2], b"$0\r\n\r\n");
    }
}

#[test]
fn malformed_and_superfluous_replies_are_refused() {
    for (answer, text) in [
        (&b"?\r\n"[..], "unknown type byte"),
        (&b"+OK\r\n+OK\r\n"[..], "unexpected bytes"),
    ] {
        let address = serve(move |_| answer.to_vec());
        let mut connection = BatchConnection::connect(address).expect("a connection");
        connection.append(&[b"PING"]);
        connection.send().expect("sent");
        match connection.receive(|_, _| Ok(())) {
            Err(Error::WrongReply(why)) => assert!(why.contains(text), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn bulk_strings_are_compared_as_a_whole() {
    assert!(is_bulk_string(b"$3\r\nfoo\r\n", b"foo"));
    assert!(is_bulk_string(b"$0\r\n\r\n", b""));
    for reply in [&b"$-1\r\n"[..], b"$3\r\nbar\r\n", b"+foo\r\n", b"$4\r\nfoo!\r\n", b""] {
        assert!(!is_bulk_string(reply, b"foo"), "{}", reply.escape_ascii());
    }
}

#[test]
fn the_error_of_a_check_ends_the_batch() {
    let address = serve(|_| b"-OOM command not allowed\r\n".to_vec());
    let mut connection = BatchConnection::connect(address).expect("a connection");
    connection.append(&[b"SET", b"key", b"value"]);
    connection.send().expect("sent");
    let outcome = connection.receive(|_, reply| {
        assert!(is_out_of_memory(reply));
        Err(wrong_reply("SET", reply))
    });
    match outcome {
        Err(Error::WrongReply(why)) => assert_eq!(why, r#"SET answered "-OOM command not allowed\r\n""#),
        other => panic!("{other:?}"),
    }
}
