//! A hash tag for every slot, with which a cursor or a key can denote the slot in a form that every client understands.

use std::sync::OnceLock;

use weft_base::SlotIndex;
use weft_base::slots::SLOTS;
use weft_base::slots::cluster_slot;

const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Returns the shortest string of letters and digits whose slot is `slot`.
pub fn tag_for_slot(slot: SlotIndex) -> &'static str {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let tags = TAGS.get_or_init(make_tags);
    tags.get(slot.index()).map_or("", String::as_str)
}

fn make_tags() -> Vec<String> {
    let mut tags = vec![String::new(); SLOTS];
    for length in 1..=3 {
        let mut digits = vec![0; length];
        'words: loop {
            let word: String = digits.iter().map(|digit| char::from(LETTERS[*digit])).collect();
            let tag = &mut tags[cluster_slot(word.as_bytes()).index()];
            if tag.is_empty() {
                *tag = word;
            }
            for digit in digits.iter_mut().rev() {
                *digit += 1;
                if *digit < LETTERS.len() {
                    continue 'words;
                }
                *digit = 0;
            }
            break;
        }
    }
    tags
}

#[cfg(test)]
mod tests {
    //! Tests that every slot has a tag.

    use super::*;

    #[test]
    fn every_tag_leads_to_its_slot() {
        for slot in SlotIndex::all() {
            assert_eq!(cluster_slot(tag_for_slot(slot).as_bytes()), slot);
        }
        assert_eq!(
            [0, 15495, 16287].map(|slot| tag_for_slot(SlotIndex::from_index(slot))),
            ["06S", "a", "x"]
        );
    }
}
