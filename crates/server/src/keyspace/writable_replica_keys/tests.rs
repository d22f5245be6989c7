//! Tests of which keys are remembered and when they are due.

use weft_base::{DbIndex, SlotIndex};

use super::LocalExpiries;
use crate::keyspace::key_identity::LocalExpiry;

fn key(name: &str, at_ms: u64) -> LocalExpiry {
    LocalExpiry {
        db: DbIndex::new(3),
        slot: SlotIndex::from_index(7),
        hash: 1,
        name: name.as_bytes().into(),
        at_ms,
    }
}

#[test]
fn the_expiry_that_was_set_last_applies() {
    let keys = LocalExpiries::default();
    assert!(!keys.is_due(u64::MAX));
    keys.add([key("a", 100), key("b", 200), key("a", 300)].into_iter());
    assert_eq!(keys.len(), 2);
    assert!(!keys.is_due(200), "a key lives through the millisecond it expires in");
    assert!(keys.is_due(201));
    assert_eq!(keys.take_due(201), [key("b", 200)]);
    assert_eq!(keys.take_due(300), []);
    assert_eq!(keys.take_due(301), [key("a", 300)]);
    assert!(keys.len() == 0 && !keys.is_due(u64::MAX));
    keys.add([key("a", 1)].into_iter());
    keys.clear();
    assert!(keys.len() == 0 && !keys.is_due(u64::MAX));
}

#[test]
fn only_a_primary_forgets_its_keys() {
    let keys = LocalExpiries::default();
    keys.clear_if(|| unreachable!("there is nothing to forget"));
    keys.add([key("a", 100)].into_iter());
    keys.clear_if(|| false);
    assert!(keys.len() == 1 && keys.is_due(101));
    keys.clear_if(|| true);
    assert!(keys.len() == 0 && !keys.is_due(101));
}
